r"""Cuts an encoder to its first layers and the pieces that texts need.

    python scripts/reproduce/small_encoder.py e5-small --layers 6 \
        --vocabulary 30000 --texts texts.txt.gz -o initial

The tokenizer must be XLM-R's kind, `sentencepiece.bpe.model`. Single characters
that occur in the texts are kept before other pieces, so that few characters
become unknown, then the most frequent pieces. Log-probabilities stay as they
are. The states of the kept layers stay too, for texts that are split into the
same pieces.

With --standardise, the last layer's norm is changed so that the mean vector of
a text has mean 0 and deviation 1 in each dimension. The vectors of an encoder
have a large common part, from which products and differences tell little.

The folder is written atomically; an existing one is an error.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from t5score_jax.checkpoints import convert, kinds
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data import files, folders, subwords
from t5score_jax.inference import encoding

_CHUNK = 2000
_LENGTH = 512
# Tokens of a text whose states are averaged.
_STATES_LENGTH = 128
_SPACE = '▁'
# Special pieces of a model: XLM-R's tokenizer has two further ids.
_SPECIAL, _FURTHER = 3, 2
# Type checkers do not see the names that protobuf adds to the module.
_PROTO: Any = sentencepiece_model_pb2


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  result.add_argument(
    'encoder', metavar='ENCODER', help='name or folder of the encoder'
  )
  result.add_argument(
    '--layers', type=int, required=True, help='number of layers to keep'
  )
  result.add_argument(
    '--vocabulary',
    type=int,
    required=True,
    metavar='N',
    help='number of pieces to keep, special tokens included',
  )
  result.add_argument(
    '--texts',
    required=True,
    metavar='FILE',
    help='one text per line, .gz or not; their pieces are counted',
  )
  result.add_argument(
    '--standardise',
    type=int,
    default=0,
    metavar='N',
    help='so that the vectors of N of the texts have mean 0 and deviation 1 '
    '(default: the states are not changed)',
  )
  result.add_argument(
    '-o',
    '--output',
    required=True,
    metavar='FOLDER',
    help='a new folder in the layout of Hugging Face',
  )
  return result


def count_pieces(
  tokenizer: subwords.SubwordTokenizer, texts: Sequence[str]
) -> collections.Counter[int]:
  """Counts each id in the texts."""
  counts: collections.Counter[int] = collections.Counter()
  for start in range(0, len(texts), _CHUNK):
    for one in tokenizer.encode_batch(texts[start : start + _CHUNK], _LENGTH):
      counts.update(one.ids)
  return counts


def chosen_pieces(
  pieces: Sequence[str],
  counts: Mapping[int, int],
  characters: Iterable[str],
  size: int,
) -> list[int]:
  """The pieces to keep, in their order: characters, then frequent pieces.

  Args:
    pieces: The model's pieces, the three special ones included.
    counts: How often the id of each piece occurs: its number and one.
    characters: Those of the texts.
    size: The number of ids of the tokenizer, special tokens included.

  Raises:
    ValueError: Special tokens and characters alone are more.
  """
  seen = {*characters, _SPACE}
  kept = {n for n, piece in enumerate(pieces) if n < _SPECIAL or piece in seen}
  wanted = size - _FURTHER
  if len(kept) > wanted:
    raise ValueError(
      f'--vocabulary {size}: special tokens and the characters of the texts '
      f'alone are {len(kept) + _FURTHER}'
    )
  others = (n for n in range(len(pieces)) if n not in kept)
  ranked = sorted(others, key=lambda n: (-counts.get(n + 1, 0), n))
  return sorted([*kept, *ranked[: wanted - len(kept)]])


def cut_model(content: bytes, kept: Sequence[int]) -> bytes:
  """A SentencePiece model with some of its pieces."""
  model = _PROTO.ModelProto.FromString(content)
  pieces = [model.pieces[n] for n in kept]
  del model.pieces[:]
  model.pieces.extend(pieces)
  model.trainer_spec.vocab_size = len(pieces)
  return bytes(model.SerializeToString())


def cut(
  bundle: encoders.EncoderBundle, ids: Sequence[int], layers: int
) -> encoders.EncoderBundle:
  """The encoder's first layers, with these pieces in this order."""
  bundle = encoders.truncated(bundle, layers)
  embeddings = dict(bundle.params['embeddings'])
  embeddings['word'] = np.asarray(embeddings['word'])[list(ids)]
  config = dataclasses.replace(
    bundle.config,
    vocab_size=len(ids),
    pad_id=list(ids).index(bundle.config.pad_id),
  )
  return dataclasses.replace(
    bundle, config=config, params={**bundle.params, 'embeddings': embeddings}
  )


def standardised(
  bundle: encoders.EncoderBundle, texts: Sequence[str]
) -> encoders.EncoderBundle:
  """The encoder with a last norm that standardises the mean vectors.

  Raises:
    ValueError: The vectors of the texts do not differ in some dimension.
  """
  length = min(_STATES_LENGTH, bundle.config.max_length)
  states = encoding.TextEncoder(bundle, [-1], max_length=length)
  vectors = np.stack(
    [
      one.states[0].mean(axis=0, dtype=np.float64)
      for one in states.states(texts)
    ]
  )
  mean, deviation = vectors.mean(axis=0), vectors.std(axis=0)
  if not (deviation > 0).all():
    raise ValueError(f'--standardise {len(texts)}: give more texts')
  last = f'layers_{bundle.config.num_layers - 1}'
  layer = dict(bundle.params[last])
  norm = layer['mlp_norm']
  layer['mlp_norm'] = {
    'scale': (norm['scale'] / deviation).astype(np.float32),
    'bias': ((norm['bias'] - mean) / deviation).astype(np.float32),
  }
  return dataclasses.replace(bundle, params={**bundle.params, last: layer})


def run(args: argparse.Namespace) -> str:
  """Creates the folder; returns a description.

  Raises:
    ValueError: An option does not fit the encoder or the texts.
    OSError: A file can't be read or written.
  """
  folder, output = Path(kinds.folder(args.encoder)), Path(args.output)
  convert.check_output(output)
  file = folder / subwords.SENTENCEPIECE_FILE
  if not file.is_file():
    raise ValueError(f"{file}: is not there; XLM-R's tokenizer is needed")
  bundle = encoders.load_encoder(folder)
  content = file.read_bytes()
  pieces = [p.piece for p in _PROTO.ModelProto.FromString(content).pieces]
  texts = files.read_lines(args.texts)
  counts = count_pieces(bundle.tokenizer, texts)
  kept = chosen_pieces(pieces, counts, set().union(*texts), args.vocabulary)
  # The ids of XLM-R: four special tokens, the pieces but the first three, and
  # `<mask>`.
  last = bundle.tokenizer.vocab_size - 1
  ids = [*range(_SPECIAL + 1), *(n + 1 for n in kept[_SPECIAL:]), last]
  with tempfile.TemporaryDirectory() as temporary:
    path = Path(temporary)
    (path / file.name).write_bytes(cut_model(content, kept))
    tokenizer = subwords.load_tokenizer(path)
  small = dataclasses.replace(
    cut(bundle, ids, args.layers), tokenizer=tokenizer
  )
  if args.standardise:
    places = np.linspace(0, len(texts) - 1, min(args.standardise, len(texts)))
    small = standardised(small, [texts[n] for n in places.astype(int)])
  with folders.new_folder(output) as new:
    encoders.save_encoder(small, new)
  share = sum(counts[n] for n in ids) / counts.total()
  return (
    f'{output}: {args.layers} layers, {len(ids):,} ids, which are {share:.1%} '
    'of those in the texts'
  )


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  try:
    print(run(args))
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
