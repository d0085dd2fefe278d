r"""Averages the weights of two cross-encoders, one tuned from the other.

    python scripts/reproduce/mean_weights.py frugalscore-tiny taught -o mean

The mean retains what the second model learned and what it forgot (Wortsman et
al. 2022, "Robust fine-tuning of zero-shot models"). --share is the weight of
the second model. Both must have the same shape and tokenizer; the output folder
has the settings of the first.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence

import jax
import numpy as np

from t5score_jax.checkpoints import convert, cross_encoders
from t5score_jax.data import folders
from t5score_jax.metrics import frugalscore


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('first', help='name or folder of a cross-encoder')
  parser.add_argument('second', help='another of the same shape')
  parser.add_argument(
    '-o',
    '--output',
    type=pathlib.Path,
    required=True,
    metavar='FOLDER',
    help='a new folder in the layout of Hugging Face',
  )
  parser.add_argument(
    '--share', type=float, default=0.5, help='0 to 1 (default: %(default)s)'
  )
  args = parser.parse_args(arguments)
  try:
    if not 0 <= args.share <= 1:
      raise ValueError(f'--share {args.share}: from 0 to 1')
    convert.check_output(args.output)
    first, second = (frugalscore.load(m) for m in (args.first, args.second))
    model = mean(first, second, args.share)
    with folders.new_folder(args.output) as new:
      cross_encoders.save(model, new)
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


def mean(
  first: cross_encoders.CrossEncoder,
  second: cross_encoders.CrossEncoder,
  share: float,
) -> cross_encoders.CrossEncoder:
  """(1 - share) times the first model's weights plus share times the second's.

  Raises:
    ValueError: They have different shapes or tokenizers.
  """
  shapes = [jax.tree.map(np.shape, model.params) for model in (first, second)]
  if shapes[0] != shapes[1]:
    raise ValueError('the models have different shapes; give two of one shape')
  if first.tokenizer.fingerprint() != second.tokenizer.fingerprint():
    raise ValueError('the models have different tokenizers')
  params = jax.tree.map(
    lambda x, y: (
      (1 - share) * np.asarray(x, np.float32)
      + share * np.asarray(y, np.float32)
    ),
    first.params,
    second.params,
  )
  return dataclasses.replace(first, params=params)


if __name__ == '__main__':
  sys.exit(main())
