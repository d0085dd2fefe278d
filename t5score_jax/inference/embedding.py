"""One vector per text, or one per layer, under a regressor's encoder.

States are mixed and pooled on the device, so only vectors are fetched. Texts
longer than the encoder's maximum are truncated, or read in windows whose
vectors are combined. Not here: the arithmetic (`nn/heads.py`), batches
(`inference/encoding.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5score_jax.checkpoints import regressors
from t5score_jax.checkpoints.formats.huggingface.encoders import EncoderBundle
from t5score_jax.data import windows
from t5score_jax.errors import OptionError
from t5score_jax.inference import encoding
from t5score_jax.nn import bert, heads

# Longer than any text, so nothing is truncated.
_WHOLE = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class TextVectors:
  """The vectors of N texts.

  Attributes:
    values: float32 [N, emb_dim], or [N, layers, emb_dim], in the texts' order.
    texts: Number of distinct texts.
    cut: Number of distinct texts that were truncated.
    windowed: Number of distinct texts that were read in several windows.
  """

  values: np.ndarray
  texts: int
  cut: int
  windowed: int


class TextEmbedder(encoding.RowEncoder):
  """A regressor's encoder, layer mix and pooling on all local devices.

  With `windows`, a text longer than `max_length` is read whole, in windows of
  equal size (`data/windows.py`), each pooled separately. The text's vector is
  the mean of the windows' vectors (with mean pooling, the mean over tokens;
  tokens that two windows share count twice), or their maximum. If layers are
  normalised, the statistics are those of a window instead of a text.

  Args:
    model: The regressor. Its head is not used.
    windows: Whether long texts are read in windows instead of truncated.
    stride: Minimum number of tokens that adjacent windows share.
    **options: See `TextEncoder`; layers are the regressor's.

  Raises:
    OptionError: A value is out of range.
  """

  def __init__(
    self,
    model: regressors.Regressor,
    *,
    windows: bool = False,
    stride: int = 0,
    **options: Any,
  ):
    parts = ('mix', *heads.ENCODER_PARTS)
    params = {k: v for k, v in model.params.items() if k in parts}
    bundle = EncoderBundle(model.config.encoder, params, model.tokenizer, '')
    super().__init__(bundle, model.config.layers, **options)
    self._regressor = dataclasses.replace(
      model.config,
      encoder=dataclasses.replace(model.config.encoder, dtype=self.dtype),
    )
    if not isinstance(windows, bool):
      raise OptionError(f'windows {windows!r}: use True or False')
    if stride and not windows:
      raise OptionError(f'stride {stride}: only with windows=True')
    (empty,) = self.tokenize([''])
    room = self.max_length - len(empty.ids)
    if windows and not 0 <= stride < room:
      raise OptionError(
        f'stride {stride}: 0 to {room - 1}, with {self.max_length} tokens per '
        'window'
      )
    self.windows = windows
    self.stride = stride

  def vectors(
    self, texts: Sequence[str], progress: encoding.Progress | None = None
  ) -> TextVectors:
    """The vectors that the regressor's head reads, [N, emb_dim]."""
    return self._vectors(texts, 'mixed', progress)

  def layer_vectors(
    self, texts: Sequence[str], progress: encoding.Progress | None = None
  ) -> TextVectors:
    """Each layer's pooled vectors before the mix, [N, layers, emb_dim].

    `heads.mix_vectors` computes `vectors` from them, with its gradient. While
    the encoder is frozen, they need to be computed only once.

    Raises:
      OptionError: Max pooling depends on the mix.
    """
    if self._regressor.pooling == 'max' and self._regressor.layer == 'mix':
      raise OptionError(
        "pooling 'max' of mixed layers: there are no vectors before the mix"
      )
    return self._vectors(texts, 'layers', progress)

  def _apply(
    self,
    kind: str,
    params: Mapping[str, Any],
    tokens: jax.Array,
    types: jax.Array,
  ) -> jax.Array:
    if kind == 'mixed':
      return heads.embed(params, self._regressor, tokens)
    c = self._regressor
    states = bert.hidden_states(
      params['encoder'], c.encoder, tokens, layers=c.layers
    )
    mask = (tokens != c.encoder.pad_id).astype(np.float32)
    return heads.layer_vectors(params, c, states, mask)

  def _logical_axes(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
    axes = heads.logical_axes({'estimator': {}, **params})
    return {name: axes[name] for name in params}

  def _vectors(
    self,
    texts: Sequence[str],
    kind: str,
    progress: encoding.Progress | None,
  ) -> TextVectors:
    distinct = {text: n for n, text in enumerate(dict.fromkeys(texts))}
    all_texts = list(distinct)
    width = self._config.emb_dim
    shape = (width,) if kind == 'mixed' else (len(self.layers), width)
    values = np.zeros((len(all_texts), *shape), np.float32)
    cut = windowed = 0
    for start in range(0, len(all_texts), encoding.WINDOW):
      part = all_texts[start : start + encoding.WINDOW]
      encoded = self.tokenizer.encode_batch(
        part, _WHOLE if self.windows else self.max_length
      )
      cut += sum(text.cut for text in encoded)
      pieces = [[text.ids] for text in encoded]
      if self.windows:
        pieces = [
          windows.split(text, self.max_length, self.stride) for text in encoded
        ]
      counts = np.array([len(ids) for ids in pieces])
      vectors = self.rows(
        list(itertools.chain.from_iterable(pieces)),
        kind=kind,
        shape=shape,
        done=encoding.within(progress, start, len(part), len(all_texts)),
      )
      values[start : start + len(part)] = _combined(
        vectors, counts, self._regressor.pooling
      )
      windowed += int(np.sum(counts > 1))
    index = np.array([distinct[text] for text in texts], np.int64)
    return TextVectors(values[index], len(all_texts), cut, windowed)


def _combined(
  vectors: np.ndarray, counts: np.ndarray, pooling: str
) -> np.ndarray:
  """Combines window vectors into text vectors.

  Args:
    vectors: float32 [windows, ...], text by text.
    counts: Number of windows of each text, int [texts].
    pooling: The regressor's pooling.
  """
  if counts.max() == 1:
    return vectors
  starts = np.cumsum(counts) - counts
  if pooling == 'max':
    return np.maximum.reduceat(vectors, starts)
  # All windows of a text have the same number of tokens.
  total = np.add.reduceat(vectors.astype(np.float64), starts)
  mean = total / counts.reshape(-1, *[1] * (vectors.ndim - 1))
  return np.asarray(mean, np.float32)
