"""`t5score compare --html`: segments with their texts, for the page.

The page shows tokens of T5Score, and errors written by `t5score score --spans`.

Not a verb itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5score_jax.commands import _text_files, _usage
from t5score_jax.data import error_spans, files, records
from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError, UsageError
from t5score_jax.evaluation import scores as score_files
from t5score_jax.evaluation.paired_tests import Comparison
from t5score_jax.evaluation.reports import comparison_page
from t5score_jax.metrics import base, registry, systems

_MOST = 2000
# A language pair, a system and a segment.
_Key = tuple[str, str, str]
# Systems, segments, and scores [systems, segments].
Part = tuple[Sequence[str], Sequence[str], np.ndarray]
_Errors = Mapping[_Key, Sequence[comparison_page.Error]]


@dataclasses.dataclass(frozen=True)
class Texts:
  """The scores that were compared.

  Attributes:
    name: The metric's name.
    segments: N segments.
    scores: Their scores.
    rows: Indices of segments by language pair, [systems, segments].
    metric: The metric; None for scores from a file.
  """

  name: str
  segments: Sequence[Segment]
  scores: base.Scores
  rows: Mapping[str, np.ndarray]
  metric: base.Metric | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares --html and its options."""
  group = parser.add_argument_group('page of segments')
  group.add_argument(
    '--html',
    metavar='FILE',
    help='also write one HTML file with the tables, and the segments to look '
    'at: where two systems differ most, tokens coloured by probability '
    '(T5Score), errors (--spans), search and filters; it loads nothing',
  )
  group.add_argument(
    '--spans',
    metavar='[NAME=]FILE',
    nargs='+',
    default=[],
    help='errors that `t5score score --spans` wrote; NAME is the system of a '
    'file that does not name it',
  )
  group.add_argument(
    '--html-segments',
    type=_usage.positive,
    metavar='N',
    help=f'segments in the page, those with the most different scores '
    f'(default: {_MOST})',
  )


def check(args: argparse.Namespace, inputs: Sequence[Any]) -> None:
  """Checks the arguments before the work.

  Raises:
    UsageError: Options without --html, or an output that is an input.
    OSError: The page can't be written.
  """
  if args.html is None:
    names = ('spans', 'html_segments')
    _usage.refuse(args, names, 'is for --html')
    return
  spans = [path for _, path in _usage.split_files(args.spans)]
  _usage.check_writable(args.html, [*inputs, *spans, args.output], '--html')


def options(
  args: argparse.Namespace, given: Mapping[str, Any]
) -> dict[str, Any]:
  """The metric's options, including those that the page needs."""
  chosen = registry.choose(args.model, args.metric, 'model' in given).metric
  tokens = 'token_log_probs' in registry.options_of(chosen)
  # A mean over references has no scores of single tokens.
  if args.html and tokens and given.get('reference_rule') != 'mean':
    return {**given, 'token_log_probs': True}
  return dict(given)


def of_scores(
  args: argparse.Namespace,
  tables: Sequence[score_files.ScoreTable],
  parts: Mapping[str, Part],
) -> Texts:
  """The texts of scores, from -t, -r, -s and --input, or from the score files.

  Args:
    args: The parsed arguments.
    tables: The contents of the score files.
    parts: The comparisons by language pair.

  Raises:
    InputError: A score has no text.
    RecordError: A file is malformed.
  """
  beside = args.hypotheses or args.references or args.source or args.input
  found = _texts_beside(args) if beside else _texts_of(args, tables)
  segments: list[Segment] = []
  values: list[float] = []
  rows: dict[str, np.ndarray] = {}
  for pair, (names, ids, scores) in parts.items():
    rows[pair] = len(values) + np.arange(scores.size).reshape(scores.shape)
    values += scores.ravel().tolist()
    for system, segment in itertools.product(names, ids):
      text = found.get((pair, system, segment))
      text = text or found.get(('', system, segment))
      if text is None:
        raise InputError(
          f'--html: {system!r} has a score but no text of segment {segment!r}; '
          'texts are found by language pair, system (-t NAME=HYP) and segment '
          '(the line of -t)'
        )
      segments.append(
        dataclasses.replace(
          text, language_pair=pair or None, system=system, segment=segment
        )
      )
  return Texts(args.score, segments, base.Scores(np.array(values), ''), rows)


def _record_columns(args: argparse.Namespace) -> dict[str, str]:
  """--columns without what is not of texts."""
  given = _usage.assignments(args.columns, '--columns')
  return {name: c for name, c in given.items() if records.is_field(name)}


def _texts_beside(args: argparse.Namespace) -> dict[_Key, Segment]:
  columns = None
  if args.input:
    columns = ','.join(f'{n}={c}' for n, c in _record_columns(args).items())
  own = argparse.Namespace(**{**vars(args), 'columns': columns})
  if not args.input:
    own.quoting = None
  segments = _text_files.read_segments(own)
  return dict(zip(systems.keys(segments), segments, strict=True))


def _texts_of(
  args: argparse.Namespace, tables: Sequence[score_files.ScoreTable]
) -> dict[_Key, Segment]:
  found: dict[_Key, Segment] = {}
  for table in tables:
    if table.path == '-' or not table.numbers:
      raise UsageError(f'--html: give the texts of {table.path} (-t, --input)')
    try:
      segments = records.read_records(
        table.path,
        columns=_record_columns(args),
        quoting=args.quoting or 'none',
      )
    except files.RecordError as error:
      raise InputError(
        f'--html: no texts in a score file; give them (-t, --input): {error}'
      ) from None
    for key, number in zip(table.rows, table.numbers, strict=True):
      found[key] = segments[number - 1]
  return found


def write(
  args: argparse.Namespace,
  texts: Texts,
  comparisons: Mapping[str, Comparison],
  notes: Sequence[str],
) -> None:
  """Writes the page.

  Raises:
    RecordError: A file of errors does not fit the texts.
    OSError: A file can't be read or written.
  """
  errors = read_spans(args.spans, texts.segments) if args.spans else {}
  tokens = _tokens(texts)
  ids = systems.keys(texts.segments)
  outputs = [
    comparison_page.Output(
      segment.hypothesis,
      float(score),
      None if tokens is None else tokens[n],
      errors.get(ids[n]),
    )
    for n, (segment, score) in enumerate(
      zip(texts.segments, texts.scores.values, strict=True)
    )
  ]

  def shown(rows: np.ndarray) -> comparison_page.Shown:
    first, number = texts.segments[rows[0]], ids[rows[0]][2]
    return comparison_page.Shown(
      f'{first.document}: {number}' if first.document else number,
      first.source,
      first.references,
      [outputs[row] for row in rows],
    )

  names = {name: None for c in comparisons.values() for name in c.systems}
  page = comparison_page.render(
    comparisons,
    {pair: list(map(shown, rows.T)) for pair, rows in texts.rows.items()},
    title=f'{" / ".join(names)}: {texts.name}',
    notes=notes,
    digits=args.digits,
    most=args.html_segments or _MOST,
  )
  with files.write_atomically(args.html) as out:
    out.write(page)


def _tokens(texts: Texts) -> list[list[tuple[str, float]]] | None:
  """Each hypothesis's tokens with their log-probabilities, if there are any."""
  by_side = getattr(texts.scores, 'token_log_probs', None) or {}
  side = next((s for s in by_side if s.endswith('precision')), None)
  if side is None or texts.metric is None:
    return None
  metric: Any = texts.metric
  return [
    list(zip(metric.pieces(segment.hypothesis), values.tolist(), strict=True))
    for segment, values in zip(texts.segments, by_side[side], strict=True)
  ]


def read_spans(named: Sequence[str], segments: Sequence[Segment]) -> _Errors:
  """Reads errors, and checks them against their texts.

  Args:
    named: [NAME=]FILE of JSONL: ids, perhaps `hypothesis`, and `errors`, each
      with `start`, `end` (exclusive) and `severity`.
    segments: The texts.

  Raises:
    RecordError: A row is malformed or matches no segment, or an error is
      outside its text.
  """
  texts = {
    key: segment.hypothesis
    for key, segment in zip(systems.keys(segments), segments, strict=True)
  }
  found: dict[_Key, list[comparison_page.Error]] = {}
  for name, path in _usage.split_files(named):
    counts: Counter[tuple[str, str]] = Counter()
    for number, row in error_spans.rows(path):
      pair = str(row.get('language_pair') or '')
      system = str(row.get('system') or name or '')
      counts[pair, system] += 1
      segment = row.get('segment') or counts[pair, system]
      key = (pair, system, str(segment))
      try:
        found.setdefault(key, []).extend(_errors(row, texts.get(key)))
      except InputError as error:
        raise files.RecordError(str(error), path=path, line=number) from None
  return found


def _errors(
  row: Mapping[str, Any], text: str | None
) -> Iterator[comparison_page.Error]:
  if text is None:
    ids = {n: row.get(n) for n in ('language_pair', 'system', 'segment')}
    raise InputError(
      f'no text has the ids {ids}; name the system with NAME=FILE'
    )
  if row.get('hypothesis', text) != text:
    raise InputError(
      f'the errors are of another text: {row["hypothesis"]!r}, not {text!r}'
    )
  for error in row['errors']:
    yield error_spans.check(error, text)
