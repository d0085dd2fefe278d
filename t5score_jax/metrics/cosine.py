"""Cosine of the sentence vectors of hypothesis and source (or reference).

UScore's sentence-based metric (Belouadi and Eger 2023, section 3.2): cos(x, y),
where a text's vector is the mean of its states in one layer of an encoder,
special tokens included. `t5score contrast` trains such encoders without
parallel text. The score is in [-1, 1], and 1 for identical texts.

Not here: vectors of texts (`inference/embedding.py`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5score_jax.checkpoints import kinds, packaged, regressors
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.crosslingual import words
from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.inference import embedding, encoding, prediction
from t5score_jax.metrics import _models, base
from t5score_jax.nn import heads

CONDITIONINGS = ('source', 'reference')


class Metric(_models.ModelMetric):
  """Cosine of mean-pooled sentence vectors."""

  name = 'Cosine'
  READS = ('encoder', 'miniature')

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    conditioning: str = 'source',
    layer: int = -1,
    **options: Any,
  ):
    """Loads the encoder.

    Args:
      model: The folder of an encoder, or the name of an installed one.
      conditioning: What the hypothesis is compared with: 'source', or
        'reference' (one or several).
      layer: The hidden states to use; 0 is the embeddings, -1 the last layer.
      **options: See `_models.ModelMetric`.

    Raises:
      FileNotFoundError: There is no such folder.
      OptionError: No model is named, or a value is out of range.
    """
    super().__init__(**options)
    base.check_choice('conditioning', conditioning, CONDITIONINGS)
    if not model:
      raise OptionError(
        f'{self.name} needs an encoder: give the folder of one (BERT, RoBERTa, '
        'XLM-R, as Hugging Face saves them) as the model (-m), or the name of '
        f'an installed one: {", ".join(packaged.NAMES)}'
      )
    bundle = self._reading(encoders.load_encoder(kinds.folder(model)))
    (number,) = encoding.resolve_layers([layer], bundle.config.num_layers)
    self.conditioning = conditioning
    self.reads_references = conditioning == 'reference'
    self._encoder = embedding.TextEmbedder(
      regressors.Regressor(
        heads.RegressorConfig(bundle.config, layer=number, pooling='mean'),
        {'encoder': bundle.params},
        bundle.tokenizer,
      ),
      max_length=self._max_length,
      **self._placing,
    )
    self._identify(bundle.name, bundle, bundle.tokenizer)

  def signature(self, **observed: object) -> str:
    """The settings and versions; that of scores also has `nrefs`."""
    return self._sign(
      conditioning=self.conditioning,
      layer=self._encoder.layers[0],
      pooling='mean',
      **observed,
      length=self._encoder.max_length,
      dtype=self._encoder.dtype,
    )

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    observed: dict[str, object] = {}
    if self.conditioning == 'source':
      base.require_sources(segments, self.name)
      others: list[tuple[str, ...]] = [(s.source or '',) for s in segments]
    else:
      observed = self._references(segments)
      others = [s.references for s in segments]
    texts = [s.hypothesis for s in segments]
    texts += [text for several in others for text in several]
    vectors = self._encoder.vectors(texts, self.progress)
    unit = words.unit(vectors.values.astype(np.float64))
    owners = np.repeat(
      np.arange(len(segments)), [len(several) for several in others]
    )
    cosines = np.sum(unit[owners] * unit[len(segments) :], axis=1)
    scores = prediction.over_references(
      cosines[:, None], owners, self.reference_rule
    )
    return base.Scores(
      scores[:, 0].astype(np.float32),
      self.signature(**observed),
      truncated=vectors.cut,
      texts=vectors.texts,
    )
