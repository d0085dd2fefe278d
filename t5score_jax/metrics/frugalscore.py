"""FrugalScore: a cross-encoder distilled from an expensive metric.

One small encoder reads hypothesis and reference together (Kamal Eddine et al.
2022). A score takes one pass over a pair, however expensive the teacher was.
With several references, the score is the best or the mean. Not here: the
network (`nn/cross_encoder.py`), training (`gin_configs/`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5score_jax.checkpoints import cross_encoders, kinds, loading
from t5score_jax.checkpoints.formats.huggingface.encoders import EncoderBundle
from t5score_jax.data.records import Segment
from t5score_jax.inference import encoding
from t5score_jax.metrics import _models, base
from t5score_jax.nn import cross_encoder

DEFAULT_MODEL = 'frugalscore-tiny'


class Metric(_models.ModelMetric):
  """FrugalScore with one cross-encoder."""

  name = 'FrugalScore'
  MODELS = ('miniature',)

  def __init__(
    self, model: str | os.PathLike[str] = DEFAULT_MODEL, **options: Any
  ):
    """Loads the model.

    Args:
      model: The name of an embedded model; the folder of a cross-encoder,
        trained here or published; or a MODEL_DIR or checkpoint of training.
      **options: See `_models.ModelMetric`; if a pair is too long, its longer
        text is truncated first.

    Raises:
      FileNotFoundError: There is no such model.
      ValueError: An option is out of range, or the model is damaged.
    """
    super().__init__(**options)
    loaded = self._reading(load(model))
    usual = min(cross_encoders.MAX_LENGTH, loaded.config.max_length)
    if self._max_length is None:
      self._max_length = int(loaded.settings.get('max_length', usual))
    self._scorer = PairScorer(
      loaded, max_length=self._max_length, **self._placing
    )
    name = loaded.settings.get('name') or Path(model).name
    self._identify(name, loaded, loaded.tokenizer)

  def signature(self, **observed: object) -> str:
    """The settings and versions; that of scores also has `nrefs`."""
    return self._sign(
      **observed, length=self._scorer.max_length, dtype=self._scorer.dtype
    )

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    observed = self._references(segments)
    pairs, index = _models.distinct_pairs(segments)
    values, truncated = self._scorer.scores(pairs, self.progress)
    return base.Scores(
      _models.over_references(values, index, self.reference_rule),
      self.signature(**observed),
      truncated=truncated,
      texts=len(pairs),
    )


class PairScorer(encoding.RowEncoder):
  """A cross-encoder on all local devices; same options as its base class."""

  def __init__(self, model: cross_encoders.CrossEncoder, **options: Any):
    super().__init__(
      EncoderBundle(model.config, model.params, model.tokenizer, ''), **options
    )

  def _logical_axes(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
    return cross_encoder.logical_axes(params)

  def _apply(
    self,
    kind: str,
    params: Mapping[str, Any],
    tokens: jax.Array,
    types: jax.Array,
  ) -> jax.Array:
    return cross_encoder.predict(params, self._config, tokens, types)

  def scores(
    self,
    pairs: Sequence[tuple[str, str]],
    progress: encoding.Progress | None = None,
  ) -> tuple[np.ndarray, int]:
    """Scores (hypothesis, reference) pairs [N]; also counts truncated ones."""
    values = np.zeros(len(pairs), np.float32)
    cut = 0
    for start in range(0, len(pairs), encoding.WINDOW):
      part = pairs[start : start + encoding.WINDOW]
      encoded = self.tokenizer.encode_pairs(part, self.max_length)
      values[start : start + len(part)] = self.rows(
        [e.ids for e in encoded],
        [e.types for e in encoded],
        kind='score',
        done=encoding.within(progress, start, len(part), len(pairs)),
      )
      cut += sum(e.cut for e in encoded)
    return values, cut


def load(model: str | os.PathLike[str]) -> cross_encoders.CrossEncoder:
  """Loads a cross-encoder from its name, its folder or a run's folder.

  Raises:
    FileNotFoundError: There is no such model.
    ValueError: It is another model, or damaged.
  """
  path = kinds.folder(model)
  if kinds.of(path) != kinds.CROSS_ENCODER or kinds.has_weights(path):
    return cross_encoders.load(path)
  loaded = loading.load_regressor(path)
  assert isinstance(loaded, cross_encoders.CrossEncoder)
  return loaded
