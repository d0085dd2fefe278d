r"""Segments: one hypothesis each, with what is known about it.

Readers and writers for parallel plain text, TSV with a header, and JSONL. They
keep the order, and an error names file, line and field. How lines end, what
gzip, `-` and a byte order mark do, is said in `files`, whose names for users
stand here as well.

The fields, in TSV as columns and in JSONL as keys:

    source, hypothesis, reference, reference_2, reference_3, ...,
    system, document, segment, language_pair

`hypothesis` must be there. Any other column may be read as a human rating
(`ratings=('da_z',)`) and is ignored otherwise. `columns={'reference': 'ref_A'}`
says which column holds a field; a column named there serves no other field.

TSV has one way to say nothing: an empty cell. It means an empty text for
`hypothesis` and absence for every other field. JSONL tells an empty text ('')
from an absent one (null, or no such key), and `reference` may be a list there.

Not for the syntax of TSV and JSONL (`tables`), nor for tokens (`vocab`).
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsFloat

from t5score_jax.data import tables
from t5score_jax.data.files import (
  RecordError,
  check_writable,
  open_text,
  read_lines,
  write_atomically,
  write_lines,
)

__all__ = [
  'FIELDS',
  'RecordError',
  'Segment',
  'open_text',
  'read_lines',
  'read_parallel',
  'read_records',
  'stream_records',
  'write_atomically',
  'write_lines',
  'write_records',
]

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
# float() also takes '1_000', ' 1 ', 'nan' and other scripts' digits.
_NUMBER = re.compile(r'[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?')


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
  """One hypothesis with its source, references, ids and human ratings.

  Attributes:
    hypothesis: The text that is judged; may be empty.
    source: What was translated or summarized.
    references: Texts by people, any number of them.
    system: What made the hypothesis.
    document: The document's id.
    segment: The segment's id, shared by the systems' versions of it.
    language_pair: For example `zh-en`.
    ratings: Human ratings by name, finite.
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
    if isinstance(self.references, str):
      raise TypeError(
        'references is one string; give a tuple of strings: (text,)'
      )
    object.__setattr__(self, 'references', tuple(self.references))


def read_parallel(
  hypotheses: Mapping[str, str | os.PathLike[str]],
  references: Sequence[str | os.PathLike[str]] = (),
  source: str | os.PathLike[str] | None = None,
) -> list[Segment]:
  """Reads parallel plain text: line n of every file is segment n.

  Args:
    hypotheses: One file for each system, by the system's name.
    references: Any number of reference files.
    source: The source file.

  Returns:
    All segments of the first system, then of the second, ... `segment` is the
    line's number, counted from 1.

  Raises:
    RecordError: The files differ in their number of lines, or a file is not
      readable text.
    ValueError: No hypotheses, or standard input is to be read twice.
    OSError: A file can't be opened.
  """
  if not hypotheses:
    raise ValueError('no hypotheses: give at least one file')
  paths = [*hypotheses.values(), *references]
  if source is not None:
    paths.append(source)
  if [os.fspath(path) for path in paths].count('-') > 1:
    raise ValueError(
      "standard input ('-') can be read once only; give files for the rest"
    )
  # A file that serves twice, as hypothesis and reference, is read once.
  texts = {path: read_lines(path) for path in dict.fromkeys(paths)}
  longest = max(paths, key=lambda path: len(texts[path]))
  for path in paths:
    if len(texts[path]) != len(texts[longest]):
      raise RecordError(
        f'the file ends after {len(texts[path])} lines, but {longest} has'
        f' {len(texts[longest])}; parallel files need a line for every'
        ' segment, an empty one if need be',
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
) -> list[Segment]:
  """Reads all records of a TSV or JSONL file; see `stream_records`."""
  return list(stream_records(path, format, columns, ratings, quoting))


def stream_records(
  path: str | os.PathLike[str],
  format: str | None = None,
  columns: Mapping[str, str] | None = None,
  ratings: Sequence[str] = (),
  quoting: str = 'none',
) -> Iterator[Segment]:
  """Reads the records of a TSV or JSONL file, one at a time, in order.

  Args:
    path: The file, compressed with gzip or not, or `-` for standard input.
    format: `'tsv'` or `'jsonl'`. By default the name decides (`.tsv`, `.jsonl`,
      each also with `.gz`), or, with another name, the first line: JSONL
      begins with `{`.
    columns: Which column holds a field or a rating, where the names differ:
      `{'reference': 'ref_A', 'reference_2': 'ref_B'}`.
    ratings: Names of the human ratings to read. An empty cell, null, or a
      missing key means that the segment has none.
    quoting: Of TSV cells. `'none'`: quotation marks are text. `'csv'`: cells
      may stand in double quotes as in CSV files, and hold tabs and line ends.

  Yields:
    The segments.

  Raises:
    RecordError: A line is not a record: too few or too many fields, no
      hypothesis, a rating that isn't a finite number, a column that occurs
      twice or not at all, a gap in the references, ...
    ValueError: An argument has a value that it can't have.
    OSError: The file can't be opened.
  """
  columns = _checked_columns(columns, ratings)
  path = os.fspath(path)
  with open_text(path) as lines:
    table = tables.read_table(lines, path, format, quoting)
    wanted = {*columns.values(), *(columns.get(name, name) for name in ratings)}
    plans: dict[tuple[str, ...], dict[str, str]] = {}
    if table.header is not None:
      plans[table.header] = _plan(table.header, columns, path, 1)
      _check_present(wanted, plans, path, 1)
    for line, row in table.rows:
      names = tuple(row)
      if names not in plans:
        plans[names] = _plan(names, columns, path, line)
      if table.format == 'tsv':
        kept = plans[names]['hypothesis']
        row = {k: v if v or k == kept else None for k, v in row.items()}
      yield _segment(row, plans[names], columns, ratings, path, line)
    _check_present(wanted, plans, path, None)


def _check_present(
  wanted: Iterable[str],
  plans: Iterable[tuple[str, ...]],
  path: str,
  line: int | None,
) -> None:
  """Raises RecordError if a column was asked for that no row has."""
  present = dict.fromkeys(name for names in plans for name in names)
  for name in sorted(set(wanted) - set(present)):
    raise RecordError(
      f'there is no column {name!r};' + tables.suggest(name, present),
      path=path,
      line=line,
      field=name,
    )


def _checked_columns(
  columns: Mapping[str, str] | None, ratings: Sequence[str]
) -> dict[str, str]:
  """Checks the arguments that say what is read from where."""
  if isinstance(ratings, str):
    raise ValueError(f'ratings is one string; give a list: [{ratings!r}]')
  for name in ratings:
    if name in FIELDS or _REFERENCE.fullmatch(name):
      raise ValueError(f'a rating cannot be called {name!r}: that is a field')
  for field in columns or {}:
    if not (field in FIELDS or field in ratings or _number_of(field)):
      raise ValueError(
        f'columns: there is no field {field!r};'
        + tables.suggest(field, [*FIELDS, 'reference_2', *ratings])
      )
  return dict(columns or {})


def _number_of(field: str) -> int:
  """1 for 'reference', n for 'reference_n' from 2 on, 0 for anything else."""
  match = _REFERENCE.fullmatch(field)
  if not match:
    return 0
  if match[1] is None:
    return 1
  return int(match[1]) if int(match[1]) > 1 and match[1][0] != '0' else 0


def _plan(
  names: tuple[str, ...], columns: Mapping[str, str], path: str, line: int
) -> dict[str, str]:
  """Finds the column of each field among a file's (or a record's) columns.

  The references come in their order, so that `_segment` can go through them.
  """
  taken = set(columns.values())
  plan = {
    field: columns.get(field, field)
    for field in FIELDS
    if columns.get(field) in names or (field in names and field not in taken)
  }
  numbered = {
    **{_number_of(name): name for name in names if name not in taken},
    **{_number_of(f): c for f, c in columns.items() if c in names},
  }
  numbered.pop(0, None)
  for count, number in enumerate(sorted(numbered), 1):
    if number != count:
      raise RecordError(
        f'there is a reference_{number} but no'
        f' reference{f"_{count}" if count > 1 else ""}; number the references'
        ' without gaps: reference, reference_2, reference_3, ...',
        path=path,
        line=line,
        field=numbered[number],
      )
    plan['reference' if count == 1 else f'reference_{count}'] = numbered[number]
  if 'hypothesis' not in plan:
    wanted = columns.get('hypothesis', 'hypothesis')
    raise RecordError(
      f'there is no {wanted!r}; name the column that holds the hypothesis'
      ' (columns: hypothesis=NAME);' + tables.suggest(wanted, names),
      path=path,
      line=line,
      field='hypothesis',
    )
  return plan


def _segment(
  row: Mapping[str, Any],
  plan: Mapping[str, str],
  columns: Mapping[str, str],
  ratings: Sequence[str],
  path: str,
  line: int,
) -> Segment:
  """Makes a Segment of one row; values are str in TSV, JSON's in JSONL."""

  def fail(field: str, problem: str) -> RecordError:
    return RecordError(problem, path=path, line=line, field=field)

  values: dict[str, Any] = {}
  references: list[str] = []
  gap = ''
  for field, column in plan.items():
    value = row[column]
    if value is None:
      if field == 'hypothesis':
        raise fail(column, "null is no hypothesis; an empty one is ''")
      if _number_of(field):
        gap = gap or column
      continue
    if field in _IDS and isinstance(value, int) and value is not True:
      value = str(value)
    texts = value if field == 'reference' and type(value) is list else [value]
    for text in texts:
      if not isinstance(text, str):
        raise fail(column, f'{text!r} is not a string; put it in quotes')
      check_writable(text, '\0', path=path, line=line, field=column)
    if not _number_of(field):
      values[field] = value
      continue
    if gap:
      raise fail(
        gap,
        f'no text here, but there is one in {column!r}; fill the references'
        ' from the first on',
      )
    references += texts
  return Segment(
    references=tuple(references),
    ratings={
      name: number
      for name in ratings
      if (number := _rating(row.get(columns.get(name, name)), fail, name))
      is not None
    },
    **values,
  )


def _rating(
  value: Any, fail: Callable[[str, str], RecordError], name: str
) -> float | None:
  """A rating as a finite float; None where there is none."""
  if value is None:
    return None
  if isinstance(value, str):
    number = float(value) if _NUMBER.fullmatch(value) else math.nan
  elif isinstance(value, (int, float)) and not isinstance(value, bool):
    try:
      number = float(value)
    except OverflowError:
      number = math.inf
  else:
    number = math.nan
  if not math.isfinite(number):
    raise fail(
      name,
      f'{value!r} is not a finite number; write it like -1.5 or 2e-3, and'
      ' leave it out where there is no rating',
    )
  return number


def write_records(
  path: str | os.PathLike[str],
  segments: Iterable[Segment],
  format: str | None = None,
  *,
  values: Mapping[str, Sequence[SupportsFloat]] | None = None,
  fields: Sequence[str] = FIELDS,
) -> None:
  """Writes records as TSV or JSONL, atomically; `read_records` reads them.

  JSONL holds every segment. TSV can't hold tabs or line ends, nor tell an
  empty text from an absent one (but for the hypothesis): those are errors.
  Fields that no segment has are left out.

  Args:
    path: Where to write; `-` is standard output, `.gz` is compressed.
    segments: The segments. JSONL takes them one at a time.
    format: `'tsv'` or `'jsonl'`; by default the name decides.
    values: Numbers to write beside the segments, one for each, by name; for
      example `{'score': scores.values}`. float32 is written in its own
      precision.
    fields: Which fields to write; ratings and values are always written.

  Raises:
    RecordError: A text can't be written, or a number isn't finite.
    ValueError: No format, an unknown field, a name used twice, or values that
      are more or fewer than the segments.
    OSError: The file can't be written.
  """
  for field in fields:
    if field not in FIELDS:
      raise ValueError(f'no field {field!r};' + tables.suggest(field, FIELDS))

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
  """Yields what is written of each segment, by name."""
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
        raise ValueError(f'the name {name!r} is used twice; rename one')
      # str() gives a float32 the digits it has; float() alone adds noise.
      row[name] = float(str(value))
    yield row
  for name, column in values.items():
    if len(column) != total:
      raise ValueError(f'{len(column)} values of {name!r}, {total} segments')
