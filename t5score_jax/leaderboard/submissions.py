"""Adds generators, metrics and ratings to a board and renews its analyses.

Every metric that can be run scores a new generator, and a new metric scores
every generator; then a new version of the ensemble and the analyses is stored.
Scores are computed before anything is written, so that a kill leaves the board
unchanged. `complete` computes scores that concurrent submissions missed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5score_jax.leaderboard import changes, data, outputs, renewal, runs
from t5score_jax.leaderboard.entries import (
  GIVEN,
  BoardError,
  Generator,
  Metric,
  check_name,
)
from t5score_jax.leaderboard.runs import RunError, Runner, Texts
from t5score_jax.leaderboard.store import Store

#: Largest executable, in bytes.
MAX_PROGRAM = 16 << 20
_RUNNABLE = ('library', 'command')


def _texts(store: Store) -> Texts:
  return Texts(store.ids(), store.sources(), store.references())


def _runner(store: Store, metric: Metric) -> Runner:
  folder = os.path.dirname(os.path.realpath(store.path))
  return Runner(metric, store.program(metric.id), [folder])


def add_generator(
  store: Store,
  generator: Generator,
  path: str | os.PathLike[str],
  scores: str | os.PathLike[str] | None = None,
  also: Callable[[], None] | None = None,
) -> dict[str, Any]:
  """Adds a generator: checks its outputs, scores and ranks them.

  Args:
    store: The board.
    generator: The description of the generator.
    path: The file of outputs (`outputs.read_outputs`).
    scores: A table of scores by metrics that cannot be run.
    also: A further change in the same transaction.

  Returns:
    The renewed analyses; scores of failed metrics are missing.

  Raises:
    BoardError: The name is taken or a file is malformed (then a
      `files.RecordError`); the board is unchanged.
  """
  check_name(generator.name, 'generator')
  if any(g.name == generator.name for g in store.generators()):
    raise BoardError(
      f'generator {generator.name!r} exists already; choose another name'
    )
  texts = outputs.read_outputs(path, store.ids())
  given = _given_scores(store, generator, scores) if scores else {}
  results, failed = _score_everything(store, texts)
  with store.transaction():
    key = changes.add_generator(store, generator, texts)
    for (metric, reference_set), values in {**results, **given}.items():
      changes.set_scores(store, [(metric, key, values)], reference_set)
    for metric, message in failed.items():
      changes.set_failure(store, metric, key, GIVEN, message)
    if also is not None:
      also()
  complete(store)
  return renewal.renew(store, f'generator {generator.name}')


def _given_scores(
  store: Store, generator: Generator, path: str | os.PathLike[str]
) -> dict[tuple[int, str], np.ndarray]:
  """Reads scores of a generator by metrics that cannot be run."""
  columns = outputs.read_columns(
    path,
    store.ids(),
    [dataclasses.replace(generator, id=0)],
    generator=generator.name,
  )
  known = {m.name: m for m in store.metrics() if m.kind not in _RUNNABLE}
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
  store: Store, texts: Sequence[str]
) -> tuple[dict[tuple[int, str], np.ndarray], dict[int, str]]:
  """Scores new outputs by every metric; returns scores and failures."""
  results: dict[tuple[int, str], np.ndarray] = {}
  failed: dict[int, str] = {}
  sets, inputs = data.reference_sets(store), _texts(store)
  for metric in store.metrics():
    if metric.kind in _RUNNABLE:
      try:
        runner = _runner(store, metric)
        scored = runs.score_generator(runner, texts, inputs, sets)
      except RunError as error:
        failed[metric.id] = str(error)
        continue
      for reference_set, values in scored.items():
        results[metric.id, reference_set] = values
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
  return Metric(
    name=title,
    kind='command',
    settings={
      'references': references,
      'several': several,
      'limits': dict(limits or {}),
      'isolation': isolation,
    },
    **fields,
  )


def add_metric(
  store: Store,
  metric: Metric,
  program: bytes | None = None,
  also: Callable[[], None] | None = None,
) -> dict[str, Any]:
  """Adds a metric: runs it on every generator with outputs, then ranks it.

  Args:
    store: The board.
    metric: From `library_metric` or `command_metric`.
    program: The executable of a command.
    also: A further change in the same transaction.

  Returns:
    The renewed analyses.

  Raises:
    BoardError: The name is taken, or the metric failed on a generator; the
      board is unchanged.
  """
  _check_new_metric(store, metric)
  folder = os.path.dirname(os.path.realpath(store.path))
  runner = Runner(metric, program, [folder])
  inputs, sets = _texts(store), data.reference_sets(store)
  generators = [g for g in store.generators() if g.has_outputs]
  if not generators:
    raise BoardError(
      'no generator on this board has outputs to score; give a table of scores'
    )
  if metric.kind == 'library':
    metric = _with_needs(store, metric, runner, inputs, generators[0])
    runner.metric = metric
  results: dict[tuple[int, str], np.ndarray] = {}
  seconds = []
  for generator in generators:
    texts = store.outputs(generator.id) or []
    try:
      scored = runs.score_generator(runner, texts, inputs, sets)
    except RunError as error:
      raise BoardError(
        f'{error} (generator {generator.name}); the board is unchanged'
      ) from error
    seconds.append(runner.seconds)
    for reference_set, values in scored.items():
      results[generator.id, reference_set] = values
  metric = dataclasses.replace(
    metric,
    signature=runner.signature,
    seconds=float(np.median(seconds))
    if metric.seconds is None
    else metric.seconds,
  )
  with store.transaction():
    key = changes.add_metric(store, metric, program)
    for (generator_id, reference_set), values in results.items():
      changes.set_scores(store, [(key, generator_id, values)], reference_set)
    if also is not None:
      also()
  complete(store)
  return renewal.renew(store, f'metric {metric.name}')


def _check_new_metric(store: Store, metric: Metric) -> None:
  check_name(metric.name, 'metric')
  if any(m.name == metric.name for m in store.metrics()):
    raise BoardError(
      f'metric {metric.name!r} exists already; choose another name'
    )


def _with_needs(
  store: Store, metric: Metric, runner: Runner, inputs: Texts, first: Generator
) -> Metric:
  """Determines whether a library metric needs references by trying."""
  texts = (store.outputs(first.id) or [])[:1]
  sources = inputs.sources[:1] if inputs.sources else None
  try:
    runner.score(texts, inputs.ids[:1], sources, None)
    needed = False
  except RunError:
    needed = True
  return dataclasses.replace(
    metric, settings={**metric.settings, 'references': needed}
  )


def add_score_file(
  store: Store,
  metric: Metric,
  path: str | os.PathLike[str],
  column: str | None = None,
  also: Callable[[], None] | None = None,
) -> dict[str, Any]:
  """Adds a metric by a table of its scores.

  Args:
    store: The board.
    metric: The description of the metric; its kind becomes 'column'.
    path: The table, with a row for every example of every generator.
    column: The column of scores; None for the only one or the metric's name.
    also: A further change in the same transaction.

  Returns:
    The renewed analyses.

  Raises:
    BoardError: The name is taken, or scores are missing; also
      `files.RecordError`.
  """
  _check_new_metric(store, metric)
  generators = store.generators()
  columns = outputs.read_columns(
    path, store.ids(), generators, [column] if column else None
  )
  if column is None and len(columns) > 1:
    column = metric.name if metric.name in columns else None
    if column is None:
      raise BoardError(
        f'{path}: several columns ({", ".join(columns)}); choose one'
      )
  values = columns[column] if column else next(iter(columns.values()))
  for generator in generators:
    there = values.get(generator.id)
    if there is None or np.isnan(there).any():
      count = store.size() if there is None else int(np.isnan(there).sum())
      raise BoardError(
        f'{path}: no score for {count} outputs of {generator.name!r}; a metric'
        ' must score every generator'
      )
  metric = dataclasses.replace(
    metric,
    kind='column',
    signature=metric.signature or f'metric:{metric.name}|scores:imported',
  )
  with store.transaction():
    key = changes.add_metric(store, metric)
    sign = -1.0 if metric.negated else 1.0
    changes.set_scores(
      store, ((key, g, sign * column) for g, column in values.items()), GIVEN
    )
    if also is not None:
      also()
  complete(store)
  return renewal.renew(store, f'metric {metric.name}')


def add_human(
  store: Store,
  path: str | os.PathLike[str],
  name: str | None = None,
  column: str | None = None,
  replace: bool = False,
  choose: bool = False,
  also: Callable[[], None] | None = None,
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
    also: A further change in the same transaction.

  Returns:
    The renewed analyses.

  Raises:
    BoardError: Different ratings exist, or the column is ambiguous; also
      `files.RecordError`.
  """
  columns = outputs.read_columns(
    path, store.ids(), store.generators(), [column] if column else None
  )
  if len(columns) > 1:
    raise BoardError(
      f'{path}: several columns ({", ".join(columns)}); choose one'
    )
  only, values = next(iter(columns.items()))
  name = name or store.board().human or only
  with store.transaction():
    changes.add_ratings(store, name, values.items(), replace)
    if choose:
      changes.set_human(store, name)
    if also is not None:
      also()
  return renewal.renew(store, f'human ratings {name}')


def complete(store: Store) -> int:
  """Computes missing scores of metrics that can be run.

  Scores are missing for metrics and generators submitted concurrently, and for
  reference sets of new roles. Earlier failures are not retried.

  Returns:
    The number of pairs of metric and generator that were scored.
  """
  done = 0
  sets = data.reference_sets(store)
  inputs = _texts(store)
  scored, failed = store.scored(), store.failures()
  known_failures = {(metric, generator) for metric, generator, _ in failed}
  for metric in store.metrics():
    if metric.kind not in _RUNNABLE:
      continue
    wanted = sets if metric.settings.get('references') else [GIVEN]
    runner = None
    for generator in store.generators():
      missing = [
        s for s in wanted if (metric.id, generator.id, s) not in scored
      ]
      if (
        not missing
        or not generator.has_outputs
        or (metric.id, generator.id) in known_failures
      ):
        continue
      try:
        runner = runner or _runner(store, metric)
        texts = store.outputs(generator.id) or []
        results = runs.score_generator(runner, texts, inputs, missing)
      except RunError as error:
        changes.set_failure(store, metric.id, generator.id, GIVEN, str(error))
        continue
      with store.transaction():
        for reference_set, values in results.items():
          changes.set_scores(
            store, [(metric.id, generator.id, values)], reference_set
          )
      done += 1
  return done
