r"""Segments: one hypothesis each, with its source, references and ratings.

Reads and writes parallel plain text, TSV with a header, and JSONL, in order;
errors name file, line and field. `data/files.py` documents line ends, gzip, `-`
and byte order marks.

The fields, columns in TSV and keys in JSONL:

    source, hypothesis, reference, reference_2, reference_3, ...,
    system, document, segment, language_pair

`hypothesis` is required. Any other column can be read as a human rating
(`ratings=('da_z',)`) and is ignored otherwise. `columns={'reference': 'ref_A'}`
names the column of a field; that column serves no other field.

An empty TSV cell is an empty text for `hypothesis` and a missing value for
every other field. JSONL distinguishes an empty text ('') from a missing value
(null, or no such key), and its `reference` may be a list.

The syntax of TSV and JSONL is in `data/tables.py`, tokenization in
`data/vocab.py`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsFloat

from t5score_jax.data import files, numbers, tables
from t5score_jax.data.files import RecordError
from t5score_jax.errors import UsageError

#: The fields by name; further references are `reference_2`, `reference_3`, ...
FIELDS = (
  'source',
  'hypothesis',
  'reference',
  'system',
  'document',
  'segment',
  'language_pair',
)
_IDS = ('system', 'document', 'segment', 'language_pair')
_REFERENCE = re.compile(r'reference(?:_([0-9]+))?')


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
  """One hypothesis with its source, references, ids and human ratings.

  Attributes:
    hypothesis: The evaluated text; may be empty.
    source: The text that was translated or summarized.
    references: Human-written texts, any number.
    system: The system that produced the hypothesis.
    document: The document's id.
    segment: The segment's id, the same for all systems' outputs.
    language_pair: For example `zh-en`.
    ratings: Finite human ratings by name.
  """

  hypothesis: str
  source: str | None = None
  references: tuple[str, ...] = ()
  system: str | None = None
  document: str | None = None
  segment: str | None = None
  language_pair: str | None = None
  ratings: Mapping[str, float] = dataclasses.field(
    default_factory=dict, hash=False
  )

  def __post_init__(self) -> None:
    references: object = self.references
    if isinstance(references, str):
      raise TypeError(
        f'references is one string; give a tuple of strings: ({references!r},)'
      )
    object.__setattr__(self, 'references', tuple(self.references))


def read_parallel(
  hypotheses: Mapping[str, str | os.PathLike[str]],
  references: Sequence[str | os.PathLike[str]] = (),
  source: str | os.PathLike[str] | None = None,
) -> list[Segment]:
  """Reads parallel plain text: line n of every file is segment n.

  Args:
    hypotheses: The file of each system, by the system's name.
    references: Any number of reference files.
    source: The source file.

  Returns:
    All segments of the first system, then of the second, and so on. `segment`
    is the line number, counted from 1.

  Raises:
    RecordError: The files differ in their number of lines, or a file is not
      readable text.
    UsageError: No hypotheses, or standard input would be read twice.
    OSError: A file cannot be opened.
  """
  if not hypotheses:
    raise UsageError('no hypotheses: give at least one file')
  paths = [*hypotheses.values(), *references]
  if source is not None:
    paths.append(source)
  if [os.fspath(path) for path in paths].count('-') > 1:
    raise UsageError(
      "standard input ('-') can be read once only; give files for the rest"
    )
  # A file that is both hypothesis and reference is read once.
  texts = {path: files.read_lines(path) for path in dict.fromkeys(paths)}
  longest = max(paths, key=lambda path: len(texts[path]))
  for path in paths:
    if len(texts[path]) != len(texts[longest]):
      raise RecordError(
        f'the file ends after {len(texts[path])} lines, but {longest} has'
        f' {len(texts[longest])}; parallel files need one line per segment,'
        ' which may be empty',
        path=path,
        line=len(texts[path]) + 1,
      )
  shared = list(zip(*(texts[path] for path in references), strict=True))
  return [
    Segment(
      hypothesis=hypothesis,
      source=None if source is None else texts[source][index],
      references=shared[index] if references else (),
      system=system,
      segment=str(index + 1),
    )
    for system, path in hypotheses.items()
    for index, hypothesis in enumerate(texts[path])
  ]


def read_records(
  path: str | os.PathLike[str],
  format: str | None = None,
  columns: Mapping[str, str] | None = None,
  ratings: Sequence[str] = (),
  quoting: str = 'none',
  where: Mapping[str, Sequence[str]] | None = None,
) -> list[Segment]:
  """Reads all records of a TSV or JSONL file; see `stream_records`."""
  return list(stream_records(path, format, columns, ratings, quoting, where))


def stream_records(
  path: str | os.PathLike[str],
  format: str | None = None,
  columns: Mapping[str, str] | None = None,
  ratings: Sequence[str] = (),
  quoting: str = 'none',
  where: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Segment]:
  """Reads the records of a TSV or JSONL file, one at a time, in order.

  Args:
    path: The file, compressed with gzip or not, or `-` for standard input.
    format: `'tsv'` or `'jsonl'`. By default it follows from the suffix (`.tsv`,
      `.jsonl`, also with `.gz`) or, for other names, from the first line: JSONL
      begins with `{`.
    columns: The columns of fields and ratings whose names differ:
      `{'reference': 'ref_A', 'reference_2': 'ref_B'}`.
    ratings: Names of the human ratings to read. A segment may lack them: an
      empty cell, null, or a missing key.
    quoting: `'none'` if quotation marks in TSV cells are text, `'csv'` if cells
      may be in double quotes as in CSV files and contain tabs and line ends.
    where: Selects rows whose cell of a column matches one of its patterns, in
      which `*` is any text: `{'year': ['2015', '2016'], 'lp': ['*-en']}`.

  Yields:
    The segments.

  Raises:
    RecordError: A line is not a record: too few or too many fields, no
      hypothesis, a rating that is not a finite number, a missing or repeated
      column, a gap in the references.
    UsageError: An argument has an invalid value.
    OSError: The file cannot be opened.
  """
  columns = _checked_columns(columns, ratings)
  path = os.fspath(path)
  plans: dict[tuple[str, ...], _Plan] = {}
  with files.open_text(path) as lines:
    table = tables.read_table(lines, path, format, quoting)
    if table.header is not None:
      plans[table.header] = _plan(table.header, columns, ratings, path, 1)
      _check_present(plans, columns, ratings, path)
    for line, row in table.rows:
      if where and not _chosen(row, where, path, line):
        continue
      names = tuple(row)
      if names not in plans:
        plans[names] = _plan(names, columns, ratings, path, line)
      yield _segment(row, plans[names], path, line, table.format == 'tsv')
    if plans:
      _check_present(plans, columns, ratings, path)


def _chosen(
  row: Mapping[str, Any],
  where: Mapping[str, Sequence[str]],
  path: str,
  line: int,
) -> bool:
  """Whether a row matches the patterns."""
  for column, patterns in where.items():
    if column not in row:
      raise RecordError(
        f'there is no column {column!r} to select rows by.'
        + tables.suggest(column, row),
        path=path,
        line=line,
        field=column,
      )
    cell = str(row[column])
    if not any(fnmatch.fnmatchcase(cell, pattern) for pattern in patterns):
      return False
  return True


def _checked_columns(
  columns: Mapping[str, str] | None, ratings: Sequence[str]
) -> dict[str, str]:
  """Checks the names of fields and ratings."""
  if isinstance(ratings, str):
    raise UsageError(f'ratings is one string; give a list: [{ratings!r}]')
  for name in ratings:
    if name in FIELDS or _REFERENCE.fullmatch(name):
      raise UsageError(f'a rating cannot be called {name!r}: that is a field')
  for field in columns or {}:
    if not (is_field(field) or field in ratings):
      raise UsageError(
        f'columns: there is no field {field!r}.'
        + tables.suggest(field, [*FIELDS, 'reference_2', *ratings])
      )
  return dict(columns or {})


def is_field(name: str) -> bool:
  """Whether `columns` can have the name: a field, or a further reference."""
  return name in FIELDS or _number_of(name) > 0


def _number_of(field: str) -> int:
  """1 for 'reference', n for 'reference_n' from 2 on, 0 for anything else."""
  match = _REFERENCE.fullmatch(field)
  if not match:
    return 0
  if match[1] is None:
    return 1
  return int(match[1]) if match[1][0] != '0' and match[1] != '1' else 0


@dataclasses.dataclass(frozen=True)
class _Plan:
  """The columns of a row's fields, references and ratings."""

  fields: Sequence[tuple[str, str]]
  references: Sequence[str]
  ratings: Sequence[tuple[str, str]]


def _plan(
  names: tuple[str, ...],
  columns: Mapping[str, str],
  ratings: Sequence[str],
  path: str,
  line: int,
) -> _Plan:
  """Assigns the columns of a row to fields and ratings."""
  taken = set(columns.values())
  column_of = {name: name for name in names if name not in taken}
  for field, column in columns.items():
    column_of.pop(field, None)
    if column in names:
      column_of[field] = column
  if 'hypothesis' not in column_of:
    wanted = columns.get('hypothesis', 'hypothesis')
    raise RecordError(
      f'there is no column {wanted!r}; name the one of the hypothesis'
      ' (columns: hypothesis=NAME).' + tables.suggest(wanted, names),
      path=path,
      line=line,
      field='hypothesis',
    )
  numbered = sorted(
    (_number_of(field), column)
    for field, column in column_of.items()
    if _REFERENCE.fullmatch(field)
  )
  for count, (number, column) in enumerate(numbered, 1):
    if number != count:
      raise RecordError(
        'the references must be called reference, reference_2, reference_3,'
        f' ... without gaps; reference number {count} is missing',
        path=path,
        line=line,
        field=column,
      )
  return _Plan(
    fields=[
      (field, column_of[field])
      for field in FIELDS
      if field in column_of and field != 'reference'
    ],
    references=[column for _, column in numbered],
    ratings=[(name, column_of[name]) for name in ratings if name in column_of],
  )


def _check_present(
  plans: Iterable[tuple[str, ...]],
  columns: Mapping[str, str],
  ratings: Sequence[str],
  path: str,
) -> None:
  """Raises RecordError if no row has a requested column."""
  present = dict.fromkeys(name for names in plans for name in names)
  wanted = [*columns.values(), *(columns.get(name, name) for name in ratings)]
  for name in wanted:
    if name not in present:
      raise RecordError(
        f'there is no column {name!r}.' + tables.suggest(name, present),
        path=path,
        field=name,
      )


def _segment(
  row: Mapping[str, Any], plan: _Plan, path: str, line: int, tsv: bool
) -> Segment:
  """Converts a row, of strings in TSV and of JSON values in JSONL."""

  def fail(column: str, problem: str) -> RecordError:
    return RecordError(problem, path=path, line=line, field=column)

  def text_of(column: str, value: Any, empty: bool = False) -> str | None:
    if value is None or isinstance(value, str):
      return value if value or empty or not tsv else None
    raise fail(column, f'{value!r} is not a text; put it in quotes')

  values: dict[str, Any] = {}
  for field, column in plan.fields:
    value = row[column]
    if field in _IDS and type(value) is int:
      value = str(value)
    values[field] = text_of(column, value, empty=field == 'hypothesis')
  if values['hypothesis'] is None:
    raise fail(
      dict(plan.fields)['hypothesis'],
      "null is not a hypothesis; write '' for an empty one",
    )
  references: list[str] = []
  gap = None
  for column in plan.references:
    value = row[column]
    for item in value if type(value) is list else [value]:
      text = text_of(column, item)
      if text is None:
        gap = gap or column
      elif gap:
        raise fail(
          gap,
          f'no text here, but there is one in {column!r}; fill the references'
          ' from the first on',
        )
      else:
        references.append(text)
  ratings = {}
  for name, column in plan.ratings:
    if (value := row[column]) is not None and value != '':
      ratings[name] = numbers.read(value, path=path, line=line, field=column)
  return Segment(references=tuple(references), ratings=ratings, **values)


def write_records(
  path: str | os.PathLike[str],
  segments: Iterable[Segment],
  format: str | None = None,
  *,
  values: Mapping[str, Sequence[SupportsFloat]] | None = None,
  fields: Sequence[str] = FIELDS,
) -> None:
  """Writes records as TSV or JSONL, atomically; `read_records` reads them.

  JSONL can represent every segment. In TSV, tabs, line ends and empty texts
  other than the hypothesis are errors. Fields that no segment has are omitted.

  Args:
    path: The file; `-` is standard output, a name in `.gz` is compressed.
    segments: The segments. JSONL consumes them one at a time.
    format: `'tsv'` or `'jsonl'`; by default from the file's suffix.
    values: Numbers to write beside the segments, one per segment, by name; for
      example `{'score': scores.values}`. float32 keeps its own precision.
    fields: The fields to write; ratings and values are always written.

  Raises:
    RecordError: A text cannot be represented, or a number is not finite.
    UsageError: No format, an unknown field, a name used twice, or another
      number of values than of segments.
    OSError: The file cannot be written.
  """
  for field in fields:
    if field not in FIELDS:
      raise UsageError(f'no field {field!r}.' + tables.suggest(field, FIELDS))

  def order(column: str) -> tuple[int, int]:
    number = _number_of(column)
    field = 'reference' if number else column
    place = fields.index(field) if field in fields else len(fields)
    return place, number

  tables.write_table(
    path,
    _rows(segments, values or {}, fields),
    format,
    order=order,
    required=[field for field in fields if field == 'hypothesis'],
  )


def _rows(
  segments: Iterable[Segment],
  values: Mapping[str, Sequence[SupportsFloat]],
  fields: Sequence[str],
) -> Iterator[dict[str, str | float]]:
  """Yields the row of each segment."""
  total = 0
  for total, segment in enumerate(segments, 1):
    row: dict[str, str | float] = {}
    for field in fields:
      if field == 'reference':
        for n, text in enumerate(segment.references, 1):
          row['reference' if n == 1 else f'reference_{n}'] = text
      elif (text := getattr(segment, field)) is not None:
        row[field] = text
    numbers = {
      name: column[total - 1]
      for name, column in values.items()
      if total <= len(column)
    }
    for name, value in [*segment.ratings.items(), *numbers.items()]:
      if name in row or name in FIELDS or _REFERENCE.fullmatch(name):
        raise UsageError(f'the name {name!r} is used twice; rename one')
      # str() prints the digits of a float32; float() alone adds spurious ones.
      row[name] = float(str(value))
    yield row
  for name, column in values.items():
    if len(column) != total:
      raise UsageError(f'{len(column)} values of {name!r}, {total} segments')
