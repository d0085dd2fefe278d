"""Single examples of a board: texts, scores and human ratings of each output.

The pages of the site that show them; `page.py` renders them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from t5score_jax.leaderboard.entries import GIVEN, decode
from t5score_jax.leaderboard.store import Store

#: The most cells of scores in the examples of a static site, about 60 MB.
_CELLS = 1_000_000


def path(n: int) -> str:
  """The path of the page of example n, from 1; 0 is the list of examples."""
  return f'examples/{n or "index"}.html'


class Examples:
  """The examples of a board; texts and scores are read when first used."""

  def __init__(self, store: Store, value: Mapping[str, Any]):
    """Reads nothing yet.

    Args:
      store: The board, open.
      value: Its analyses.
    """
    self._store, self._value = store, value

  def affordable(self) -> int:
    """How many of the first examples get pages on a static site."""
    each = len(self._value['generators']) * (len(self._value['metrics']) + 2)
    return min(self._store.size(), _CELLS // max(each, 1))

  @functools.cached_property
  def _ids(self) -> list[str]:
    return self._store.ids()

  @functools.cached_property
  def _texts(self) -> tuple[list[str] | None, dict[str, list[str]]]:
    return self._store.sources(), self._store.references()

  @functools.cached_property
  def _outputs(self) -> dict[str, list[str] | None]:
    return {g.name: self._store.outputs(g.id) for g in self._store.generators()}

  def _cells(self, k: int, table: str, *key: Any) -> dict[int, float]:
    """Generator id -> number of one example, without reading the columns."""
    where = 'metric = ? AND reference_set = ?' if key[1:] else 'name = ?'
    rows = self._store.rows(
      f'SELECT generator, substr(data, {8 * k + 1}, 8) FROM {table}'
      f' WHERE {where}',
      key,
    )
    numbers = {generator: float(decode(data)[0]) for generator, data in rows}
    return {g: number for g, number in numbers.items() if number == number}

  def _scores(self, k: int) -> dict[str, dict[int, float]]:
    """Metric -> generator id -> score, with those of the newest ensemble."""
    references = self._value['board']['references']
    scores = {}
    for metric in self._store.metrics():
      cells = self._cells(k, 'score', metric.id, references)
      cells = cells or self._cells(k, 'score', metric.id, GIVEN)
      scores[metric.name] = cells
    fitted = self._value['ensemble']
    for entry in self._value['metrics']:
      if entry['kind'] == 'fitted':
        members = [(w, scores[n]) for n, w in fitted['raw'].items()]
        scores[entry['name']] = {
          g: fitted['intercept'] + sum(w * cells[g] for w, cells in members)
          for g in members[0][1]
          if all(g in cells for _, cells in members)
        }
    return {m['name']: scores[m['name']] for m in self._value['metrics']}

  def listed(self, count: int) -> dict[str, Any]:
    """The variables of the list of the first `count` examples."""
    sources: Sequence[str | None] = self._texts[0] or [None] * len(self._ids)
    rows = list(zip(self._ids, sources, strict=True))[:count]
    return {'board': self._value['board'], 'rows': rows}

  def example(self, n: int) -> dict[str, Any]:
    """The variables of the page of example n, from 1."""
    k, board = n - 1, self._value['board']
    sources, references = self._texts
    scores = self._scores(k)
    ratings = self._cells(k, 'rating', board['human'] or '')
    keys = {g.name: g.id for g in self._store.generators()}
    outputs = []
    for entry in self._value['generators']:
      texts, key = self._outputs[entry['name']], keys[entry['name']]
      outputs.append(
        {
          'name': entry['name'],
          'rank': entry['rank'],
          'human': entry['human'],
          'text': None if texts is None else texts[k],
          'rating': ratings.get(key),
          'scores': [cells.get(key) for cells in scores.values()],
        }
      )
    return {
      'board': board,
      'n': n,
      'id': self._ids[k],
      'source': None if sources is None else sources[k],
      'references': {label: texts[k] for label, texts in references.items()},
      'metrics': list(scores),
      'outputs': outputs,
    }
