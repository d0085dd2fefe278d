r"""Caches SeqIO tasks offline, without Apache Beam.

    T5SCORE_DATA=my/data python scripts/prepare/cache_tasks.py my/cache \
        --import t5score_jax.tasks.wmt_da 'wmt_da_2017_.*_pairs'

Train from the cache with `--gin.USE_CACHED_TASKS=True` and
`--gin.CACHE_DIRS="['my/cache']"` (T5X: `--seqio_additional_cache_dirs=my/cache`
and `USE_CACHED_TASKS = True`). For corpora of many gigabytes use SeqIO's own
`seqio_cache_tasks`, which runs on Beam; see docs/pods.md.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description='Caches SeqIO tasks offline, without Apache Beam.'
  )
  result.add_argument('cache', help='the folder of all caches')
  result.add_argument(
    'tasks',
    nargs='+',
    metavar='TASK',
    help='regular expressions that match whole names of tasks',
  )
  result.add_argument(
    '--import',
    dest='modules',
    action='append',
    required=True,
    metavar='MODULE',
    help='a module that registers tasks when it is imported; repeatable',
  )
  result.add_argument(
    '--shards',
    type=int,
    default=16,
    metavar='N',
    help='files per split; more shuffle better (default: %(default)s)',
  )
  result.add_argument(
    '--seed',
    type=int,
    default=0,
    metavar='N',
    help='seed of random preprocessing (default: %(default)s)',
  )
  result.add_argument(
    '--overwrite', action='store_true', help='replace existing caches'
  )
  return result


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  import seqio  # slow: --help does not need it

  from t5score_jax.tasks import caching

  try:
    for module in args.modules:
      importlib.import_module(module)
    names = seqio.TaskRegistry.names()
    chosen = []
    for pattern in args.tasks:
      matching = [name for name in names if re.fullmatch(pattern, name)]
      if not matching:
        raise ValueError(
          f'no task matches {pattern!r}; there are:'
          f' {", ".join(sorted(names)) or "none: is T5SCORE_DATA set?"}'
        )
      chosen += [name for name in matching if name not in chosen]
    for name in chosen:
      stats = caching.cache_task(
        name,
        args.cache,
        shards=args.shards,
        seed=args.seed,
        overwrite=args.overwrite,
      )
      counts = ', '.join(
        f'{split} {count["examples"]}' for split, count in stats.items()
      )
      print(f'{name}: {counts}')
  except (ValueError, OSError, ImportError, re.error) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
