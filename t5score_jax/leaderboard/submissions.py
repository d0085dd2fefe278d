"""Adds generators, metrics and ratings to a board and renews its analyses.

Every metric that can be run scores a new generator, and a new metric scores
every generator; then a new version of the ensemble and the analyses is stored.
Scores are computed before anything is written, so that a kill leaves the board
unchanged. `complete` computes scores that concurrent submissions missed.

The functions take `also`, a further change in the same transaction, and return
the value of `renewal.renew`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5score_jax.leaderboard import changes, data, renewal, runs
from t5score_jax.leaderboard.entries import (
  GIVEN,
  BoardError,
  Generator,
  Metric,
  check_name,
  imported_metric,
)
from t5score_jax.leaderboard.outputs import read_columns, read_outputs
from t5score_jax.leaderboard.runs import RunError, Runner, Texts
from t5score_jax.leaderboard.store import Store

#: Largest executable, in bytes.
MAX_PROGRAM = 16 << 20

_Also = Callable[[], None]


@contextlib.contextmanager
def _transaction(store: Store, also: _Also | None) -> Iterator[None]:
  with store.transaction():
    yield
    if also is not None:
      also()


def add_generator(
  store: Store,
  generator: Generator,
  path: str | os.PathLike[str],
  scores: str | os.PathLike[str] | None = None,
  also: _Also | None = None,
) -> dict[str, Any]:
  """Adds a generator: checks its outputs, scores and ranks them.

  Args:
    store: The board.
    generator: The description of the generator.
    path: The file of outputs (`outputs.read_outputs`).
    scores: A table of scores by metrics that cannot be run.
    also: See above.

  Returns:
    The renewed analyses; scores of failed metrics are missing.

  Raises:
    BoardError: The name is taken or a file is malformed (then a
      `files.RecordError`); the board is unchanged.
  """
  _check_new(generator.name, store.generators(), 'generator')
  texts = read_outputs(path, store.ids())
  given = _given_scores(store, generator, scores) if scores else {}
  results, failed = _score_everything(store, texts)
  with _transaction(store, also):
    key = changes.add_generator(store, generator, texts)
    for (metric, reference_set), values in {**results, **given}.items():
      changes.set_scores(store, [(metric, key, values)], reference_set)
    for metric, message in failed.items():
      changes.set_failure(store, metric, key, GIVEN, message)
  complete(store)
  return renewal.renew(store, f'generator {generator.name}')


def _check_new(
  name: str, entries: Sequence[Generator | Metric], what: str
) -> None:
  check_name(name, what)
  if any(entry.name == name for entry in entries):
    raise BoardError(f'{what} {name!r} exists already; choose another name')


def _given_scores(
  store: Store, generator: Generator, path: str | os.PathLike[str]
) -> dict[tuple[int, str], np.ndarray]:
  """Reads scores of a generator by metrics that cannot be run."""
  columns = read_columns(
    path,
    store.ids(),
    [dataclasses.replace(generator, id=0)],
    generator=generator.name,
  )
  known = {m.name: m for m in store.metrics() if m.kind not in runs.RUNNABLE}
  results = {}
  for name, values in columns.items():
    if name not in known:
      raise BoardError(
        f'{path}: {name!r} is not a metric with imported scores; there are:'
        f' {", ".join(known) or "none"}'
      )
    column = values[0]
    if np.isnan(column).any():
      raise BoardError(f'{path}: {name!r} lacks scores of some inputs')
    metric = known[name]
    results[metric.id, GIVEN] = -column if metric.negated else column
  return results


def _score_everything(
  store: Store, outputs: Sequence[str]
) -> tuple[dict[tuple[int, str], np.ndarray], dict[int, str]]:
  """Scores new outputs by every metric; returns scores and failures."""
  results: dict[tuple[int, str], np.ndarray] = {}
  failed: dict[int, str] = {}
  sets, texts = data.reference_sets(store), Texts.of(store)
  for metric in store.metrics():
    if metric.kind in runs.RUNNABLE:
      try:
        scored = runs.score_generator(
          Runner(store, metric), outputs, texts, sets
        )
      except RunError as error:
        failed[metric.id] = str(error)
        continue
      results.update({(metric.id, s): x for s, x in scored.items()})
  return results, failed


def library_metric(
  name: str,
  options: Mapping[str, Any] | None = None,
  title: str | None = None,
  **fields: Any,
) -> Metric:
  """Describes a metric of this library for a board.

  Args:
    name: The name for `metrics.registry.load_metric`.
    options: The options of the metric.
    title: The name on the board; None for `name`.
    **fields: Further fields of `Metric`.

  Returns:
    The metric; `add_metric` determines whether it needs references.
  """
  return Metric(
    name=title or name,
    kind='library',
    settings={'metric': name, 'options': dict(options or {})},
    **fields,
  )


def command_metric(
  title: str,
  program: bytes,
  references: bool = True,
  several: str = 'max',
  limits: Mapping[str, Any] | None = None,
  isolation: str = 'required',
  **fields: Any,
) -> Metric:
  """Describes an executable as a metric; see `runs.py` for its protocol.

  Args:
    title: The name on the board.
    program: The contents of the executable.
    references: Whether it uses references.
    several: 'own' if it takes several references itself; 'max' or 'mean' to
      run it with each reference (the paper takes the maximum).
    limits: Fields of `sandbox.Limits` other than the defaults.
    isolation: 'required', or 'none' for a trusted program.
    **fields: Further fields of `Metric`.

  Returns:
    The metric. Its signature contains a digest of the program.

  Raises:
    BoardError: The program is empty or too large, or `several` is unknown.
  """
  if several not in data.SEVERAL:
    raise BoardError(f'several must be one of {data.SEVERAL}')
  if not 0 < len(program) <= MAX_PROGRAM:
    raise BoardError(
      f'an executable must have 1 to {MAX_PROGRAM} bytes, not {len(program)}'
    )
  fields.setdefault(
    'signature',
    f'metric:{title}|program:{hashlib.sha256(program).hexdigest()[:16]}'
    f'|refs:{several if references else "none"}',
  )
  settings = {
    'references': references,
    'several': several,
    'limits': dict(limits or {}),
    'isolation': isolation,
  }
  return Metric(title, 'command', settings, **fields)


def add_metric(
  store: Store,
  metric: Metric,
  program: bytes | None = None,
  also: _Also | None = None,
) -> dict[str, Any]:
  """Adds a metric: runs it on every generator with outputs, then ranks it.

  Args:
    store: The board.
    metric: From `library_metric` or `command_metric`.
    program: The executable of a command.
    also: See above.

  Returns:
    The renewed analyses.

  Raises:
    BoardError: The name is taken, or the metric failed on a generator; the
      board is unchanged.
  """
  _check_new(metric.name, store.metrics(), 'metric')
  runner = Runner(store, metric, program)
  texts, sets = Texts.of(store), data.reference_sets(store)
  generators = [g for g in store.generators() if g.has_outputs]
  if not generators:
    raise BoardError(
      'no generator on this board has outputs to score; give a table of scores'
    )
  if metric.kind == 'library':
    needed = _needs_references(runner, store.outputs(generators[0].id), texts)
    settings = {**metric.settings, 'references': needed}
    metric = runner.metric = dataclasses.replace(metric, settings=settings)
  results: dict[tuple[int, str], np.ndarray] = {}
  seconds = []
  for generator in generators:
    try:
      scored = runs.score_generator(
        runner, store.outputs(generator.id) or [], texts, sets
      )
    except RunError as error:
      raise BoardError(
        f'{error} (generator {generator.name}); the board is unchanged'
      ) from error
    seconds.append(runner.seconds)
    results.update({(generator.id, s): x for s, x in scored.items()})
  metric = dataclasses.replace(metric, signature=runner.signature)
  if metric.seconds is None:
    metric = dataclasses.replace(metric, seconds=float(np.median(seconds)))
  with _transaction(store, also):
    key = changes.add_metric(store, metric, program)
    for (generator_id, reference_set), values in results.items():
      changes.set_scores(store, [(key, generator_id, values)], reference_set)
  complete(store)
  return renewal.renew(store, f'metric {metric.name}')


def _needs_references(
  runner: Runner, outputs: Sequence[str] | None, texts: Texts
) -> bool:
  """Determines whether a library metric needs references by trying."""
  try:
    runner.score((outputs or [])[:1], texts)
  except RunError:
    return True
  return False


def add_score_file(
  store: Store,
  metric: Metric,
  path: str | os.PathLike[str],
  column: str | None = None,
  also: _Also | None = None,
) -> dict[str, Any]:
  """Adds a metric by a table of its scores.

  Args:
    store: The board.
    metric: The description of the metric; its kind becomes 'column'.
    path: The table, with a row for every example of every generator.
    column: The column of scores; None for the only one or the metric's name.
    also: See above.

  Returns:
    The renewed analyses.

  Raises:
    BoardError: The name is taken, or scores are missing; also
      `files.RecordError`.
  """
  _check_new(metric.name, store.metrics(), 'metric')
  generators = store.generators()
  _, values = _one_column(store, path, column, metric.name)
  empty = np.full(store.size(), np.nan)
  for generator in generators:
    missing = int(np.isnan(values.get(generator.id, empty)).sum())
    if missing:
      raise BoardError(
        f'{path}: no score for {missing} outputs of {generator.name!r}; a'
        ' metric must score every generator'
      )
  imported = imported_metric(metric.name, metric.negated)
  signature = metric.signature or imported.signature
  metric = dataclasses.replace(metric, kind='column', signature=signature)
  sign = -1.0 if metric.negated else 1.0
  with _transaction(store, also):
    key = changes.add_metric(store, metric)
    columns = ((key, g, sign * scores) for g, scores in values.items())
    changes.set_scores(store, columns, GIVEN)
  complete(store)
  return renewal.renew(store, f'metric {metric.name}')


def _one_column(
  store: Store,
  path: str | os.PathLike[str],
  column: str | None,
  default: str | None = None,
) -> tuple[str, dict[int, np.ndarray]]:
  """Reads one column: its name, and generator id -> numbers [K]."""
  columns = read_columns(
    path, store.ids(), store.generators(), [column] if column else None
  )
  if len(columns) > 1 and default in columns:
    return default, columns[default]
  if len(columns) > 1:
    raise BoardError(
      f'{path}: several columns ({", ".join(columns)}); choose one'
    )
  return next(iter(columns.items()))


def add_human(
  store: Store,
  path: str | os.PathLike[str],
  name: str | None = None,
  column: str | None = None,
  replace: bool = False,
  choose: bool = False,
  also: _Also | None = None,
) -> dict[str, Any]:
  """Adds human ratings.

  Args:
    store: The board.
    path: TSV or JSONL with a system, an id and a column of ratings; higher is
      better.
    name: The name of the ratings; None for the board's default ratings, or the
      name of the column.
    column: The column of ratings; None for the only one.
    replace: Whether existing ratings may be replaced.
    choose: Whether these become the board's default ratings.
    also: See above.

  Returns:
    The renewed analyses.

  Raises:
    BoardError: Different ratings exist, or the column is ambiguous; also
      `files.RecordError`.
  """
  only, values = _one_column(store, path, column)
  name = name or store.board().human or only
  with _transaction(store, also):
    changes.add_ratings(store, name, values.items(), replace)
    if choose:
      changes.set_human(store, name)
  return renewal.renew(store, f'human ratings {name}')


def complete(store: Store) -> int:
  """Computes missing scores of metrics that can be run.

  Scores are missing for metrics and generators submitted concurrently, and for
  reference sets of new roles. Earlier failures are not retried.

  Returns:
    The number of pairs of metric and generator that were scored.
  """
  done = 0
  sets, texts = data.reference_sets(store), Texts.of(store)
  generators = [g for g in store.generators() if g.has_outputs]
  scored = store.scored()
  failed = {(metric, generator) for metric, generator, _ in store.failures()}
  for metric in store.metrics():
    if metric.kind not in runs.RUNNABLE:
      continue
    wanted = sets if metric.settings.get('references') else [GIVEN]
    runner = None
    for generator in generators:
      missing = [
        s for s in wanted if (metric.id, generator.id, s) not in scored
      ]
      if not missing or (metric.id, generator.id) in failed:
        continue
      try:
        runner = runner or Runner(store, metric)
        outputs = store.outputs(generator.id) or []
        results = runs.score_generator(runner, outputs, texts, missing)
      except RunError as error:
        changes.set_failure(store, metric.id, generator.id, GIVEN, str(error))
        continue
      with store.transaction():
        for reference_set, values in results.items():
          column = (metric.id, generator.id, values)
          changes.set_scores(store, [column], reference_set)
      done += 1
  return done
