"""`t5score score` with several metrics: one table of systems and metrics.

Texts are read once. Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.commands import _score_output, _text_files, _usage
from t5score_jax.data import files, records
from t5score_jax.data import tables as data_tables
from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError, UsageError
from t5score_jax.evaluation.clusters import LEVEL
from t5score_jax.evaluation.reports import tables
from t5score_jax.metrics import base, systems
from t5score_jax.runtime import processes

FORMATS = ('text', 'tsv', 'jsonl', 'latex', 'markdown')

Values = Mapping[str, Sequence[systems.SystemScore]]


def add_arguments(group: Any) -> None:
  """Declares the options of the table."""
  group.add_argument(
    '--table',
    choices=FORMATS,
    help='print one table of systems and metrics in this format, with '
    'intervals and significance marks; scores of segments are only written to '
    '-o (default: text with several -m, else no table)',
  )
  group.add_argument(
    '--baseline',
    metavar='SYSTEM',
    help='of --table: the system with which the others are compared by the '
    'paired bootstrap (default: the first)',
  )
  group.add_argument(
    '--digits',
    type=_usage.decimals,
    metavar='N',
    help='of --table: decimals of scores (default: 4)',
  )


def check(args: argparse.Namespace, several: bool) -> str | None:
  """Checks the options of the table.

  Args:
    args: The parsed arguments.
    several: Whether several metrics were chosen.

  Returns:
    The table's format; None for none.

  Raises:
    UsageError: An option has no effect.
  """
  format: str | None = args.table or ('text' if several else None)
  if format is None:
    _usage.refuse(args, ('baseline', 'digits'), 'is for a table (--table)')
    return None
  _usage.refuse(args, ('calibration', 'spans'), 'is not for tables')
  if args.output == '-':
    _usage.refuse(args, ('format',), 'is for -o OUT, beside a table')
  if several:
    tokens = {'token_log_probs': '--tokens'}
    _usage.refuse(args, tokens, 'is for one metric', tokens)
    if args.format == 'text':
      raise UsageError('--format text is for one metric')
  return format


def score(
  segments: Sequence[Segment],
  chosen: Sequence[metric_arguments.Chosen],
  quiet: bool,
) -> dict[str, base.Scores]:
  """Scores segments with one metric after the other, by label."""
  for one in chosen:
    one.check()
  scores = {}
  for one in chosen:
    # One model at a time in memory.
    metric = one.load()
    with _score_output.scoring_bar(metric, quiet):
      scores[one.label] = metric.score_segments(segments)
  return scores


def run(
  args: argparse.Namespace,
  chosen: Sequence[metric_arguments.Chosen],
  format: str,
  segment_format: str,
) -> int:
  """Scores, writes the segments' scores to -o, and prints the table."""
  segments = _text_files.read_segments(args)
  if not segments:
    raise InputError('no segments; nothing was scored')
  if args.baseline is not None:
    names = [s.system or '' for s in segments]
    if args.baseline not in names:
      raise UsageError(
        f'--baseline: no system {args.baseline!r};'
        + data_tables.suggest(args.baseline, dict.fromkeys(names))
      )
  scores = score(segments, chosen, args.quiet or not processes.is_first())
  if args.output != '-':
    processes.on_first(
      lambda: _write_scores(args.output, segments, scores, segment_format)
    )
  if not processes.is_first():
    return 0
  values, notes = systems.compare(
    segments, scores, args.baseline, args.bootstrap, args.seed
  )
  notes = [f'note: {note}' for note in notes]
  for name, one in scores.items():
    if one.cut:
      notes.append(f'cut ({name}): {one.cut} longer than the model reads')
    notes += [f'note ({name}): {note}' for note in one.notes]
    notes.append(f'signature ({name}): {one.signature}')
  notes += [f'note: {n}' for n in _text_files.notes(segments)]
  lines = [*_legend(args, values), *notes]
  if format in data_tables.FORMATS:
    rows = list(_rows(values))
    columns = [*dict.fromkeys(name for row in rows for name in row)]
    rows = [{n: v for n, v in row.items() if v is not None} for row in rows]
    data_tables.write_table('-', rows, format, order=columns.index)
  else:
    text = lay_out(values, format, 4 if args.digits is None else args.digits)
    with files.write_atomically('-') as out:
      out.write(text + '\n')
  to = sys.stdout if format == 'text' else sys.stderr
  if not args.quiet and to is not None:
    print(*lines, sep='\n', file=to, flush=True)
  return 0


def _write_scores(
  path: str,
  segments: Sequence[Segment],
  scores: Mapping[str, base.Scores],
  format: str,
) -> None:
  """Writes a line for each segment: ids, scores by label, components.

  Raises:
    files.RecordError: An id can't be written.
    OSError: The file can't be written.
  """
  if len(scores) == 1:
    (one,) = scores.values()
    _score_output.write_scores(path, segments, one, format)
    return
  columns: dict[str, Any] = {}
  for name, one in scores.items():
    columns[name] = one.values
    for part, column in one.components.items():
      columns[f'{name}.{part}'] = column
  records.write_records(
    path, segments, format=format, values=columns, fields=_score_output.IDS
  )


def _legend(args: argparse.Namespace, values: Values) -> Iterator[str]:
  """Explains the marks, if there are tests."""
  entries = [entry for column in values.values() for entry in column]
  if not any(entry.p_value is not None for entry in entries):
    return
  baseline = args.baseline or entries[0].system
  yield (
    f'+ / -: significantly better / worse than {baseline} (paired bootstrap, '
    f'{args.bootstrap} resamples, seed {args.seed}, two-sided p < {LEVEL})'
  )


def lay_out(values: Values, style: str, digits: int) -> str:
  """The table of systems and metrics as text.

  Args:
    values: From `systems.compare`.
    style: 'text', 'latex' or 'markdown'.
    digits: Decimals of scores.
  """
  rows = [['system', 'language pair', 'segments', *values]]
  for entries in zip(*values.values(), strict=True):
    first = entries[0]
    rows.append(
      [
        first.system or '(all)',
        first.language_pair or '',
        str(first.segments),
        *(_cell(entry, digits) for entry in entries),
      ]
    )
  if not any(row[1] for row in rows[1:]):
    rows = [[row[0], *row[2:]] for row in rows]
  return tables.lay_out(rows, style)


def _cell(entry: systems.SystemScore, digits: int) -> str:
  cell = f'{entry.value:.{digits}f}{_mark(entry)}'
  if entry.low is not None:
    cell += f' [{entry.low:.{digits}f}, {entry.high:.{digits}f}]'
  return cell


def _mark(entry: systems.SystemScore) -> str:
  if entry.p_value is None or entry.p_value >= LEVEL or not entry.difference:
    return ''
  return '+' if entry.difference > 0 else '-'


def _rows(values: Values) -> Iterator[dict[str, Any]]:
  """A row per system; None where something is missing."""
  for entries in zip(*values.values(), strict=True):
    first = entries[0]
    row = {
      'system': first.system,
      'language_pair': first.language_pair,
      'segments': first.segments,
    }
    for name, entry in zip(values, entries, strict=True):
      row[name] = entry.value
      row |= {
        f'{name}.low': entry.low,
        f'{name}.high': entry.high,
        f'{name}.p': entry.p_value,
      }
    yield row
