r"""Creates the initial bundle of `t5score-tiny`: copy heads, similar words.

    python scripts/reproduce/initial_tiny.py --vocabulary vocabulary.model -o \
        initial \
        --encoder sentence-encoder/

Weights are random, with two exceptions. The network copies before it is trained
(`scripts/reproduce/copy_init.py`). With a sentence encoder (a folder of the
BERT family that `transformers` reads), similar pieces have similar embeddings:
each piece is encoded as a text, the means of the encoder's states are centred
and reduced by principal components to the network's width, and mixed with
random embeddings.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

import copy_init
import gin
import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece
from flax.traverse_util import flatten_dict, unflatten_dict

from t5score_jax.checkpoints import bundle
from t5score_jax.commands import _gin
from t5score_jax.data import vocab
from t5score_jax.nn import t5

_SPACE = '▁'
_BATCH = 256


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  result.add_argument(
    '--vocabulary', required=True, metavar='FILE', help='SentencePiece model'
  )
  result.add_argument(
    '-o',
    '--output',
    required=True,
    metavar='FOLDER',
    help='a new folder, a bundle',
  )
  result.add_argument(
    '--gin_file',
    default='models/t5score_tiny.gin',
    help='gin file of the network (default: %(default)s)',
  )
  result.add_argument(
    '--gin',
    action='append',
    default=[],
    metavar='NAME=VALUE',
    help='overrides the gin file, for example t5.T5Config.emb_dim=128',
  )
  result.add_argument(
    '--encoder',
    type=pathlib.Path,
    metavar='FOLDER',
    help='sentence encoder that defines the similarity of words',
  )
  result.add_argument(
    '--share',
    type=float,
    default=0.5,
    help="share of an embedding's variance from the encoder, 0 to 1 "
    '(default: %(default)s)',
  )
  result.add_argument(
    '--seed',
    type=int,
    default=0,
    help='of the random weights (default: %(default)s)',
  )
  return result


def encode_texts(folder: pathlib.Path, texts: list[str]) -> np.ndarray:
  """Mean of the last states of each text, float32 [texts, width]."""
  import torch
  import transformers

  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  encoder = transformers.AutoModel.from_pretrained(folder).eval()
  rows = []
  with torch.inference_mode():
    for start in range(0, len(texts), _BATCH):
      batch = tokenizer(
        texts[start : start + _BATCH], padding=True, return_tensors='pt'
      )
      states = encoder(**batch).last_hidden_state
      mask = batch['attention_mask'][..., None]
      rows.append(((states * mask).sum(1) / mask.sum(1)).numpy())
  return np.concatenate(rows)


def word_embeddings(
  folder: pathlib.Path, vocabulary: vocab.SentencePieceVocabulary, width: int
) -> np.ndarray:
  """An embedding of each piece, float32 [pieces, width], of unit variance."""
  processor = sentencepiece.SentencePieceProcessor(
    model_proto=vocabulary.model_bytes
  )
  pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
  states = encode_texts(
    folder, [piece.replace(_SPACE, ' ').strip() or '.' for piece in pieces]
  )
  states -= states.mean(axis=0)
  directions = np.linalg.svd(states, full_matrices=False)[2]
  reduced = states @ directions[:width].T
  # A random rotation spreads the large components over all dimensions.
  rotation = np.linalg.qr(
    np.random.default_rng(0).normal(size=(reduced.shape[1], width))
  )[0]
  reduced = reduced @ rotation
  norms = np.linalg.norm(reduced, axis=1, keepdims=True)
  return (reduced / norms * width**0.5).astype(np.float32)


def initial_params(
  config: t5.T5Config,
  vocabulary: vocab.Vocabulary,
  encoder: pathlib.Path | None,
  share: float,
  seed: int,
) -> dict[str, Any]:
  """The parameters of the network."""
  weights_rng, copy_rng = jax.random.split(jax.random.key(seed))
  flat = flatten_dict(t5.init_params(config, weights_rng), sep='/')
  if encoder is not None:
    if not isinstance(vocabulary, vocab.SentencePieceVocabulary):
      raise ValueError('--encoder needs a SentencePiece vocabulary, not bytes')
    name = 'token_embedder/embedding'
    known = word_embeddings(encoder, vocabulary, config.emb_dim)
    mixed = share**0.5 * known + (1 - share) ** 0.5 * flat[name][: len(known)]
    # The first three are padding, </s> and the unknown piece: no words.
    flat[name] = jnp.asarray(flat[name]).at[3 : len(known)].set(mixed[3:])
  return copy_init.with_copy_heads(
    unflatten_dict(flat, sep='/'), config, copy_rng
  )


def main() -> int:
  """Runs the program; returns its exit code."""
  command = parser()
  args = command.parse_args()
  if not 0.0 <= args.share <= 1.0:
    command.error('--share must be from 0 to 1')
  try:
    _gin.configure([args.gin_file], args.gin)
    config = gin.get_configurable(t5.T5Config)()
    vocabulary = vocab.load_vocabulary(args.vocabulary)
    params = initial_params(
      config, vocabulary, args.encoder, args.share, args.seed
    )
    bundle.save_bundle(
      args.output,
      bundle.Bundle(config, jax.device_get(params), vocabulary),
      dtype='float32',
    )
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  print(f'{args.output}: {count:,} parameters')
  return 0


if __name__ == '__main__':
  sys.exit(main())
