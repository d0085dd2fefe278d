"""Scores new texts with any version of a board's ensemble.

The members' scores come from a table, or the members are run: metrics of this
library and executables stored in the board.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from t5score_jax.data import files, numbers, records, tables
from t5score_jax.leaderboard import ensemble, runs
from t5score_jax.leaderboard.entries import BoardError, Metric, Version
from t5score_jax.leaderboard.store import Store


def score_with(
  store: Store,
  version: Version,
  texts: str | os.PathLike[str] | None,
  scores: str | os.PathLike[str] | None,
  output: str | os.PathLike[str] = '-',
) -> np.ndarray:
  """Scores new texts and writes one JSON object per line.

  Args:
    store: The board.
    version: The version of the ensemble.
    texts: TSV or JSONL of texts (`records.read_records`), or None.
    scores: TSV or JSONL with a column per member, or None. Values are negated
      if the board's are.
    output: The file of scores of the members and the ensemble.

  Returns:
    Scores by the ensemble, [N].

  Raises:
    BoardError: Neither or both are given, or a member cannot be run.
    files.RecordError: A file is malformed.
  """
  if (texts is None) == (scores is None):
    raise BoardError("give either texts or a table of the members' scores")
  value = ensemble.Ensemble.from_json(version.ensemble)
  if scores is not None:
    columns = _from_table(scores, list(value.weights))
  else:
    assert texts is not None
    columns = _from_texts(store, value, texts)
  result = value.apply(columns)
  files.write_lines(
    output,
    (
      json.dumps(
        {**{n: float(c[i]) for n, c in columns.items()}, 'score': float(s)},
        ensure_ascii=False,
      )
      for i, s in enumerate(result)
    ),
  )
  return result


def _from_table(
  path: str | os.PathLike[str], members: list[str]
) -> dict[str, np.ndarray]:
  cells: dict[str, list[float]] = {name: [] for name in members}
  with files.open_text(path) as lines:
    for number, row in tables.read_table(lines, os.fspath(path)).rows:
      for name in members:
        cell: Any = row.get(name)
        if (value := numbers.parse(cell)) is None:
          raise files.RecordError(
            f'{str(cell)[:40]!r} is not a score of the member {name!r}',
            path=path,
            line=number,
            field=name,
          )
        cells[name].append(value)
  return {name: np.array(values) for name, values in cells.items()}


def _from_texts(
  store: Store, value: ensemble.Ensemble, path: str | os.PathLike[str]
) -> dict[str, np.ndarray]:
  segments = records.read_records(path)
  known = {m.name: m for m in store.metrics()}
  columns = {}
  for name in value.weights:
    metric = known.get(name)
    if metric is None or metric.kind not in runs.RUNNABLE:
      raise BoardError(
        f'the member {name!r} cannot be run (its scores were imported); give'
        " the members' scores with --scores-table"
      )
    columns[name] = _run(store, metric, value, segments)
  return columns


def _run(
  store: Store,
  metric: Metric,
  value: ensemble.Ensemble,
  segments: list[records.Segment],
) -> np.ndarray:
  """Runs one member on new segments with their own references."""
  counts = {len(s.references) for s in segments}
  if metric.settings.get('references') and (len(counts) > 1 or 0 in counts):
    raise BoardError(
      f'the member {metric.name!r} needs the same number of references for'
      ' every text'
    )
  sources = [s.source for s in segments if s.source is not None]
  texts = runs.Texts(
    [str(n) for n in range(1, len(segments) + 1)],
    sources if len(sources) == len(segments) else None,
    {str(n): [s.references[n] for s in segments] for n in range(min(counts))},
  )
  (scores,) = runs.score_generator(
    runs.Runner(store, metric),
    [s.hypothesis for s in segments],
    texts,
    ['+'.join(texts.references)],
    value.reference_set.partition(':')[2] or None,
  ).values()
  return scores
