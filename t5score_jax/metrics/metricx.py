"""MetricX-23 and MetricX-24: an mT5 that predicts an error score.

The prediction is the logit of one piece at the first decoder step. It is
between 0 (perfect) and 25, like MQM scores (Juraska et al. 2023, 2024). The
scores here are negated, so that higher is better as for every metric: 0 at
best, -25 at worst. The signature says `sign:negated`. With several references,
the score is the best or the mean.

Not here: the inputs (`data/prompts.py`), training (`gin_configs/`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5score_jax.checkpoints import kinds, loading
from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.data import prompts
from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.inference.first_step import FirstStepScorer
from t5score_jax.metrics import _models, base

_VERSIONS = tuple(prompts.METRICX_LENGTHS)


class Metric(_models.ModelMetric):
  """MetricX with one model."""

  name = 'MetricX'
  MODELS = ('metricx',)
  READS = ('bundle',)

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    version: int | None = None,
    source_based: bool | None = None,
    vocabulary: str | os.PathLike[str] | None = None,
    **options: Any,
  ):
    """Loads the model.

    Args:
      model: A published folder (`MT5ForRegression`), a bundle, or a MODEL_DIR
        or checkpoint of training; or any T5 that predicts in this way.
      version: 23 or 24. Version 23 reads the hypothesis and the reference,
        version 24 also the source. Default: the model's, else the one in its
        folder's name.
      source_based: Whether to score without references (quality estimation).
        Default: the model's, else true for folders with `-qe-` in their name.
        Version 23 has separate models for it; version 24 does not.
      vocabulary: The network's SentencePiece model (mT5's), or a folder with
        one, for folders without a tokenizer, such as the published ones.
      **options: See `_models.ModelMetric`; `max_length` is that of the whole
        input, by default 1024 for version 23 and 1536 for 24.

    Raises:
      FileNotFoundError: There is no such model.
      OptionError: No model is named, its version is unknown, or an option is
        out of range.
      CheckpointError: The model is damaged, or has no vocabulary.
    """
    super().__init__(**options)
    if not model:
      raise OptionError(
        'MetricX needs a model: give a folder of google/metricx-24-hybrid-* or '
        'google/metricx-23-* from the Hugging Face Hub, or of training (-m)'
      )
    bundle, ids = loading.load_first_step(model, _output_id, vocabulary)
    bundle = self._reading(bundle)
    name = str(
      bundle.settings.get('name') or kinds.folder(model).resolve().name
    )
    self.version = _version(version or bundle.settings.get('version'), name)
    if source_based is None:
      source_based = bool(bundle.settings.get('source_based', False))
    self.source_based = source_based
    self.reads_references = not source_based
    usual = prompts.METRICX_LENGTHS[self.version]
    self._scorer = FirstStepScorer(
      bundle,
      ids,
      self._max_length or int(bundle.settings.get('max_length', usual)),
      **self._placing,
    )
    self._vocabulary = bundle.vocabulary
    self._identify(name, bundle, bundle.vocabulary)

  @property
  def form(self) -> str:
    """The texts read with the hypothesis, one of `prompts.FORMS`."""
    if self.source_based:
      return 'source'
    return 'reference' if self.version == 23 else 'source+reference'

  def signature(self, **observed: object) -> str:
    """The settings and versions; that of scores also has `nrefs`."""
    return self._sign(
      sign='negated',
      input=self.version,
      conditioning=self.form,
      **observed,
      length=self._scorer.max_length,
      dtype=self._scorer.dtype,
    )

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    observed: dict[str, object] = {}
    references: list[tuple[str | None, ...]] = [(None,)] * len(segments)
    if 'reference' in self.form:
      observed = self._references(segments)
      references = [segment.references for segment in segments]
    if 'source' in self.form:
      base.require_sources(segments, self.name)
    texts: dict[str, int] = {}
    index = np.full((len(segments), max(map(len, references), default=0)), -1)
    for row, (segment, several) in enumerate(
      zip(segments, references, strict=True)
    ):
      for column, reference in enumerate(several):
        text = prompts.metricx(
          self.version, self.form, segment.hypothesis, segment.source, reference
        )
        index[row, column] = texts.setdefault(text, len(texts))
    ids, cut = prompts.encode_metricx(
      list(texts), self._vocabulary, self._scorer.max_length
    )
    logits = self._scorer.logits(ids, self.progress)[:, 0]
    # Avoids -0.0 for a perfect translation.
    values = 0.0 - np.clip(logits, *prompts.METRICX_RANGE)
    return base.Scores(
      _models.over_references(values, index, self.reference_rule),
      self.signature(**observed),
      truncated=sum(cut),
      texts=len(texts),
    )


def _output_id(bundle: Bundle) -> tuple[int]:
  return (int(bundle.settings.get('output_id', prompts.METRICX_ID)),)


def _version(version: int | None, name: str) -> int:
  if version not in _VERSIONS:
    known = ' or '.join(map(str, _VERSIONS))
    raise OptionError(
      f'version {version!r}: MetricX {known}'
      if version
      else f'{name}: nothing says which MetricX this is, and the two read '
      f'different inputs: give --option version={known}'
    )
  return int(version)
