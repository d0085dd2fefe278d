"""All changes of a board, each atomic.

Functions on an open `Store`. Each is one transaction; a caller may combine
several in a larger one (`with store.transaction():`). Values are checked before
they are written. Computing scores is the business of `submissions.py`.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t5score_jax.leaderboard import schema
from t5score_jax.leaderboard.entries import (
  GIVEN,
  BoardError,
  Generator,
  Metric,
  check_name,
  encode,
  now,
  pack,
  unpack,
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
    store.connection.execute(
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
  store.connection.execute('UPDATE board SET revision = revision + 1')
  note(store, message)


def note(store: Store, message: str) -> None:
  """Logs an event without changing the revision."""
  with store.transaction():
    store.connection.execute(
      'INSERT INTO event (time, message) VALUES (?, ?)', (now(), message)
    )


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
  check_name(generator.name, 'generator')
  with store.transaction():
    count = store.size()
    if outputs is not None and len(outputs) != count:
      raise BoardError(
        f'{generator.name}: {len(outputs)} outputs for {count} inputs'
      )
    try:
      cursor = store.connection.execute(
        'INSERT INTO generator (name, human, description, seconds, parameters,'
        ' submitted, outputs) VALUES (?, ?, ?, ?, ?, ?, ?)',
        (
          generator.name,
          generator.human,
          generator.description,
          generator.seconds,
          generator.parameters,
          _time(generator.submitted) if generator.submitted else now(),
          None if outputs is None else pack(list(outputs)),
        ),
      )
    except sqlite3.IntegrityError as error:
      raise BoardError(
        f'generator {generator.name!r} exists already; choose another name'
      ) from error
    _changed(store, f'generator {generator.name} added')
    return int(cursor.lastrowid or 0)


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
  check_name(metric.name, 'metric')
  with store.transaction():
    try:
      cursor = store.connection.execute(
        'INSERT INTO metric (name, kind, settings, program, negated,'
        ' description, signature, seconds, parameters, submitted)'
        ' VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
        (
          metric.name,
          metric.kind,
          json.dumps(dict(metric.settings)),
          program,
          metric.negated,
          metric.description,
          metric.signature,
          metric.seconds,
          metric.parameters,
          _time(metric.submitted) if metric.submitted else now(),
        ),
      )
    except sqlite3.IntegrityError as error:
      raise BoardError(
        f'metric {metric.name!r} exists already; choose another name'
      ) from error
    _changed(store, f'metric {metric.name} added')
    return int(cursor.lastrowid or 0)


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

  def rows() -> Iterable[tuple[int, int, str, bytes]]:
    for metric, generator, values in columns:
      if values.shape != (count,) or np.isinf(values).any():
        raise BoardError(
          f'scores must be {count} finite numbers (or none), not'
          f' {list(values.shape)}'
          + (' with infinities' if np.isinf(values).any() else '')
        )
      yield metric, generator, reference_set, encode(values)

  with store.transaction():
    store.connection.executemany(
      'INSERT OR REPLACE INTO score VALUES (?, ?, ?, ?)', rows()
    )
    store.connection.execute(
      'DELETE FROM failure WHERE EXISTS (SELECT 1 FROM score WHERE'
      ' score.metric = failure.metric AND score.generator = failure.generator'
      ' AND score.reference_set = failure.reference_set)'
    )
    store.connection.execute('UPDATE board SET revision = revision + 1')


def set_failure(
  store: Store, metric: int, generator: int, reference_set: str, message: str
) -> None:
  """Records that a metric failed on a generator, and why."""
  with store.transaction():
    store.connection.execute(
      'INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?)',
      (metric, generator, reference_set, message[:2000]),
    )
    names = store.connection.execute(
      'SELECT metric.name, generator.name FROM metric, generator'
      ' WHERE metric.id = ? AND generator.id = ?',
      (metric, generator),
    ).fetchone()
    _changed(store, f'metric {names[0]} failed on {names[1]}: {message[:200]}')


def set_metric_run(
  store: Store, metric: int, signature: str, seconds: float | None
) -> None:
  """Records the signature and the duration of a run of a metric."""
  with store.transaction():
    store.connection.execute(
      'UPDATE metric SET signature = ?, seconds = ? WHERE id = ?',
      (signature, seconds, metric),
    )


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
      if values.shape != (count,) or np.isinf(values).any():
        raise BoardError(f'ratings must be {count} finite numbers (or none)')
      given = ~np.isnan(values)
      old = before.get(generator, np.full(count, np.nan))
      clash = given & ~np.isnan(old) & (old != values)
      if clash.any() and not replace:
        raise BoardError(
          f'{int(clash.sum())} of these examples already have another rating,'
          f' {name!r}; replace them explicitly, or choose another name'
        )
      store.connection.execute(
        'INSERT OR REPLACE INTO rating VALUES (?, ?, ?)',
        (name, generator, encode(np.where(given, values, old))),
      )
    store.connection.execute(
      'UPDATE board SET human = coalesce(human, ?)', (name,)
    )
    _changed(store, f'human ratings {name} added')


def set_human(store: Store, name: str) -> None:
  """Makes ratings the board's default.

  Raises:
    BoardError: The board has no such ratings.
  """
  with store.transaction():
    if name not in store.rating_names():
      raise BoardError(
        f'no ratings {name!r}; there are {", ".join(store.rating_names())}'
      )
    store.connection.execute('UPDATE board SET human = ?', (name,))
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
      if generator not in humans:
        raise BoardError(
          f'{generator!r} is not a generator of human texts; there are: '
          + (', '.join(humans) or 'none')
        )
    check_reference_set(store, reference_set)
    store.connection.execute(
      'INSERT OR REPLACE INTO role VALUES (?, ?, ?)',
      (name, json.dumps(list(generators)), reference_set),
    )
    _changed(store, f'human role {name} set')


def check_reference_set(store: Store, reference_set: str) -> None:
  """Raises a BoardError if a reference of the set does not exist."""
  known = list(store.references())
  labels = [] if reference_set == GIVEN else reference_set.split('+')
  for label in labels:
    if label not in known:
      raise BoardError(
        f'no reference {label!r}; there are: {", ".join(known) or "none"}'
      )


def add_version(
  store: Store,
  version: int,
  revision: int,
  cause: str,
  signature: str,
  ensemble: Mapping[str, Any],
  created: str | None = None,
) -> None:
  """Stores a version of the ensemble permanently.

  Args:
    store: The board.
    version: The version number.
    revision: The revision of the board that it was fitted to.
    cause: The change that caused it.
    signature: The signature of the ensemble.
    ensemble: The value of `Ensemble.to_json`.
    created: The time (ISO 8601) of an imported version; None for now.

  Raises:
    BoardError: `created` is not a time.
  """
  with store.transaction():
    store.connection.execute(
      'INSERT INTO version VALUES (?, ?, ?, ?, ?, ?)',
      (
        version,
        now() if created is None else _time(created),
        revision,
        cause,
        signature,
        json.dumps(dict(ensemble)),
      ),
    )


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
    store.connection.execute(
      'INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?)',
      (revision, version, pack(value)),
    )


def snapshot(store: Store) -> tuple[int, Any] | None:
  """The stored analyses, (revision, value); None if there are none."""
  row = store.connection.execute(
    'SELECT revision, data FROM snapshot'
  ).fetchone()
  return None if row is None else (row[0], unpack(row[1]))
