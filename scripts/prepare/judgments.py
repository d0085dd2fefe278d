"""Converts a published corpus of judgments to records, by language pair.

    python scripts/prepare/judgments.py mqm my/mqm my/data/judged
    python scripts/prepare/judgments.py qe20 my/mlqe my/qe20 --split validation

The files are named [PART.]LP.jsonl.gz, where PART is a year or a test set.
`t5score_jax.tasks.judged` (and `wmt_da`) register tasks on them, `t5score
score` scores them and `t5score correlate` measures agreement on them.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys

CORPORA = ('wmt_da', 'mqm', 'multisumm', 'qe20')
SPLITS = ('train', 'validation', 'test')


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description='Converts a published corpus of judgments to records.'
  )
  result.add_argument('corpus', choices=CORPORA, help='layout of the corpus')
  result.add_argument('folder', help='folder of the corpus')
  result.add_argument('output', help='the folder to write into')
  result.add_argument(
    '--split',
    choices=SPLITS,
    default='train',
    help='split of qe20; other corpora have none (default: %(default)s)',
  )
  return result


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  from t5score_jax.data import records  # slow: --help does not need them
  from t5score_jax.tasks import mqm, multisumm, qe20, wmt_da

  found = collections.defaultdict(list)
  try:
    if args.corpus == 'qe20':
      for segment in qe20.segments(args.folder, args.split):
        found['', segment.language_pair].append(segment)
    else:
      corpus = {'wmt_da': wmt_da, 'mqm': mqm, 'multisumm': multisumm}
      module = corpus[args.corpus]
      paths = module.files_of(args.folder).values()
      for path in dict.fromkeys(path for group in paths for path in group):
        for part, segment in module.read(path):
          found[part, segment.language_pair].append(segment)
    folder = pathlib.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    for (part, language_pair), segments in sorted(found.items()):
      name = '.'.join(filter(None, (part, language_pair, 'jsonl.gz')))
      records.write_records(folder / name, segments, 'jsonl')
      rated = sum(bool(segment.ratings) for segment in segments)
      print(f'{folder / name}: {len(segments)} segments, {rated} rated')
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
