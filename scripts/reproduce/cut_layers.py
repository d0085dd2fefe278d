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
from t5score_jax.checkpoints.formats.huggingface import encoders
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
    type=_numbers,
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
    convert.check_output(args.output)
    student = cut(frugalscore.load(args.teacher), args.layers)
    with folders.new_folder(args.output) as new:
      cross_encoders.save(student, new)
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


def _numbers(text: str) -> list[int]:
  try:
    return [int(number) for number in text.split(',')]
  except ValueError:
    raise argparse.ArgumentTypeError(
      f'{text!r}: give numbers, separated by commas'
    ) from None


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
  encoder = encoders.selected_layers(
    teacher.params['encoder'], [layer - 1 for layer in layers]
  )
  return dataclasses.replace(
    teacher,
    config=dataclasses.replace(teacher.config, num_layers=len(layers)),
    params={**teacher.params, 'encoder': encoder},
  )


if __name__ == '__main__':
  sys.exit(main())
