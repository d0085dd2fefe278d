"""Error spans marked in hypotheses by annotators or models, as token tags.

A file is JSONL as `t5score score --spans` writes it: `hypothesis`, and `errors`
with `start`, `end` (characters, the end exclusive) and `severity`. Not here:
finding errors (`metrics/_spans.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5score_jax.data import files
from t5score_jax.errors import InputError

#: start, end, severity.
Error = tuple[int, int, str]


def read(
  path: str | os.PathLike[str], severities: Sequence[str]
) -> dict[str, list[Error]]:
  """Reads the errors of hypotheses.

  Args:
    path: The file.
    severities: The known severities.

  Returns:
    Errors by hypothesis. If a hypothesis has several lines, such as those of
    several annotators, their errors are joined.

  Raises:
    RecordError: A line is not such an object, or an error is outside its text
      or has an unknown severity.
    OSError: The file can't be read.
  """
  found: dict[str, list[Error]] = {}
  for number, row in rows(path):
    text = row.get('hypothesis')
    try:
      if not isinstance(text, str):
        raise InputError('a line needs the hypothesis, as a text')
      errors = [check(one, text) for one in row['errors']]
      for *_, severity in errors:
        if severity not in severities:
          raise InputError(
            f'severity {severity!r} is not one of {", ".join(severities)}'
          )
    except InputError as error:
      raise files.RecordError(str(error), path=path, line=number) from None
    found.setdefault(text, []).extend(errors)
  return found


def rows(
  path: str | os.PathLike[str],
) -> Iterator[tuple[int, Mapping[str, Any]]]:
  """Yields the number of each line, from 1, and its object.

  Raises:
    RecordError: A line is not an object with a list of errors.
    OSError: The file can't be read.
  """
  with files.open_text(path) as lines:
    for number, line in enumerate(lines, 1):
      try:
        row = json.loads(line)
      except ValueError as error:
        message = f'not JSON: {error}'
        raise files.RecordError(message, path=path, line=number) from None
      if not isinstance(row, dict) or not isinstance(row.get('errors'), list):
        raise files.RecordError(
          "not an object with a list 'errors', as `t5score score --spans` "
          'writes it',
          path=path,
          line=number,
        )
      yield number, row


def check(error: Any, text: str) -> Error:
  """One error of a line, as a tuple.

  Raises:
    InputError: It lacks a field, or is outside the text.
  """
  try:
    start, end = error['start'], error['end']
    severity = str(error['severity'])
    fits = 0 <= start <= end <= len(text)
  except (KeyError, TypeError):
    raise InputError(
      f'an error needs start, end and severity, not {error!r}'
    ) from None
  if not (fits and isinstance(start, int) and isinstance(end, int)):
    raise InputError(
      f'an error from {start} to {end} is not in a text of {len(text)} '
      'characters'
    )
  return start, end, severity


def tags(
  offsets: Sequence[tuple[int, int]],
  errors: Sequence[Error],
  severities: Sequence[str],
) -> list[int]:
  """The tag of each token of a hypothesis.

  Args:
    offsets: The span of each token; (0, 0) for special tokens.
    errors: The errors; where two overlap, the later one counts.
    severities: The labels.

  Returns:
    0 for no error, or 1 and more for the severities in order.
  """
  found = [0] * len(offsets)
  for start, end, severity in errors:
    for n, (first, last) in enumerate(offsets):
      if max(first, start) < min(last, end):
        found[n] = 1 + severities.index(severity)
  return found
