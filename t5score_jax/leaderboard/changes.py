"""All changes of a board, each atomic.

Functions on an open `Store`. Each is one transaction; a caller may combine
several in a larger one (`with store.transaction():`). Values are checked before
they are written. Computing scores is the business of `submissions.py`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t5score_jax.leaderboard import schema
from t5score_jax.leaderboard.ensemble import Ensemble
from t5score_jax.leaderboard.entries import (
  GIVEN,
  BoardError,
  Generator,
  Metric,
  check_name,
  encode,
  now,
  pack,
)
from t5score_jax.leaderboard.store import Store


def initialise(
  store: Store,
  name: str,
  task: str,
  ids: Sequence[str],
  sources: Sequence[str] | None = None,
  references: Mapping[str, Sequence[str]] | None = None,
  human: str | None = None,
) -> None:
  """Creates the tables of a new file and stores the inputs.

  Args:
    store: The new, empty board.
    name: The board's name.
    task: What the generators do.
    ids: The K inputs' ids, all different.
    sources: The texts of the K inputs, if known.
    references: Label -> K texts.
    human: The name of the board's default ratings.

  Raises:
    BoardError: A name is invalid, or numbers of texts differ.
  """
  check_name(name, 'board')
  if not ids:
    raise BoardError('a board needs at least one input')
  if len(set(ids)) != len(ids):
    raise BoardError('two inputs have the same id')
  references = references or {}
  for label, texts in {'sources': sources or ids, **references}.items():
    if len(texts) != len(ids):
      raise BoardError(f'{label}: {len(texts)} texts for {len(ids)} inputs')
  for label in references:
    check_name(label, 'reference')
    if '+' in label or ':' in label or label == GIVEN:
      raise BoardError(f'{label!r} cannot name a reference')
  with store.transaction():
    schema.migrate(store.connection)
    store.run(
      'INSERT INTO board VALUES (1, ?, ?, ?, ?, 0, ?)',
      (name, task, human, '+'.join(references) or GIVEN, now()),
    )
    store.connection.executemany(
      'INSERT INTO input VALUES (?, ?, ?)',
      ((n, key, sources[n] if sources else None) for n, key in enumerate(ids)),
    )
    store.connection.executemany(
      'INSERT INTO reference VALUES (?, ?, ?)',
      (
        (label, n, text)
        for label, texts in references.items()
        for n, text in enumerate(texts)
      ),
    )


def _changed(store: Store, message: str) -> None:
  """Increments the revision and logs the change."""
  store.run('UPDATE board SET revision = revision + 1')
  store.insert('event', {'time': now(), 'message': message})


def add_generator(
  store: Store, generator: Generator, outputs: Sequence[str] | None = None
) -> int:
  """Adds a generator.

  Args:
    store: The board.
    generator: The generator. Its id is ignored; an empty date means now.
    outputs: Its K texts, if known.

  Returns:
    Its id.

  Raises:
    BoardError: The name is taken, or the number of texts is wrong.
  """
  if outputs is not None and len(outputs) != store.size():
    raise BoardError(
      f'{generator.name}: {len(outputs)} outputs for {store.size()} inputs'
    )
  row = {'outputs': None if outputs is None else pack(list(outputs))}
  return _add(store, 'generator', generator, row, ('id', 'has_outputs'))


def add_metric(
  store: Store, metric: Metric, program: bytes | None = None
) -> int:
  """Adds a metric.

  Args:
    store: The board.
    metric: The metric. Its id is ignored; an empty date means now.
    program: The executable of a metric of kind 'command'.

  Returns:
    Its id.

  Raises:
    BoardError: The name is taken.
  """
  row = {'settings': json.dumps(dict(metric.settings)), 'program': program}
  return _add(store, 'metric', metric, row, ('id',))


def _add(
  store: Store,
  table: str,
  entry: Generator | Metric,
  row: Mapping[str, Any],
  without: Sequence[str],
) -> int:
  check_name(entry.name, table)
  fields = {n: v for n, v in vars(entry).items() if n not in without}
  fields['submitted'] = _time(entry.submitted) if entry.submitted else now()
  with store.transaction():
    key = store.insert(table, {**fields, **row}, f'{table} {entry.name!r}')
    _changed(store, f'{table} {entry.name} added')
  return key


def _check_column(values: np.ndarray, count: int, what: str) -> None:
  if values.shape != (count,) or np.isinf(values).any():
    raise BoardError(
      f'{what} must be {count} finite numbers (or none), not'
      f' {list(values.shape)}'
      + (' with infinities' if np.isinf(values).any() else '')
    )


def set_scores(
  store: Store,
  columns: Iterable[tuple[int, int, np.ndarray]],
  reference_set: str,
) -> None:
  """Stores columns of scores and replaces existing ones.

  Args:
    store: The board.
    columns: (metric id, generator id, scores [K]); NaN marks a missing score.
    reference_set: The references that the scores were computed with.

  Raises:
    BoardError: A column has the wrong length or contains an infinity.
  """
  count = store.size()
  with store.transaction():
    for metric, generator, values in columns:
      _check_column(values, count, 'scores')
      store.run(
        'INSERT OR REPLACE INTO score VALUES (?, ?, ?, ?)',
        (metric, generator, reference_set, encode(values)),
      )
    store.run(
      'DELETE FROM failure WHERE EXISTS (SELECT 1 FROM score WHERE'
      ' score.metric = failure.metric AND score.generator = failure.generator'
      ' AND score.reference_set = failure.reference_set)'
    )
    store.run('UPDATE board SET revision = revision + 1')


def set_failure(
  store: Store, metric: int, generator: int, reference_set: str, message: str
) -> None:
  """Records that a metric failed on a generator, and why."""
  with store.transaction():
    store.run(
      'INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?)',
      (metric, generator, reference_set, message[:2000]),
    )
    ((failed, on),) = store.rows(
      'SELECT metric.name, generator.name FROM metric, generator'
      ' WHERE metric.id = ? AND generator.id = ?',
      (metric, generator),
    )
    _changed(store, f'metric {failed} failed on {on}: {message[:200]}')


def add_ratings(
  store: Store,
  name: str,
  columns: Iterable[tuple[int, np.ndarray]],
  replace: bool = False,
) -> None:
  """Adds human ratings; the first ratings become the board's default.

  Args:
    store: The board.
    name: The name of the ratings.
    columns: (generator id, ratings [K]); NaN marks a missing rating and keeps
      an existing one of that name.
    replace: Whether existing ratings may be replaced.

  Raises:
    BoardError: A different rating exists, or a column is invalid.
  """
  check_name(name, 'rating')
  count = store.size()
  with store.transaction():
    before = dict(store.ratings(name))
    for generator, values in columns:
      _check_column(values, count, 'ratings')
      given = ~np.isnan(values)
      old = before.get(generator, np.full(count, np.nan))
      clash = given & ~np.isnan(old) & (old != values)
      if clash.any() and not replace:
        raise BoardError(
          f'{int(clash.sum())} of these examples already have another rating,'
          f' {name!r}; replace them explicitly, or choose another name'
        )
      store.run(
        'INSERT OR REPLACE INTO rating VALUES (?, ?, ?)',
        (name, generator, encode(np.where(given, values, old))),
      )
    store.run('UPDATE board SET human = coalesce(human, ?)', [name])
    _changed(store, f'human ratings {name} added')


def set_human(store: Store, name: str) -> None:
  """Makes ratings the board's default.

  Raises:
    BoardError: The board has no such ratings.
  """
  with store.transaction():
    check_known(name, store.rating_names(), 'ratings')
    store.run('UPDATE board SET human = ?', [name])
    _changed(store, f'human ratings {name} chosen')


def set_role(
  store: Store, name: str, generators: Sequence[str], reference_set: str
) -> None:
  """Sets which human texts count as generated, and the references they face.

  Args:
    store: The board.
    name: The name of the role, for example 'default' or 'swapped'.
    generators: Names of human generators.
    reference_set: Labels joined by '+', or `GIVEN`.

  Raises:
    BoardError: A generator or a reference does not exist.
  """
  with store.transaction():
    humans = [g.name for g in store.generators() if g.human]
    for generator in generators:
      check_known(generator, humans, 'generator of human texts')
    check_reference_set(store, reference_set)
    store.run(
      'INSERT OR REPLACE INTO role VALUES (?, ?, ?)',
      (name, json.dumps(list(generators)), reference_set),
    )
    _changed(store, f'human role {name} set')


def check_reference_set(store: Store, reference_set: str) -> None:
  """Raises a BoardError if a reference of the set does not exist."""
  if reference_set != GIVEN:
    known = list(store.references())
    for label in reference_set.split('+'):
      check_known(label, known, 'reference')


def check_known(name: str, known: Sequence[str], what: str) -> None:
  """Raises a BoardError if a name is not among the known ones."""
  if name not in known:
    raise BoardError(
      f'no {what} {name!r}; there are: {", ".join(known) or "none"}'
    )


def add_version(
  store: Store,
  ensemble: Ensemble,
  revision: int,
  cause: str,
  created: str | None = None,
) -> None:
  """Stores a version of the ensemble permanently.

  Args:
    store: The board.
    ensemble: The ensemble, with its version.
    revision: The revision of the board that it was fitted to.
    cause: The change that caused it.
    created: The time (ISO 8601) of an imported version; None for now.

  Raises:
    BoardError: `created` is not a time.
  """
  row = {
    'version': ensemble.version,
    'created': now() if created is None else _time(created),
    'revision': revision,
    'cause': cause,
    'signature': ensemble.signature(),
    'ensemble': json.dumps(ensemble.to_json()),
  }
  with store.transaction():
    store.insert('version', row, f'version {ensemble.version}')


def _time(text: str) -> str:
  try:
    datetime.datetime.fromisoformat(text)
  except (TypeError, ValueError) as error:
    raise BoardError(f'{str(text)[:60]!r} is not a time in ISO 8601') from error
  return text


def set_snapshot(
  store: Store, revision: int, version: int | None, value: Any
) -> None:
  """Stores the analyses of a revision and replaces older ones."""
  with store.transaction():
    store.run(
      'INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?)',
      (revision, version, pack(value)),
    )
