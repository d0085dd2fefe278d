"""Initial weights that make a small cross-encoder compare two texts.

A metric mostly checks which words of one text have a counterpart in the other.
Pretrained miniatures have heads that find them; a network trained from scratch
spends most of its budget on learning them. This module writes one such circuit
into random weights; the architecture is unchanged, and training may change it.
Not from the paper; the counterpart of `copy_init.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t5score_jax.nn import cross_encoder
from t5score_jax.nn.bert import BertConfig

# Dimensions of a head that do not hold words: the segment's, and those read.
FLAGS = 4
# Length of a segment's mark; word vectors have length 1.
_SEGMENT = 0.5
# Lengths after normalisation of the embeddings: a word and its mark share
# emb_dim with a little noise.
_NOISE = 0.02
# Attention logits of an equal word, and of the other text against the own one.
_EQUAL_LOGIT = 15.0
_OTHER_LOGIT = 25.0
# Of a mean over one text, against the other text's tokens.
_MEAN_LOGIT = 10.0
_MISMATCH, _MISMATCH_BIAS = 0.05, -1.5
_READ, _POOL, _OUTPUT = 3.0, 0.3, -0.5


def word_dimensions(config: BertConfig) -> int:
  """Width of the word vectors that `with_matching_heads` takes."""
  return config.emb_dim // config.num_heads - FLAGS


def with_matching_heads(
  config: BertConfig, rng: jax.Array, words: np.ndarray
) -> dict[str, Any]:
  """Parameters of a miniature that compares words before training.

  With h the width of a head, dimensions 0 to h - 5 hold a token's word, h - 4
  identifies its text, and h to 2 h - 5 are free.

  1. In the first layer head 0 attends to the most similar words of the other
     text, and writes their mean into the free dimensions.
  2. The first feed-forward block adds the absolute differences of the two,
     which measure the mismatch of a token, into dimension 2 h - 1.
  3. In the last layer heads 0 and 1 average the mismatch over each text: a
     rough precision and recall, from which the pooler and the output compute a
     score that decreases with mismatch.

  Args:
    config: post-norm, at least two layers and two heads, and enough
      feed-forward units (two per word dimension).
    rng: key for all other weights.
    words: [vocab_size, word_dimensions(config)], vectors of pieces whose
      cosines are their similarities.

  Returns:
    Parameters for `cross_encoder.predict`.

  Raises:
    ValueError: The configuration or the vectors do not fit.
  """
  width = config.emb_dim // config.num_heads
  size = word_dimensions(config)
  _check(config, words, size)
  params = cross_encoder.init_params(config, rng)
  flat = {
    name: np.array(leaf) for name, leaf in flatten_dict(params, sep='/').items()
  }
  word, mark = np.arange(size), size
  free, mismatch = width + word, 2 * width - 1
  means = (2 * width - 2, 2 * width - 3)

  table = flat['encoder/embeddings/word']
  norms = np.maximum(np.linalg.norm(words, axis=1, keepdims=True), 1e-9)
  table[:, word] = words / norms
  table[:, free] = 0.0
  flat['encoder/embeddings/position'][:, [*word, mark, *free]] = 0.0
  types = flat['encoder/embeddings/type']
  types[:, [*word, *free]] = 0.0
  types[:2, mark] = _SEGMENT, -_SEGMENT

  scale = config.emb_dim / (1.0 + _SEGMENT**2 + config.emb_dim * _NOISE**2)
  _compare(flat, word, mark, free, width, scale)
  _measure(flat, word, free, mismatch)
  # Normalised twice since then: words and counterparts share the length.
  _average(
    flat, config.num_layers - 1, mark, mismatch, means, width, scale**0.5 / 1.4
  )
  pooler, output = flat['pooler/kernel'], flat['output/kernel']
  pooler[:, :2] = 0.0
  output[:] = 0.0
  for n, mean in enumerate(means):
    pooler[mean, n] = _POOL
    output[n, 0] = _OUTPUT
  return unflatten_dict(
    {name: jnp.asarray(leaf) for name, leaf in flat.items()}, sep='/'
  )


def _compare(
  flat: Mapping[str, np.ndarray],
  word: np.ndarray,
  mark: int,
  free: np.ndarray,
  width: int,
  scale: float,
) -> None:
  """Head 0 of the first layer: attends to similar words of the other text."""
  layer = 'encoder/layers_0/attention'
  equal = (_EQUAL_LOGIT * width**0.5 / scale) ** 0.5
  other = (_OTHER_LOGIT * width**0.5 / (2 * scale * _SEGMENT**2)) ** 0.5
  for name, sign in (('query', 1.0), ('key', -1.0)):
    kernel = flat[f'{layer}/{name}/kernel']
    kernel[:, :width] = 0.0
    kernel[word, word] = equal
    kernel[mark, mark] = sign * other
  value, out = flat[f'{layer}/value/kernel'], flat[f'{layer}/out/kernel']
  value[:, :width] = 0.0
  value[word, word] = 1.0
  out[:width] = 0.0
  out[:, free] = 0.0
  out[word, free] = 1.0


def _measure(
  flat: Mapping[str, np.ndarray],
  word: np.ndarray,
  free: np.ndarray,
  mismatch: int,
) -> None:
  """The first feed-forward block: a word's distance from its counterpart."""
  wi = flat['encoder/layers_0/wi/kernel']
  wo = flat['encoder/layers_0/wo/kernel']
  size = len(word)
  for sign, first in ((1.0, 0), (-1.0, size)):
    units = first + word
    wi[:, units] = 0.0
    wi[word, units] = sign
    wi[free, units] = -sign
  wo[: 2 * size] = 0.0
  wo[: 2 * size, mismatch] = _MISMATCH
  flat['encoder/layers_0/wo/bias'][mismatch] = _MISMATCH_BIAS


def _average(
  flat: Mapping[str, np.ndarray],
  layer: int,
  mark: int,
  mismatch: int,
  means: tuple[int, int],
  width: int,
  length: float,
) -> None:
  """Heads 0 and 1 of the last layer: the mean mismatch of each text."""
  name = f'encoder/layers_{layer}/attention'
  marked = _SEGMENT * length
  # Logits are half of this for one text and minus half of it for the other.
  strength = (_MEAN_LOGIT * width**0.5 / (2 * marked)) ** 0.5
  for head, (sign, mean) in enumerate(zip((1.0, -1.0), means, strict=True)):
    first = head * width
    part = slice(first, first + width)
    for kernel in ('query', 'key', 'value'):
      flat[f'{name}/{kernel}/kernel'][:, part] = 0.0
    flat[f'{name}/query/bias'][first] = strength
    flat[f'{name}/key/kernel'][mark, first] = sign * strength
    flat[f'{name}/value/kernel'][mismatch, first] = 1.0
    flat[f'{name}/out/kernel'][part] = 0.0
    flat[f'{name}/out/kernel'][first, mean] = _READ


def _check(config: BertConfig, words: np.ndarray, size: int) -> None:
  if config.pre_norm or config.num_layers < 2 or config.num_heads < 2:
    raise ValueError(
      'matching heads need norms after the blocks, two layers and two heads; '
      f'got pre_norm={config.pre_norm}, num_layers={config.num_layers}, '
      f'num_heads={config.num_heads}'
    )
  if config.mlp_dim < 2 * size or config.type_vocab_size < 2 or size < 1:
    raise ValueError(
      f'matching heads need {2 * size} feed-forward units and two segments; '
      f'got mlp_dim={config.mlp_dim}, '
      f'type_vocab_size={config.type_vocab_size}'
    )
  if words.shape != (config.vocab_size, size):
    raise ValueError(
      f'word vectors of shape {words.shape}; must be '
      f'{(config.vocab_size, size)}'
    )
