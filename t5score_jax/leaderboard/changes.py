"""The changes that a board can see, each of them whole or not at all.

Functions on an open `Store`, each one transaction, which a caller may put into
a greater one (`with store.transaction():`). Everything is checked before it is
written. Not here: where scores come from (`submissions`).
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
  """Makes the tables of a new file and puts the inputs there.

  Args:
    store: The new file.
    name: The board's name.
    task: What the generators do.
    ids: The K inputs' ids, all different.
    sources: The K inputs' texts, if there are any.
    references: Label -> K texts.
    human: The name of the ratings that count.

  Raises:
    BoardError: Names or numbers are not right.
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
  """Raises the revision and writes the history."""
  store.connection.execute('UPDATE board SET revision = revision + 1')
  note(store, message)


def note(store: Store, message: str) -> None:
  """Writes a line of history, which changes nothing else."""
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
    generator: The generator; its id is ignored, and its date is now unless it
      has one.
    outputs: Its K texts, if they are known.

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
        f'there is a generator {generator.name!r} already; choose another name'
      ) from error
    _changed(store, f'generator {generator.name} added')
    return int(cursor.lastrowid or 0)


def add_metric(
  store: Store, metric: Metric, program: bytes | None = None
) -> int:
  """Adds a metric.

  Args:
    store: The board.
    metric: The metric; its id is ignored, and its date is now unless it has
      one.
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
        f'there is a metric {metric.name!r} already; choose another name'
      ) from error
    _changed(store, f'metric {metric.name} added')
    return int(cursor.lastrowid or 0)


def set_scores(
  store: Store,
  columns: Iterable[tuple[int, int, np.ndarray]],
  reference_set: str,
) -> None:
  """Writes score columns, over those that are there.

  Args:
    store: The board.
    columns: (metric's id, generator's id, scores [K]), NaN where there is
      none; no infinities.
    reference_set: The references that the scores were computed with.

  Raises:
    BoardError: A column has another length, or holds an infinity.
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
  """Notes that a metric failed on a generator, and why."""
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
  """Notes what a metric's run told: its signature and how long it took."""
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
  """Adds human ratings; the first that a board gets are those that count.

  Args:
    store: The board.
    name: What the ratings are called.
    columns: (generator's id, ratings [K]), NaN where there is none. Ratings
      that a generator has under this name stay where the column has NaN.
    replace: Whether a rating may take the place of another.

  Raises:
    BoardError: A rating is there already, or a column is not right.
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
          f'{int(clash.sum())} of these examples have another rating {name!r}'
          ' already; replace them explicitly, or give another name'
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
  """Chooses the ratings that count.

  Raises:
    BoardError: There are no such ratings.
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
  """Says which human texts count as generated, against which references.

  Args:
    store: The board.
    name: Of the role, for example 'default' or 'swapped'.
    generators: Names of human generators.
    reference_set: Labels joined by '+', or `GIVEN`.

  Raises:
    BoardError: A generator or a reference isn't there.
  """
  with store.transaction():
    humans = [g.name for g in store.generators() if g.human]
    for generator in generators:
      if generator not in humans:
        raise BoardError(
          f'{generator!r} is no generator of human texts; there are: '
          + (', '.join(humans) or 'none')
        )
    check_reference_set(store, reference_set)
    store.connection.execute(
      'INSERT OR REPLACE INTO role VALUES (?, ?, ?)',
      (name, json.dumps(list(generators)), reference_set),
    )
    _changed(store, f'human role {name} set')


def check_reference_set(store: Store, reference_set: str) -> None:
  """Raises BoardError if a set names references that the board lacks."""
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
  """Keeps a version of the ensemble, for good.

  Args:
    store: The board.
    version: Its number.
    revision: Of the board, which it was fitted to.
    cause: What had changed.
    signature: Of the ensemble.
    ensemble: What `Ensemble.to_json` gave.
    created: When (ISO 8601), of one that was made elsewhere; None for now.

  Raises:
    BoardError: That is no time.
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
    raise BoardError(f'{str(text)[:60]!r} is no time (ISO 8601)') from error
  return text


def set_snapshot(
  store: Store, revision: int, version: int | None, value: Any
) -> None:
  """Keeps the analyses of a revision in place of older ones."""
  with store.transaction():
    store.connection.execute(
      'INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?)',
      (revision, version, pack(value)),
    )


def snapshot(store: Store) -> tuple[int, Any] | None:
  """The newest kept analyses: (revision, value); None if there are none."""
  row = store.connection.execute(
    'SELECT revision, data FROM snapshot'
  ).fetchone()
  return None if row is None else (row[0], unpack(row[1]))
