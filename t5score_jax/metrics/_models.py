"""Options, signatures and text pairs shared by metrics that have a model.

Not a metric by itself (hence the underscore).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.data.records import Segment
from t5score_jax.data.special_tokens import SpellingVocabulary
from t5score_jax.errors import OptionError
from t5score_jax.metrics import base

REFERENCE_RULES = ('max', 'mean')


class ModelMetric(base.Metric):
  """A metric with a model on this process's devices.

  A subclass passes its constructor's `**options` to this constructor, which
  documents them; `registry.options_of` lists both.

  Attributes:
    reference_rule: 'max' or 'mean'; see the constructor.
  """

  def __init__(
    self,
    *,
    reference_rule: str = 'max',
    max_length: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = 'float32',
    num_partitions: int = 1,
    spread: bool = False,
    special_tokens: bool = False,
  ):
    """Takes the options that all metrics with a model have.

    Args:
      reference_rule: How scores over several references are combined: 'max' or
        'mean'.
      max_length: Tokens per text (FrugalScore: per pair), special tokens
        included. Longer texts are truncated and counted in
        `Scores.truncated`. Default: the model's own, else 1024 for T5Score and
        128 for FrugalScore (the papers' values), and the number of positions
        for other encoders.
      batch_tokens: Tokens per batch on one device. Bounds memory; scores do
        not depend on it.
      dtype: Data type of the computation: 'float32', or 'bfloat16' (faster on
        an accelerator; differs in the third digit).
      num_partitions: Number of devices over which the weights are sharded, for
        models that do not fit on one.
      spread: Whether all processes of `runtime/processes.py` score the same
        segments: each computes a share and receives all scores.
      special_tokens: Whether a special token spelled out in a text, such as
        `</s>` or `[SEP]`, is read as that token, as in transformers, instead
        of as text.

    Raises:
      OptionError: A value is out of range.
    """
    base.check_choice('reference_rule', reference_rule, REFERENCE_RULES)
    self.reference_rule = reference_rule
    self._max_length = max_length
    self._special_tokens = special_tokens
    self._placing: dict[str, Any] = {
      'batch_tokens': batch_tokens,
      'dtype': dtype,
      'num_partitions': num_partitions,
      'spread': spread,
    }

  def _reading(self, model: Any) -> Any:
    """Returns the model with a tokenizer that follows `special_tokens`.

    Args:
      model: A dataclass with a `vocabulary` or a `tokenizer`.
    """
    if not self._special_tokens:
      return model
    change: dict[str, Any] = (
      {'vocabulary': SpellingVocabulary(model.vocabulary)}
      if hasattr(model, 'vocabulary')
      else {'tokenizer': model.tokenizer.with_special_tokens()}
    )
    return dataclasses.replace(model, **change)

  def _identify(self, name: object, model: Any, vocabulary: Any) -> None:
    """Stores the model's size and what identifies it in signatures.

    Args:
      name: The model's name.
      model: Has `params` and a `config`.
      vocabulary: Its vocabulary or tokenizer, which has a `fingerprint`.
    """
    self.num_parameters = base.count_parameters(model.params)
    self._model = {
      'model': str(name),
      'checkpoint': bundles.checkpoint_hash(model.params),
      'network': bundles.network_hash(model.config),
      'vocabulary': vocabulary.fingerprint()[:12],
      **({'special': 'tokens'} if self._special_tokens else {}),
    }

  def _sign(self, **settings: object) -> str:
    """Returns a signature of the metric, its model and these settings."""
    return base.format_signature(
      {
        name: re.sub(r'[|\s]', '_', str(value))
        for name, value in {
          'metric': self.name,
          **self._model,
          **settings,
        }.items()
      }
    )

  def _read_no_references(self) -> None:
    """Rejects `reference_rule` for a metric that reads no references."""
    if self.reference_rule != 'max':
      raise OptionError(
        f'reference_rule {self.reference_rule!r}: {self.name} reads no '
        'references'
      )

  def _references(self, segments: Sequence[Segment]) -> dict[str, object]:
    """Checks that there are references; returns settings for signatures."""
    return {
      'nrefs': base.require_references(segments, self.name),
      'refs': self.reference_rule,
    }


def distinct_pairs(
  segments: Sequence[Segment],
) -> tuple[list[tuple[str, str]], np.ndarray]:
  """Lists the distinct (hypothesis, reference) pairs of segments.

  Returns:
    The P pairs, and the index of each reference's pair, int [segments, most
    references], -1 where a segment has fewer references.
  """
  pairs: dict[tuple[str, str], int] = {}
  most = max((len(s.references) for s in segments), default=0)
  index = np.full((len(segments), most), -1)
  for row, segment in enumerate(segments):
    for column, reference in enumerate(segment.references):
      pair = segment.hypothesis, reference
      index[row, column] = pairs.setdefault(pair, len(pairs))
  return list(pairs), index


def over_references(
  values: np.ndarray, index: np.ndarray, rule: str
) -> np.ndarray:
  """Combines pair scores into segment scores.

  Args:
    values: Scores of pairs, float [P].
    index: From `distinct_pairs`, int [N, K].
    rule: 'max' or 'mean' over a segment's references.

  Returns:
    float32 [N].
  """
  if not index.size:
    return np.zeros(0, np.float32)
  table = np.where(index >= 0, values[index], np.nan)
  combine = np.nanmax if rule == 'max' else np.nanmean
  return np.asarray(combine(table, axis=1), np.float32)
