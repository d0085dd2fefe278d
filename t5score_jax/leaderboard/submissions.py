"""Generators, metrics and ratings join a board, and everything is renewed.

A generator is scored by every metric that can be run, a metric scores every
generator, and then the ensemble and the analyses are renewed as a new version.
Scoring is done before anything is written: a kill leaves the board as it was.
Two submitters at once cannot miss each other: what one did not know of when it
scored is scored afterwards (`complete`).
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

#: The greatest executable, in bytes.
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
  """A generator joins: validated, scored by every metric, ranked.

  Args:
    store: The board.
    generator: Who it is.
    path: Its outputs (`outputs.read_outputs`).
    scores: A table of its scores by metrics that cannot be run here.
    also: Done in the same transaction: both happen, or neither.

  Returns:
    The renewed analyses. A metric that failed on it is noted there as missing.

  Raises:
    BoardError: The name is taken, or something in a file is not right (as
      `files.RecordError`); the board is as it was.
  """
  check_name(generator.name, 'generator')
  if any(g.name == generator.name for g in store.generators()):
    raise BoardError(
      f'there is a generator {generator.name!r} already; choose another name'
    )
  texts = outputs.read_outputs(path, store.ids())
  given = _given_scores(store, generator, scores) if scores else {}
  found, failed = _score_everything(store, texts)
  with store.transaction():
    key = changes.add_generator(store, generator, texts)
    for (metric, reference_set), values in {**found, **given}.items():
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
  """Scores that came with a generator, for metrics that cannot be run."""
  columns = outputs.read_columns(
    path,
    store.ids(),
    [dataclasses.replace(generator, id=0)],
    generator=generator.name,
  )
  known = {m.name: m for m in store.metrics() if m.kind not in _RUNNABLE}
  found = {}
  for name, values in columns.items():
    if name not in known:
      raise BoardError(
        f'{path}: {name!r} is no metric whose scores come as a table; there'
        f' are: {", ".join(known) or "none"}'
      )
    column = values[0]
    if np.isnan(column).any():
      raise BoardError(f'{path}: {name!r} has no score for some inputs')
    metric = known[name]
    found[metric.id, GIVEN] = -column if metric.negated else column
  return found


def _score_everything(
  store: Store, texts: Sequence[str]
) -> tuple[dict[tuple[int, str], np.ndarray], dict[int, str]]:
  """Every metric's scores of new outputs, and the metrics that failed."""
  found: dict[tuple[int, str], np.ndarray] = {}
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
        found[metric.id, reference_set] = values
  return found, failed


def library_metric(
  name: str,
  options: Mapping[str, Any] | None = None,
  title: str | None = None,
  **told: Any,
) -> Metric:
  """A metric of this library, as a board keeps it.

  Args:
    name: Its name for `metrics.registry.load_metric`.
    options: Its options.
    title: Its name on the board; None for the same.
    **told: Further fields of `Metric`.

  Returns:
    The metric; whether it needs references is found out when it is added.
  """
  return Metric(
    name=title or name,
    kind='library',
    settings={'metric': name, 'options': dict(options or {})},
    **told,
  )


def command_metric(
  title: str,
  program: bytes,
  references: bool = True,
  several: str = 'max',
  limits: Mapping[str, Any] | None = None,
  isolation: str = 'required',
  **told: Any,
) -> Metric:
  """An executable as a metric; `runs` says what it reads and prints.

  Args:
    title: Its name on the board.
    program: The file.
    references: Whether it uses references.
    several: 'own': it takes several references; 'max' or 'mean': it is run
      with each (the paper takes the greatest).
    limits: Of `sandbox.Limits`, where they are not the default.
    isolation: 'required', or 'none' for a program that is trusted.
    **told: Further fields of `Metric`.

  Returns:
    The metric. Its signature has a digest of the program.

  Raises:
    BoardError: The program is empty or too large, or `several` is unknown.
  """
  if several not in data.SEVERAL:
    raise BoardError(f'several must be one of {data.SEVERAL}')
  if not 0 < len(program) <= MAX_PROGRAM:
    raise BoardError(
      f'an executable has 1 to {MAX_PROGRAM} bytes, not {len(program)}'
    )
  told.setdefault(
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
    **told,
  )


def add_metric(
  store: Store,
  metric: Metric,
  program: bytes | None = None,
  also: Callable[[], None] | None = None,
) -> dict[str, Any]:
  """A metric joins: run on every generator that has outputs, then ranked.

  Args:
    store: The board.
    metric: From `library_metric` or `command_metric`.
    program: The executable of a command.
    also: Done in the same transaction.

  Returns:
    The renewed analyses.

  Raises:
    BoardError: The name is taken, or the metric failed on a generator; the
      board is as it was.
  """
  _check_new_metric(store, metric)
  folder = os.path.dirname(os.path.realpath(store.path))
  runner = Runner(metric, program, [folder])
  inputs, sets = _texts(store), data.reference_sets(store)
  generators = [g for g in store.generators() if g.has_outputs]
  if not generators:
    raise BoardError(
      'no generator on this board has outputs, so that no metric can be run;'
      ' give a table of scores'
    )
  if metric.kind == 'library':
    metric = _with_needs(store, metric, runner, inputs, generators[0])
    runner.metric = metric
  found: dict[tuple[int, str], np.ndarray] = {}
  seconds = []
  for generator in generators:
    texts = store.outputs(generator.id) or []
    try:
      scored = runs.score_generator(runner, texts, inputs, sets)
    except RunError as error:
      raise BoardError(
        f'{error} (generator {generator.name}); the board is as it was'
      ) from error
    seconds.append(runner.seconds)
    for reference_set, values in scored.items():
      found[generator.id, reference_set] = values
  metric = dataclasses.replace(
    metric,
    signature=runner.signature,
    seconds=float(np.median(seconds))
    if metric.seconds is None
    else metric.seconds,
  )
  with store.transaction():
    key = changes.add_metric(store, metric, program)
    for (generator_id, reference_set), values in found.items():
      changes.set_scores(store, [(key, generator_id, values)], reference_set)
    if also is not None:
      also()
  complete(store)
  return renewal.renew(store, f'metric {metric.name}')


def _check_new_metric(store: Store, metric: Metric) -> None:
  check_name(metric.name, 'metric')
  if any(m.name == metric.name for m in store.metrics()):
    raise BoardError(
      f'there is a metric {metric.name!r} already; choose another name'
    )


def _with_needs(
  store: Store, metric: Metric, runner: Runner, inputs: Texts, first: Generator
) -> Metric:
  """Finds out whether a library metric needs references: tries without."""
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
  """A metric joins by a table of its scores.

  Args:
    store: The board.
    metric: Its name and description; its kind becomes 'column'.
    path: The table, with a row for every example of every generator.
    column: The column of scores; None for the only one, or the metric's name.
    also: Done in the same transaction.

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
        f'{path}: several columns ({", ".join(columns)}); say which one'
      )
  values = columns[column] if column else next(iter(columns.values()))
  for generator in generators:
    there = values.get(generator.id)
    if there is None or np.isnan(there).any():
      count = store.size() if there is None else int(np.isnan(there).sum())
      raise BoardError(
        f'{path}: no score for {count} outputs of {generator.name!r}; a metric'
        ' scores every generator'
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
  """Human ratings join.

  Args:
    store: The board.
    path: TSV or JSONL: system, id, and a column of ratings; higher is better.
    name: What the ratings are called; None for the board's own, or for the
      column's name.
    column: The column; None for the only one.
    replace: Whether a rating may take the place of another.
    choose: Whether these become the ratings that count.
    also: Done in the same transaction.

  Returns:
    The renewed analyses.

  Raises:
    BoardError: Ratings are there already, or the column is not clear; also
      `files.RecordError`.
  """
  columns = outputs.read_columns(
    path, store.ids(), store.generators(), [column] if column else None
  )
  if len(columns) > 1:
    raise BoardError(
      f'{path}: several columns ({", ".join(columns)}); say which one'
    )
  found, values = next(iter(columns.items()))
  name = name or store.board().human or found
  with store.transaction():
    changes.add_ratings(store, name, values.items(), replace)
    if choose:
      changes.set_human(store, name)
    if also is not None:
      also()
  return renewal.renew(store, f'human ratings {name}')


def complete(store: Store) -> int:
  """Computes the scores that are missing and can be computed.

  What is missing: pairs of metric and generator that joined at the same time,
  and reference sets that became needed. Pairs that failed are left alone.

  Returns:
    How many pairs were scored.
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
        found = runs.score_generator(runner, texts, inputs, missing)
      except RunError as error:
        changes.set_failure(store, metric.id, generator.id, GIVEN, str(error))
        continue
      with store.transaction():
        for reference_set, values in found.items():
          changes.set_scores(
            store, [(metric.id, generator.id, values)], reference_set
          )
      done += 1
  return done
