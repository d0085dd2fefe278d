"""`t5score split`: checks rated records and divides them into two files.

Reads and writes files; the checks are in `data/summaries.py`, the division of
documents in `data/instances.py`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from t5score_jax.commands import _record_files, _usage
from t5score_jax.data import files, folders, instances, records, summaries
from t5score_jax.errors import UsageError

SUMMARY = 'check rated records, and divide them for training and testing'

DESCRIPTION = """
Reads rated records (TSV, CSV or JSONL), reports what they hold and what in them
looks wrong, and writes FOLDER/train.jsonl and FOLDER/test.jsonl. The fields
have their proper names there (source, hypothesis, reference, reference_2, ...,
system, document, segment, language_pair, and the ratings), so that no later
command needs names of columns. Whole documents, or another field (--by), go to
the same file, so that no text is in both. The same records, share and seed give
the same division on any machine. Without -o nothing is written.
"""

EPILOG = """
examples:
  t5score split --input rated.jsonl --ratings rating -o data/
  t5score split --input scores.csv hypothesis=mt reference=ref source=src \\
      --ratings adequacy,fluency --share 0.2 --by source -o data/

exit code: 0 done; 1 the records are invalid; 2 the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  _record_files.add_argument(
    parser,
    '--input',
    'rated records: ' + _record_files.HELP,
    action='append',
    required=True,
  )
  parser.add_argument(
    '--ratings',
    metavar='NAME,...',
    required=True,
    help='columns of ratings, higher is better; a record may lack some',
  )
  parser.add_argument(
    '--share',
    type=float,
    default=0.1,
    metavar='X',
    help='of the documents, goes to test.jsonl (default: %(default)s)',
  )
  parser.add_argument(
    '--by',
    choices=instances.KEYS,
    help='the field that is kept together (default: document; source if a '
    'record has no document, reference if one has no source either)',
  )
  parser.add_argument(
    '--seed',
    type=_usage.count,
    default=0,
    help='seed of the division (default: %(default)s)',
  )
  parser.add_argument(
    '-o',
    '--output',
    metavar='FOLDER',
    help='a new folder for train.jsonl and test.jsonl',
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  ratings = tuple(dict.fromkeys(_usage.split_names(args.ratings)))
  if args.output and Path(args.output).exists():
    raise UsageError(f'-o {args.output}: is there already; name a new folder')
  sources = _record_files.parse_all(args.input, '--input')
  segments = [s for source in sources for s in source.segments(ratings)]
  instances.check_rated(segments, ratings, sources[0].path)
  lines = summaries.summarize(segments, ratings)
  lines += [summaries.pairs_line(segments, name) for name in ratings]
  lines += [f'note: {text}' for text in summaries.warnings(segments, ratings)]
  if args.output:
    lines += _write(args, segments)
  files.write_lines('-', lines)
  return 0


def _write(
  args: argparse.Namespace, segments: list[records.Segment]
) -> list[str]:
  """Writes the two files; returns a line for each."""
  by = args.by or instances.default_key(segments)
  keys = instances.keys(segments, by)
  chosen = instances.held_out(keys, args.share, args.seed)
  parts: dict[str, list[records.Segment]] = {
    'train.jsonl': [],
    'test.jsonl': [],
  }
  names: dict[str, set[str]] = {name: set() for name in parts}
  for key, segment in zip(keys, segments, strict=True):
    name = 'test.jsonl' if key in chosen else 'train.jsonl'
    parts[name].append(segment)
    names[name].add(key)
  with folders.new_folder(args.output) as folder:
    for name, part in parts.items():
      records.write_records(folder / name, part)
  return [
    f'{Path(args.output) / name}: {len(part):,} records '
    f'({len(names[name]):,} by {by})'
    for name, part in parts.items()
  ]
