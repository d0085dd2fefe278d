r"""Makes a student of some layers of a cross-encoder, for FrugalScore.

    python scripts/reproduce/cut_layers.py minilm-da --layers 1,3,5 -o initial

The student keeps the teacher's tokenizer, embeddings and head. Its layers are
copies of the teacher's (Sanh et al. 2019, "DistilBERT", section 3). The weights
are written in float32, also those of an int8 model.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
import sys
from collections.abc import Sequence

from t5score_jax.checkpoints import convert, cross_encoders
from t5score_jax.data import folders
from t5score_jax.metrics import frugalscore


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('teacher', help='name or folder of a cross-encoder')
  parser.add_argument(
    '--layers',
    required=True,
    metavar='N,...',
    help='the layers to keep, from 1, ascending',
  )
  parser.add_argument(
    '-o',
    '--output',
    type=pathlib.Path,
    required=True,
    metavar='FOLDER',
    help='a new folder in the layout of Hugging Face',
  )
  args = parser.parse_args(arguments)
  try:
    try:
      layers = [int(text) for text in args.layers.split(',')]
    except ValueError:
      raise ValueError(
        f'--layers {args.layers}: numbers, separated by commas'
      ) from None
    convert.check_output(args.output)
    student = cut(frugalscore.load(args.teacher), layers)
    with folders.new_folder(args.output) as new:
      cross_encoders.save(student, new)
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


def cut(
  teacher: cross_encoders.CrossEncoder, layers: Sequence[int]
) -> cross_encoders.CrossEncoder:
  """The teacher with only these layers, numbered from 1.

  Raises:
    ValueError: They do not ascend, or the teacher has no such layer.
  """
  whole = teacher.config.num_layers
  if any(a >= b for a, b in itertools.pairwise([0, *layers, whole + 1])):
    raise ValueError(
      f'layers {",".join(map(str, layers))}: must ascend, from 1 to {whole}'
    )
  encoder = teacher.params['encoder']
  kept = {k: v for k, v in encoder.items() if not k.startswith('layers_')}
  for new, old in enumerate(layers):
    kept[f'layers_{new}'] = encoder[f'layers_{old - 1}']
  return dataclasses.replace(
    teacher,
    config=dataclasses.replace(teacher.config, num_layers=len(layers)),
    params={**teacher.params, 'encoder': kept},
  )


if __name__ == '__main__':
  sys.exit(main())
