"""`t5score correlate` from texts: scores them with the metrics of -m.

JAX is imported only when a model is loaded. Not a verb by itself (hence the
underscore).
"""

from __future__ import annotations

import argparse

import numpy as np

from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.commands import _score_table, _text_files, _usage
from t5score_jax.errors import InputError, UsageError
from t5score_jax.evaluation import scores
from t5score_jax.metrics import base

_OF_FILES = ('where', 'test_set', 'reference', 'by_line', 'mqm_weights')
_NEEDS = 'is for texts (-m with -t or --input)'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares metrics and texts."""
  group = parser.add_argument_group('texts, scored with one or more -m')
  metric_arguments.add_choice(group, several=True, named=False)
  _text_files.add_arguments(group)
  metric_arguments.add_model_options(parser, tokens=False)


def labels(args: argparse.Namespace) -> list[str]:
  """The names of the metrics that score texts; none without texts.

  Raises:
    UsageError: Arguments contradict each other.
  """
  if not args.model:
    metric_arguments.refuse(args, _NEEDS)
    flags = {'hypotheses': '-t', 'references': '-r', 'source': '-s'}
    _usage.refuse(args, [*flags, 'input'], _NEEDS, flags)
    return []
  if not args.files:
    _usage.refuse(args, _OF_FILES, 'is for score files')
  if not (args.hypotheses or args.input):
    raise UsageError('-m scores texts: give -t HYP..., or --input FILE')
  return [one.label for one in metric_arguments.chosen(args)]


def of_files(args: argparse.Namespace) -> argparse.Namespace:
  """The arguments for score files; --columns and --quoting are for --input."""
  if not args.input:
    return args
  changed = {'columns': None, 'quoting': None}
  return argparse.Namespace(**{**vars(args), **changed})


def score(args: argparse.Namespace) -> scores.ScoreTable:
  """Scores the texts.

  Returns:
    A table, as of a file, with a column per metric and, from --input without
    score files, the human scores.

  Raises:
    InputError: There are no texts, or a metric needs others.
    RecordError: A file is malformed.
  """
  rated = args.input and args.human and not args.files
  segments = _text_files.read_segments(args, [args.human] if rated else [])
  if not segments:
    raise InputError('no segments; nothing was scored')
  scored = _score_table.score(
    segments, metric_arguments.chosen(args), quiet=False
  )
  values = {
    name: np.asarray(one.values, np.float64) for name, one in scored.items()
  }
  if rated:
    if args.human in values:
      raise UsageError(f'{args.human!r} is both human scores and a metric')
    values[args.human] = np.array(
      [s.ratings.get(args.human, np.nan) for s in segments]
    )
  pair = args.language_pair or ''
  rows = [
    (s.language_pair or pair, s.system or '', s.segment or '') for s in segments
  ]
  keys = tuple(
    name
    for name, column in zip(scores.KEYS, zip(*rows, strict=True), strict=True)
    if any(column)
  )
  lines = np.arange(1, len(rows) + 1)
  return scores.ScoreTable(
    args.input or 'the texts',
    keys,
    rows,
    lines + (1 if args.input else 0),
    values,
    tuple(_notes(scored, args.level == 'system')),
    numbers=tuple(lines.tolist()),
  )


def _notes(scored: dict[str, base.Scores], of_systems: bool) -> list[str]:
  notes = []
  for name, one in scored.items():
    notes.append(f'{name}: {one.signature}')
    notes += [f'{name}: {note}' for note in one.notes]
    if one.cut:
      notes.append(f'{name}: {one.cut} longer than the model reads were cut')
    if of_systems and one.corpus is not None:
      notes.append(
        f"{name}: a system's score is here the mean over its segments, not "
        'computed over the corpus'
      )
  return notes
