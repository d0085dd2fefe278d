"""Filters ParaCotta files for lexically diverse pairs.

    python scripts/prepare/paracotta.py my/paracotta my/data/paracotta

Reads the file of every language in a folder and writes LANG.tsv.gz, two columns
without a header, for `t5score_jax.tasks.paracotta`
(`register(..., bleu_range=None)` does not compute BLEU again).
"""

from __future__ import annotations

import argparse
import pathlib
import sys


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description='Keeps the pairs of ParaCotta whose lexical BLEU is low.'
  )
  result.add_argument('folder', help='the published files, LANG.tsv')
  result.add_argument('output', help='the folder to write LANG.tsv.gz into')
  result.add_argument(
    '--low', type=float, default=0.0, help='minimum BLEU (default: %(default)s)'
  )
  result.add_argument(
    '--high',
    type=float,
    default=20.0,
    help='maximum BLEU (default: %(default)s)',
  )
  result.add_argument(
    '--max-pairs',
    type=int,
    metavar='N',
    help='maximum number of pairs per language (default: all)',
  )
  return result


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  command = parser()
  args = command.parse_args(arguments)
  if args.low > args.high:
    command.error('--low must not exceed --high')
  from t5score_jax.data import files  # slow: --help does not need them
  from t5score_jax.tasks import paracotta

  try:
    folder = pathlib.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    for language, paths in paracotta.files_of(args.folder).items():
      seen = kept = 0
      with files.write_atomically(folder / f'{language}.tsv.gz') as out:
        for pair in (pair for path in paths for pair in paracotta.read(path)):
          if kept == args.max_pairs:
            break
          seen += 1
          one, two = pair['inputs'], pair['targets']
          score = paracotta.lexical_bleu(one, two, language)
          if args.low <= score <= args.high:
            kept += 1
            out.write(f'{one}\t{two}\n')
      print(f'{language}: kept {kept} of {seen} pairs')
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
