"""Files of texts with their translations: JSONL, or TSV with a header.

`t5score mine` writes the columns `source` and `target`, `t5score infer`
`inputs` and `prediction`. Not here: pairs of related texts (`data/pairs.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from t5score_jax.data import files, tables
from t5score_jax.data.files import RecordError

#: The columns of mined pairs.
PAIR = ('source', 'target')


def read(
  path: str | os.PathLike[str], *columns: tuple[str, str]
) -> Iterator[tuple[int, str, str]]:
  """Reads two columns of a file.

  Args:
    path: JSONL or TSV, compressed or not.
    *columns: Names of the two columns; of several alternatives, the first that
      the file's first row has.

  Yields:
    The line number, from 1, and the two texts.

  Raises:
    RecordError: A row is malformed, lacks a column, or has no text there.
    OSError: The file cannot be read.
  """
  path = os.fspath(path)
  chosen: tuple[str, str] | None = None
  with files.open_text(path) as lines:
    table = tables.read_table(lines, path)
    if table.header is not None:
      chosen = _choose(columns, table.header, path, 1)
    for line, row in table.rows:
      chosen = chosen or _choose(columns, tuple(row), path, line)
      for name in chosen:
        if not isinstance(row.get(name), str):
          raise RecordError('must be a text', path=path, line=line, field=name)
      yield line, row[chosen[0]], row[chosen[1]]


def read_pairs(
  path: str | os.PathLike[str], *columns: tuple[str, str]
) -> Iterator[tuple[str, str]]:
  """Reads sentence pairs to train on.

  Args:
    path: See `read`.
    *columns: See `read`; by default those of mined pairs.

  Yields:
    Two texts, neither of them empty.

  Raises:
    RecordError: See `read`; or a text is empty.
    OSError: The file cannot be read.
  """
  for line, source, target in read(path, *(columns or (PAIR,))):
    if not (source.strip() and target.strip()):
      raise RecordError(
        'an empty text; mend the line or remove it', path=path, line=line
      )
    yield source, target


def _choose(
  columns: tuple[tuple[str, str], ...],
  present: tuple[str, ...],
  path: str,
  line: int,
) -> tuple[str, str]:
  for pair in columns:
    if set(pair) <= set(present):
      return pair
  wanted = ', or '.join(' and '.join(map(repr, pair)) for pair in columns)
  raise RecordError(
    f'needs the columns {wanted}; there are: {", ".join(present)}',
    path=path,
    line=line,
  )
