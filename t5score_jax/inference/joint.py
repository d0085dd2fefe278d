"""Scores and tags of texts that an encoder reads as one sequence.

The texts are tokenized one by one, joined as in COMET, and read in batches
(`inference/encoding.py`). Not here: the network (`nn/unified.py`), how several
scores and tags are used (`metrics/unified.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.checkpoints import regressors
from t5score_jax.checkpoints.formats.huggingface.encoders import EncoderBundle
from t5score_jax.errors import OptionError
from t5score_jax.inference import encoding
from t5score_jax.nn import heads, unified

# Maximum number of sequences whose tags are in memory at a time.
_TAGGED_WINDOW = 2048
_SHORTEST = 6


@dataclasses.dataclass(frozen=True)
class Readings:
  """A network's outputs for N sequences.

  Attributes:
    scores: float32 [N].
    tags: For each sequence, the tag probabilities of the hypothesis' tokens,
      float32 [tokens, tags]; empty without labels.
    cut: Number of sequences that were truncated.
  """

  scores: np.ndarray
  tags: list[np.ndarray]
  cut: int


class JointScorer(encoding.RowEncoder):
  """A network of `nn/unified.py` on all local devices.

  Args:
    model: The network; its configuration is a `UnifiedConfig`.
    **options: See `encoding.TextEncoder`; `max_length` is that of a joint
      sequence.

  Raises:
    OptionError: A value is out of range.
  """

  def __init__(self, model: regressors.Regressor, **options: Any):
    c = model.config
    assert isinstance(c, unified.UnifiedConfig)
    tokenizer = model.tokenizer.with_offsets() if c.labels else model.tokenizer
    super().__init__(
      EncoderBundle(c.encoder, model.params, tokenizer, ''),
      unified.layers(c),
      **options,
    )
    if self.max_length < _SHORTEST:
      raise OptionError(f'max_length {self.max_length}: {_SHORTEST} or more')
    self._network = dataclasses.replace(c, encoder=self._config)

  @property
  def text_length(self) -> int:
    """Tokens per text, special tokens included."""
    return unified.text_length(self.max_length)

  def read(
    self,
    inputs: Sequence[tuple[str, ...]],
    progress: encoding.Progress | None = None,
  ) -> Readings:
    """Reads N sequences: the hypothesis and one or two more texts each."""
    scores = np.zeros(len(inputs), np.float32)
    tags: list[np.ndarray] = []
    cut = 0
    window = _TAGGED_WINDOW if self._network.labels else encoding.WINDOW
    for start in range(0, len(inputs), window):
      part = inputs[start : start + window]
      ids, types, counts, cut_here = self._joined(part)
      done = encoding.within(progress, start, len(part), len(inputs))
      cut += cut_here
      rows = slice(start, start + len(part))
      if not self._network.labels:
        scores[rows] = self.rows(ids, types, kind='scores', done=done)
        continue
      width = max(counts)
      values = self.rows(
        ids,
        types,
        kind='tags',
        shape=(width + 1, self._network.num_tags),
        done=done,
      )
      scores[rows] = values[:, 0, 0]
      tags += [
        row[1 : 1 + count] for row, count in zip(values, counts, strict=True)
      ]
    return Readings(scores, tags, cut)

  def _joined(
    self, inputs: Sequence[tuple[str, ...]]
  ) -> tuple[list[list[int]], list[list[int]], list[int], int]:
    """Ids, segments, hypothesis lengths; the number of truncated sequences."""
    texts = list(dict.fromkeys(text for row in inputs for text in row))
    encoded = dict(
      zip(
        texts,
        self.tokenizer.encode_batch(texts, self.text_length),
        strict=True,
      )
    )
    ids, types, counts, cut = [], [], [], 0
    for row in inputs:
      first, *others = (encoded[text] for text in row)
      joint = list(first.ids)
      for other in others:
        if self._network.separators == 2:
          joint.append(first.ids[-1])
        joint += other.ids[1:]
      count = len(first.ids)
      kinds = [0] * count + [int(self._network.token_types)] * len(joint)
      length = min(len(joint), self.max_length)
      cut += length < len(joint) or any(e.cut for e in (first, *others))
      ids.append(joint[:length])
      types.append(kinds[:length])
      counts.append(count)
    return ids, types, counts, cut

  def _fit(self, part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Cuts or pads tags to the length of the longest hypothesis."""
    if not shape:
      return part
    part = part[:, : shape[0]]
    return np.pad(part, ((0, 0), (0, shape[0] - part.shape[1]), (0, 0)))

  def _logical_axes(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
    axes: Mapping[str, Any] = heads.logical_axes(params)
    return axes

  def _apply(
    self,
    kind: str,
    params: Mapping[str, Any],
    tokens: jax.Array,
    types: jax.Array,
  ) -> jax.Array:
    scores, logits = unified.predict(params, self._network, tokens, types)
    if logits is None:
      return scores
    # [rows, 1 + length, tags]: the score precedes the tags.
    tags = jax.nn.softmax(logits)
    first = jnp.broadcast_to(
      scores[:, None, None], (tokens.shape[0], 1, tags.shape[-1])
    )
    return jnp.concatenate([first, tags], axis=1)
