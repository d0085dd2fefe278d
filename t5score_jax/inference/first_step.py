"""Logits of the first decoder step of many inputs, fast and in order.

`inference/encoding.py` handles batches, devices and processes, and
`nn/first_step.py` computes the logits. Not here: texts and scores
(`metrics/metricx.py`, `metrics/unieval.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.errors import OptionError
from t5score_jax.inference import encoding
from t5score_jax.nn import first_step, t5_axes
from t5score_jax.runtime import forks

# Attention over 1,536 tokens with 64 heads (mT5-XXL) takes 0.6 GB per row.
_ACCELERATOR_BATCH_TOKENS = 16384
_KIND = 'first_step'


class FirstStepScorer(encoding.RowEncoder):
  """A T5 on all local devices, ready for the first step of its decoder.

  Args:
    bundle: The network and its weights; of the output matrix, these columns
      suffice (`loading.load_first_step`).
    ids: The n pieces whose logits are computed.
    max_length: Tokens per input.
    **options: See `placement.Devices`.

  Raises:
    OptionError: A value is out of range.
  """

  def __init__(
    self, bundle: Bundle, ids: Sequence[int], max_length: int, **options: Any
  ):
    if max_length < 2:
      raise OptionError(f'max_length {max_length}: at least 2 tokens')
    config = dataclasses.replace(bundle.config, remat='none')
    self.layers = (config.num_encoder_layers,)
    self.max_length = max_length
    self._ids = tuple(ids)
    self._pad_id = 0
    self._place(config, bundle.params, **options)
    if self._devices.platform != 'cpu' and options.get('batch_tokens') is None:
      self._batch_tokens = self._devices.batch_tokens(_ACCELERATOR_BATCH_TOKENS)

  def _logical_axes(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
    return t5_axes.logical_axes(params)

  def _apply(
    self,
    kind: str,
    params: Mapping[str, Any],
    tokens: jax.Array,
    types: jax.Array,
  ) -> jax.Array:
    return first_step.logits(params, self._config, tokens, self._ids)

  @property
  def params(self) -> Any:
    """The weights on the devices."""
    return self._params

  def compile_for(self, rows: int, length: int) -> Callable[..., jax.Array]:
    """Compiles the program of one shape of batches."""
    return self._compile((_KIND, rows, length, None))

  def logits(
    self,
    inputs: Sequence[Sequence[int]],
    progress: encoding.Progress | None = None,
  ) -> np.ndarray:
    """Logits of inputs, float32 [N, n]; equal inputs are computed once.

    Args:
      inputs: N inputs as ids, none longer than `max_length`.
      progress: Called with the number of distinct inputs done.

    Raises:
      placement.ScoringError: A logit is not finite.
    """
    forks.claim()
    distinct: dict[tuple[int, ...], int] = {}
    index = [distinct.setdefault(tuple(row), len(distinct)) for row in inputs]
    rows = list(distinct)
    values = np.zeros((len(rows), len(self._ids)), np.float32)
    for start in range(0, len(rows), encoding.WINDOW):
      part = rows[start : start + encoding.WINDOW]
      values[start : start + len(part)] = self.rows(
        part,
        kind=_KIND,
        shape=(len(self._ids),),
        done=encoding.within(progress, start, len(part), len(rows)),
      )
    return values[index]
