"""Writes the errors of MQM annotations for XCOMET's tags of words.

    python scripts/prepare/mqm_errors.py mqm_*.tsv errors.jsonl

Reads the TSV files in which Google publishes MQM: one error per row, marked
with <v> and </v> in the target. A hypothesis without errors has a row as well,
and is learned as error-free. The output has the format of `t5score score
--spans`; `runs/unified.gin` trains on it (ERRORS). Errors with severities other
than minor, major and critical, and errors marked in the source, are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator

from t5score_jax.data import files

SEVERITIES = ('minor', 'major', 'critical')
_COLUMNS = ('system', 'doc', 'target', 'severity')
_MARK = re.compile('</?v>')

Key = tuple[str, str, str]


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  result.add_argument('annotations', nargs='+', help='MQM, TSV with a header')
  result.add_argument('output', help='JSONL; .gz is compressed')
  return result


def parse(target: str) -> tuple[str, int, int]:
  """A target without marks, and where the marked characters begin and end."""
  first, last = target.find('<v>'), target.find('</v>')
  text = _MARK.sub('', target)
  if first < 0 or last < first:
    return text, 0, 0
  return text, first, last - len('<v>')


def read(path: str) -> Iterator[tuple[Key, tuple[int, int, str]]]:
  """Yields (system, document, hypothesis) and an error for each row.

  Raises:
    RecordError: A column is missing, or a row has another width.
  """
  with files.open_text(path) as stream:
    header = next(stream, '').split('\t')
    for name in _COLUMNS:
      if name not in header:
        raise files.RecordError(f'no column {name!r}', path=path, line=1)
    for number, line in enumerate(stream, 2):
      fields = line.split('\t')
      if len(fields) != len(header):
        raise files.RecordError(
          f'{len(fields)} columns, but the header has {len(header)}',
          path=path,
          line=number,
        )
      row = dict(zip(header, fields, strict=True))
      text, start, end = parse(row['target'])
      yield (row['system'], row['doc'], text), (start, end, row['severity'])


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  found: dict[Key, list[dict[str, object]]] = {}
  try:
    files.check_not_input(args.output, args.annotations, 'output')
    for path in args.annotations:
      for key, (start, end, severity) in read(path):
        errors = found.setdefault(key, [])
        severity = severity.strip().lower()
        if severity in SEVERITIES and start < end:
          error = {'start': start, 'end': end, 'severity': severity}
          if error not in errors:
            errors.append(error)
    rows = (
      {'system': system, 'document': document, 'hypothesis': text, 'errors': e}
      for (system, document, text), e in found.items()
    )
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    files.write_lines(args.output, lines)
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  count = sum(map(len, found.values()))
  print(f'{args.output}: {len(found)} hypotheses, {count} errors')
  return 0


if __name__ == '__main__':
  sys.exit(main())
