"""Fluency of a hypothesis: UScore's language model term.

The score is the mean log-probability of the hypothesis' tokens under a causal
language model (Belouadi and Eger 2023, section 2.1). It measures fluency alone,
without source or reference, and complements a metric of meaning. Which tokens
count, and the score of an empty hypothesis, are defined in
`crosslingual/language_model.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints.formats.huggingface.encoders import EncoderBundle
from t5score_jax.crosslingual import language_model
from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.metrics import _models, base


class Metric(_models.ModelMetric):
  """Mean log-probability per token under one language model."""

  name = 'LM'
  MODELS = ('causal',)
  READS = ('bundle',)

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    first: str = language_model.BEGIN,
    **options: Any,
  ):
    """Loads the model.

    Args:
      model: A Hugging Face folder of GPT-2; or a T5 that was trained with empty
        inputs, whose decoder is the language model.
      first: 'begin': the begin-of-text token precedes the text, and every
        token is scored. 'skip': the first token is not scored, as in UScore's
        published program (GPT-2 only).
      **options: See `_models.ModelMetric`.

    Raises:
      FileNotFoundError: There is no such model.
      OptionError: No model is named, or an option is out of range.
      CheckpointError: The model is damaged.
    """
    super().__init__(**options)
    self._read_no_references()
    self.reads_references = False
    if not model:
      raise OptionError(
        f'{self.name} needs a language model: give a Hugging Face folder of '
        'GPT-2, or a T5 trained with empty inputs, as the model (-m)'
      )
    loaded = self._reading(language_model.load(model))
    self._language_model = language_model.LanguageModel(
      loaded, first=first, max_length=self._max_length, **self._placing
    )
    if isinstance(loaded, EncoderBundle):
      self._identify(loaded.name, loaded, loaded.tokenizer)
    else:
      name = loaded.settings.get('name') or Path(model).name
      self._identify(name, loaded, loaded.vocabulary)

  def signature(self, **observed: object) -> str:
    """The settings and versions."""
    return self._sign(
      first=self._language_model.first,
      case='lc' if self._language_model.lowercase else 'mixed',
      **observed,
      length=self._language_model.max_length,
      dtype=self._language_model.dtype,
    )

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    scores = self._language_model.score(
      [segment.hypothesis for segment in segments], self.progress
    )
    return base.Scores(
      scores.values,
      self.signature(),
      truncated=scores.truncated,
      texts=scores.texts,
    )
