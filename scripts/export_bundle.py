r"""Writes a training run's best checkpoint as a bundle, the form that ships.

    python scripts/export_bundle.py MODEL_DIR -o folder --dtype bfloat16

A bundle is `config.json`, `model.safetensors` and `vocabulary.model`; every
command that takes a model takes it.
"""

from __future__ import annotations

import argparse
import sys

from t5score_jax.checkpoints import bundle, native


def main() -> int:
  """Runs the program; returns its exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    'checkpoint',
    metavar='MODEL_DIR',
    help='a run (its best checkpoint is taken), or one of its checkpoint_N',
  )
  parser.add_argument('-o', '--output', required=True, metavar='FOLDER')
  parser.add_argument(
    '--dtype',
    choices=('bfloat16', 'float32'),
    default='bfloat16',
    help='of the weights in the file (default: %(default)s)',
  )
  args = parser.parse_args()
  try:
    model = native.load_for_scoring(args.checkpoint)
    bundle.save_bundle(args.output, model, args.dtype)
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  print(f'{args.output}: {bundle.checkpoint_hash(model.params)}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
