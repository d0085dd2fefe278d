"""UniTE's network: texts read as one sequence -> a score and word tags.

An encoder reads the hypothesis with the source, with the reference, or with
both as one sequence (UniTE, Wan et al. 2022, section 3). The score comes from
the first token's states, mixed over layers. From the states of one layer, each
token of the hypothesis gets a tag, 'no error' or a severity (CometKiwi, Rei et
al. 2022; XCOMET, Guerreiro et al. 2024). Not here: how scores of several inputs
are combined (`metrics/unified.py`, `metrics/xcomet.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from t5score_jax.errors import OptionError
from t5score_jax.nn import bert, heads

Array = jax.Array
Params = Mapping[str, Any]

#: The texts that follow the hypothesis in each input, in score order.
INPUTS: dict[str, tuple[str, ...]] = {
  'source': ('source',),
  'reference': ('reference',),
  'unified': ('source', 'reference'),
}
#: The first tag; the severities follow.
NO_ERROR = 0
# The maximum length of a text is this many tokens below that of a joint
# sequence, as in COMET.
_ROOM = 2


def text_length(max_length: int) -> int:
  """Maximum tokens per text, given the maximum of a joint sequence."""
  return max_length - _ROOM


@dataclasses.dataclass(frozen=True)
class UnifiedConfig(heads.RegressorConfig):
  """Shape of the network; JSON-serializable.

  Attributes:
    reference: Whether references are read.
    source: Whether sources are read.
    pooling: 'cls'; the first token stands for the sequence.
    labels: Severities of errors, the tags besides 'no error'; empty for a
      network without tags.
    word_layer: The hidden state from which tags are predicted.
    separators: Separator tokens between two texts: 2 for XLM-R, 1 for BERT.
    token_types: Whether the hypothesis has segment 0 and all else 1 (BERT);
      otherwise all tokens have 0.
    xcomet: Whether the score is XCOMET's, to which errors contribute.
  """

  pooling: str = 'cls'
  source: bool = True
  labels: tuple[str, ...] = ()
  word_layer: int | None = None
  separators: int = 2
  token_types: bool = False
  xcomet: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    object.__setattr__(self, 'labels', tuple(self.labels))
    if len(self.outputs) != 1:
      raise OptionError(f'outputs={self.outputs}: one, read in several inputs')
    if self.pooling != 'cls':
      raise OptionError(f"pooling={self.pooling!r}: only 'cls'")
    if not (self.source or self.reference):
      raise OptionError('source=False, reference=False: nothing is read')
    if self.xcomet and not self.labels:
      raise OptionError('xcomet=True needs labels')
    if self.separators not in (1, 2):
      raise OptionError(f'separators={self.separators}: 1 or 2')
    depth = self.encoder.num_layers
    if not self.labels:
      object.__setattr__(self, 'word_layer', None)
    elif not (
      isinstance(self.word_layer, int) and 0 <= self.word_layer <= depth
    ):
      raise OptionError(f'word_layer={self.word_layer!r}: use 0 to {depth}')

  @property
  def features(self) -> int:
    """Width of the input of the feed-forward network."""
    return self.encoder.emb_dim

  @property
  def num_tags(self) -> int:
    """Number of word tags: 'no error' and the severities; 0 without tags."""
    return 1 + len(self.labels) if self.labels else 0

  @property
  def inputs(self) -> tuple[str, ...]:
    """The names of the inputs that the network reads, from `INPUTS`."""
    known = {'hypothesis': True, 'source': self.source}
    known['reference'] = self.reference
    return tuple(n for n, read in INPUTS.items() if all(known[r] for r in read))


def join(
  config: UnifiedConfig, texts: Sequence[Array], max_length: int
) -> tuple[Array, Array]:
  """Joins encoded texts to one sequence each.

  The first token of every text but the hypothesis becomes a second separator,
  or is left out.

  Args:
    config: The network.
    texts: The hypothesis and one or two others, int [batch, length] each, with
      special tokens, padded at the end.
    max_length: Joint sequences are truncated to this many tokens.

  Returns:
    Tokens and segments, int [batch, sum of lengths or max_length].
  """
  pad = config.encoder.pad_id
  end = jnp.sum(texts[0] != pad, axis=1, keepdims=True) - 1
  separator = jnp.take_along_axis(texts[0], end, axis=1)
  parts = [texts[0]]
  for text in texts[1:]:
    if config.separators == 2:
      parts.append(separator)
    parts.append(text[:, 1:])
  tokens = jnp.concatenate(parts, axis=1)
  order = jnp.argsort(tokens == pad, axis=1, stable=True)
  tokens = jnp.take_along_axis(tokens, order, axis=1)[:, :max_length]
  types = jnp.arange(tokens.shape[1]) > end
  return tokens, types.astype(jnp.int32) * int(config.token_types)


def predict(
  params: Params,
  config: UnifiedConfig,
  tokens: Array,
  token_types: Array,
  rng: Array | None = None,
) -> tuple[Array, Array | None]:
  """Scores joint sequences and tags their tokens.

  Args:
    params: 'encoder', 'estimator', 'mix' if layers are mixed, and 'tagger' if
      there are labels.
    config: The network.
    tokens: Int [batch, length], padded at the end.
    token_types: Int [batch, length].
    rng: Key for dropout; None for none.

  Returns:
    Scores, float32 [batch], and tag logits, float32 [batch, length, 1 +
    labels]; None without labels.
  """
  encoder_rng = head_rng = None
  if rng is not None:
    encoder_rng, head_rng = jax.random.split(rng)
  read = layers(config)
  found = bert.separate_states(
    params['encoder'], config.encoder, tokens, token_types, read, encoder_rng
  )
  states = dict(zip(read, found, strict=True))
  mask = (tokens != config.encoder.pad_id).astype(jnp.float32)
  # Layer by layer, since most layers contribute only their first token.
  vectors = [
    heads.layer_vectors(params, config, states[n][None], mask)
    for n in config.layers
  ]
  mixed = heads.mix_vectors(params, config, jnp.concatenate(vectors, axis=1))
  scores = heads.feed_forward(params['estimator'], config, mixed, head_rng)
  if config.word_layer is None:
    return scores[:, 0], None
  words = states[config.word_layer].astype(jnp.float32)
  logits = jnp.dot(words, params['tagger']['kernel'])
  return scores[:, 0], logits + params['tagger']['bias']


def layers(config: UnifiedConfig) -> tuple[int, ...]:
  """Indices of the hidden states that scores and tags depend on."""
  words = () if config.word_layer is None else (config.word_layer,)
  return tuple(sorted({*config.layers, *words}))
