"""Reads candidates of segments from JSONL or parallel text files.

A line of JSONL is a segment: `candidates`, or `predictions` as `t5score infer`
and `t5score mbr` write them, with `source` (or `inputs`), and optionally
`references` (pseudo-references that replace the candidates), `weights` or
`log_probs`. Not here: the choice among candidates (`mbr/decoding.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5score_jax.data import files, numbers, tables
from t5score_jax.errors import UsageError

WEIGHTS = ('uniform', 'weights', 'log_probs')

_IDS = ('segment', 'document', 'language_pair')


@dataclasses.dataclass(frozen=True)
class Item:
  """A segment and its candidates.

  Attributes:
    candidates: The candidates, at least one; duplicates count as often as they
      occur.
    source: The source text.
    references: The pseudo-references; empty if they are the candidates.
    numbers: A weight or log-probability of each pseudo-reference; empty for
      uniform weights.
    shown: Ids to write with the result.
  """

  candidates: tuple[str, ...]
  source: str | None = None
  references: tuple[str, ...] = ()
  numbers: tuple[float, ...] = ()
  shown: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_jsonl(path: str, weights: str = 'uniform') -> Iterator[Item]:
  """Reads segments from JSONL, as they are needed.

  Args:
    path: The file, compressed or not, or `-`.
    weights: 'uniform', or the field with the numbers of pseudo-references.

  Raises:
    RecordError: A line is not a segment with candidates.
  """
  with files.open_text(path) as lines:
    for line, row in tables.read_table(lines, path, 'jsonl').rows:
      yield _item(row, weights, path, line)


def _item(row: Mapping[str, Any], weights: str, path: str, line: int) -> Item:
  field = 'candidates' if 'candidates' in row else 'predictions'
  if field not in row:
    raise files.RecordError(
      "there are no 'candidates' (or 'predictions')", path=path, line=line
    )
  candidates = _texts(row, field, path, line)
  references: tuple[str, ...] = ()
  if row.get('references') is not None:
    references = _texts(row, 'references', path, line)
  values: tuple[float, ...] = ()
  if weights != 'uniform':
    values = _numbers(row, weights, field, path, line)
    owners = references or candidates
    if len(values) != len(owners):
      raise files.RecordError(
        f'{len(values)} numbers for {len(owners)} texts',
        path=path,
        line=line,
        field=weights,
      )
    if weights == 'weights' and (min(values) < 0 or not sum(values)):
      raise files.RecordError(
        'weights must not be negative, nor all 0',
        path=path,
        line=line,
        field=weights,
      )
  source = row.get('source', row.get('inputs'))
  for name in ('source', 'inputs'):
    if not isinstance(row.get(name), (str, type(None))):
      raise files.RecordError(
        f'{row[name]!r} is not a text', path=path, line=line, field=name
      )
  shown = {name: str(row[name]) for name in _IDS if row.get(name) is not None}
  return Item(candidates, source, references, values, shown)


def _texts(
  row: Mapping[str, Any], field: str, path: str, line: int
) -> tuple[str, ...]:
  """A list of texts, or of objects with a `prediction`."""
  values = row[field]
  if not isinstance(values, list) or not values:
    raise files.RecordError(
      'must be a list of texts, not empty', path=path, line=line, field=field
    )
  texts: list[Any] = [
    value.get('prediction') if isinstance(value, dict) else value
    for value in values
  ]
  for text in texts:
    if not isinstance(text, str):
      raise files.RecordError(
        f'{text!r} is not a text', path=path, line=line, field=field
      )
  return tuple(texts)


def _numbers(
  row: Mapping[str, Any], weights: str, field: str, path: str, line: int
) -> tuple[float, ...]:
  """The row's numbers, or `log_prob` of each of its `predictions`."""
  values = row.get(weights)
  if values is None and weights == 'log_probs' and 'references' not in row:
    items = row[field]
    values = [
      one.get('log_prob') if isinstance(one, dict) else None for one in items
    ]
  if not isinstance(values, list):
    raise files.RecordError(
      'is missing; --weights names it', path=path, line=line, field=weights
    )
  return tuple(
    numbers.read(value, path=path, line=line, field=weights) for value in values
  )


def read_texts(
  candidates: Sequence[str],
  source: str | None = None,
  references: Sequence[str] = (),
  count: int | None = None,
) -> list[Item]:
  """Reads parallel files, one text per line.

  Args:
    candidates: Files with the same number of lines for each segment, in order.
    source: The file of sources, one line per segment.
    references: Likewise for pseudo-references.
    count: Lines per segment in each candidates file; by default, the number of
      lines divided by the number of sources, or 1.

  Raises:
    RecordError: A file does not have this many lines for every segment.
    UsageError: Standard input would be read twice.
  """
  paths = [*candidates, *references, *([source] if source else [])]
  if paths.count('-') > 1:
    raise UsageError('standard input (-) can be only one of the files')
  texts = {path: files.read_lines(path) for path in dict.fromkeys(paths)}
  if source is not None:
    segments = len(texts[source])
  else:
    segments = len(texts[candidates[0]]) // (count or 1)
  chosen = [_divided(texts[p], segments, p, count) for p in candidates]
  pseudo = [_divided(texts[p], segments, p, None) for p in references]
  return [
    Item(
      tuple(itertools.chain(*(part[n] for part in chosen))),
      None if source is None else texts[source][n],
      tuple(itertools.chain(*(part[n] for part in pseudo))),
    )
    for n in range(segments)
  ]


def _divided(
  lines: Sequence[str],
  segments: int,
  path: str | os.PathLike[str],
  count: int | None,
) -> list[Sequence[str]]:
  """The lines of each segment."""
  each = count or (len(lines) // segments if segments else 0)
  if each * segments != len(lines) or (segments and not each):
    wanted = f'{each} for each' if count else 'the same number for each'
    raise files.RecordError(
      f'{len(lines)} lines for {segments} segments: give {wanted}', path=path
    )
  return [lines[n * each : (n + 1) * each] for n in range(segments)]
