"""Builds the TFDS dataset `wmt_da` from a folder of WMT direct assessments.

    python scripts/prepare/wmt_da.py my/wmt_da my/data/tfds

The layout of the folder: `t5score_jax.tasks.wmt_da`. With T5SCORE_DATA=my/data,
`import t5score_jax.tasks.datasets` in a gin file then registers the tasks and
mixtures, such as `wmt_da_2017_2019_pairs`. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description='Builds the TFDS dataset wmt_da from local files.'
  )
  result.add_argument('folder', help='the judgments, CSV or records')
  result.add_argument('data_dir', help='folder for the TFDS dataset')
  result.add_argument(
    '--rating',
    choices=('z', 'raw'),
    default='z',
    help='standardized scores, or 0 to 100 (default: %(default)s)',
  )
  return result


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  from t5score_jax.tasks import datasets  # slow: --help does not need it

  try:
    builder = datasets.build(args.folder, args.data_dir, args.rating)
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  for name, split in builder.info.splits.items():
    print(f'{name}\t{split.num_examples}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
