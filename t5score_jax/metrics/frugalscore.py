"""FrugalScore: a miniature that learned an expensive metric's scores.

One small encoder reads hypothesis and reference together (Kamal Eddine et al.
2022): a score costs one pass over a pair, whatever its teacher cost. With
several references the best counts, or the mean. Not here: the network
(``nn/cross_encoder.py``) and its training (``gin_configs/``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5score_jax.checkpoints import cross_encoders, kinds
from t5score_jax.checkpoints.formats.huggingface.encoders import EncoderBundle
from t5score_jax.data.records import Segment
from t5score_jax.inference import encoding
from t5score_jax.metrics import _token_states as token_states
from t5score_jax.metrics import base
from t5score_jax.nn import cross_encoder

DEFAULT_MODEL = 'frugalscore-tiny'


class Metric(base.Metric):
  """FrugalScore with one miniature.

  Attributes:
    progress: called with (pairs done, pairs in all) while scoring; None.
  """

  name = 'FrugalScore'
  MODELS = ('miniature',)

  def __init__(
    self,
    model: str | os.PathLike[str] = DEFAULT_MODEL,
    reference_rule: str = 'max',
    max_length: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = 'float32',
    num_partitions: int = 1,
    spread: bool = False,
  ):
    """Loads the model.

    Args:
      model: the name of an embedded model, the folder of a miniature, ours or
        a published one, or a MODEL_DIR or checkpoint of training.
      reference_rule: 'max' or 'mean', with several references.
      max_length: tokens a pair, the longer text cut first. Default: the
        model's own, else 128, the paper's, or what there are positions for.
      batch_tokens: tokens a batch on one device; bounds memory, scores don't
        depend on it.
      dtype: of the encoder, 'float32' or 'bfloat16'.
      num_partitions: devices over which the weights are divided, for encoders
        that don't fit one.
      spread: whether all processes of ``processes.start`` score the same
        segments; each does its share and has all scores.

    Raises:
      FileNotFoundError: there is no such folder.
      ValueError: an option has a value that it can't have, or the model is
        damaged.
    """
    base.check_choice(
      'reference_rule', reference_rule, token_states.REFERENCE_RULES
    )
    found = load(model)
    self.reference_rule = reference_rule
    if max_length is None:
      usual = min(cross_encoders.MAX_LENGTH, found.config.max_length)
      max_length = int(found.settings.get('max_length', usual))
    self._scorer = PairScorer(
      found,
      max_length=max_length,
      batch_tokens=batch_tokens,
      dtype=dtype,
      num_partitions=num_partitions,
      spread=spread,
    )
    self.num_parameters = base.count_parameters(found.params)
    self._model = token_states.identity(
      found.settings.get('name') or Path(model).name, found
    )

  def signature(self) -> str:
    """The settings and versions; that of scores says `nrefs` as well."""
    return self._sign_with({})

  def _sign_with(self, observed: Mapping[str, object]) -> str:
    return token_states.sign(
      {
        'metric': self.name,
        **self._model,
        **observed,
        'length': self._scorer.max_length,
        'dtype': self._scorer.dtype,
      }
    )

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    observed = {
      'nrefs': base.require_references(segments, self.name) if segments else 0,
      'refs': self.reference_rule,
    }
    pairs: dict[tuple[str, str], int] = {}
    most = max((len(s.references) for s in segments), default=0)
    places = np.full((len(segments), most), -1)
    for row, segment in enumerate(segments):
      for column, reference in enumerate(segment.references):
        pair = segment.hypothesis, reference
        places[row, column] = pairs.setdefault(pair, len(pairs))
    values, truncated = self._scorer.scores(list(pairs), self.progress)
    scores = token_states.collect(values, places, self.reference_rule)
    return base.Scores(
      scores.astype(np.float32),
      self._sign_with(observed),
      truncated=truncated,
      texts=len(pairs),
    )


class PairScorer(encoding.RowEncoder):
  """A cross-encoder on all local devices; options as its base class has."""

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
    """Scores of (hypothesis, reference) pairs, float32 [N]; how many cut."""
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
  """Loads a miniature by its name, from its folder or from that of a run.

  Raises:
    FileNotFoundError: there is no such model.
    ValueError: it is none, or damaged.
  """
  path = kinds.folder(model)
  if kinds.of(path) != kinds.CROSS_ENCODER or kinds.has_weights(path):
    return cross_encoders.load(path)
  # Orbax takes a second to import.
  from t5score_jax.checkpoints import native

  loaded = native.load_regressor(path)
  assert isinstance(loaded, cross_encoders.CrossEncoder)
  return loaded
