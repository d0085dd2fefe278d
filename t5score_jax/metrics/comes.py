"""COMES and COMET: an encoder and a regressor trained on human judgments.

COMET (Rei et al. 2020) reads hypothesis, source and reference, or only the
first two (COMET-QE), and gives one number; COMES (2022, section 3) gives one a
quality dimension. A segment's score is the output that was asked for, or the
mean of all. With several references the best counts, as in the paper's tests.

Not here: the network (``nn/heads.py``), nor how texts become vectors
(``inference/embedding.py``).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.checkpoints import kinds, regressors
from t5score_jax.checkpoints.formats import comet
from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.inference import embedding, prediction
from t5score_jax.metrics import _token_states as token_states
from t5score_jax.metrics import base

MEAN = 'mean'


class Metric(base.Metric):
  """A regressor as a metric.

  Attributes:
    progress: called with (texts done, texts in all) while scoring; None.
  """

  name = 'COMES'
  MODELS = ('estimator', 'comet')

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    output: str = MEAN,
    reference_rule: str = 'max',
    tokenizer: str | os.PathLike[str] | None = None,
    layer_transformation: str | None = None,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = 'float32',
    windows: bool | None = None,
    stride: int | None = None,
    num_partitions: int = 1,
    spread: bool = False,
  ):
    """Loads the model.

    Args:
      model: an estimator's folder, that of a COMET checkpoint
        (``hparams.yaml`` and a ``.ckpt``), or a MODEL_DIR or checkpoint of
        training.
      output: the output that is the score, or 'mean' of all.
      reference_rule: 'max' or 'mean', with several references.
      tokenizer: of a COMET checkpoint, see ``checkpoints.comet.load_comet``.
      layer_transformation: of a COMET checkpoint, likewise.
      max_length: tokens a text; the rest is cut, and counted, or read in
        windows of so many. Default: the model's, else what its encoder has
        positions for.
      batch_tokens: tokens a batch on one device; bounds memory, scores don't
        depend on it.
      dtype: of the encoder, 'float32' or 'bfloat16'.
      windows: whether texts longer than that are read whole, in windows whose
        vectors are averaged (pooling by maxima: their maximum), see
        ``inference/embedding.py``. The paper cuts them. Layers that are
        normalised before the mix are so by each window's own statistics.
      stride: tokens that neighbouring windows share at least. Default, of both:
        the model's, else not at all.
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
    found = load(model, tokenizer, layer_transformation)
    outputs = found.config.outputs
    if output != MEAN and output not in outputs:
      raise OptionError(
        f'output {output!r}: the model has {", ".join(outputs)}, and {MEAN}'
      )
    self.output = output
    self.outputs = outputs
    self.reference_rule = reference_rule
    self._config = found.config
    # The head alone: the encoder's weights lie on the devices.
    self._regressor = dataclasses.replace(
      found, params={'estimator': found.params['estimator']}
    )
    if max_length is None:
      max_length = found.settings.get('max_length')
    if windows is None:
      windows = bool(found.settings.get('windows', False))
      if windows and stride is None:
        stride = int(found.settings.get('stride', 0))
    self._encoder = embedding.TextEmbedder(
      found,
      max_length=max_length,
      batch_tokens=batch_tokens,
      dtype=dtype,
      num_partitions=num_partitions,
      spread=spread,
      windows=windows,
      stride=stride or 0,
    )
    self.num_parameters = base.count_parameters(found.params)
    self._model = token_states.identity(
      found.settings.get('name') or Path(str(model)).name, found
    )

  def signature(self) -> str:
    """The settings and versions; that of scores says `nrefs` as well."""
    return self._sign_with({})

  def _sign_with(self, observed: Mapping[str, object]) -> str:
    mixed = (
      self._config.layer_transformation if self._config.layer == 'mix' else ''
    )
    return token_states.sign(
      {
        'metric': self.name,
        **self._model,
        'output': self.output,
        'conditioning': (
          'source+reference' if self._config.reference else 'source'
        ),
        **({'mix': mixed} if mixed else {}),
        **observed,
        'length': self._encoder.max_length,
        **self._windows(),
        'dtype': self._encoder.dtype,
      }
    )

  def _windows(self) -> dict[str, str]:
    if not self._encoder.windows:
      return {}
    return {'windows': f'stride{self._encoder.stride}'}

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; every output of the model is a component."""
    base.require_sources(segments, self.name)
    observed: dict[str, object] = {}
    texts = [s.hypothesis for s in segments]
    texts += [s.source or '' for s in segments]
    count = len(segments)
    # One instance a reference: hypotheses, sources and references are rows of
    # the vectors.
    owners, references = np.arange(count), None
    if self._config.reference:
      observed['nrefs'] = base.require_references(segments, self.name)
      observed['refs'] = self.reference_rule
      owners = np.repeat(owners, [len(s.references) for s in segments])
      references = 2 * count + np.arange(len(owners))
      texts += [text for s in segments for text in s.references]
    found = self._encoder.vectors(texts, self.progress)
    values = prediction.outputs(
      self._regressor, found.values, owners, count + owners, references
    )
    chosen = prediction.over_references(
      values.astype(np.float64), owners, self.reference_rule
    )
    scores = chosen.mean(1)
    if self.output != MEAN:
      scores = chosen[:, self.outputs.index(self.output)]
    return base.Scores(
      scores.astype(np.float32),
      self._sign_with(observed),
      {
        name: chosen[:, n].astype(np.float32)
        for n, name in enumerate(self.outputs)
        if len(self.outputs) > 1
      },
      truncated=found.cut,
      texts=found.texts,
      notes=_notes(found),
    )


def _notes(found: embedding.TextVectors) -> tuple[str, ...]:
  if not found.windowed:
    return ()
  return (
    f'{base.share(found.windowed, found.texts)} were read in several windows',
  )


def load(
  model: str | os.PathLike[str] | None,
  tokenizer: str | os.PathLike[str] | None = None,
  layer_transformation: str | None = None,
) -> regressors.Regressor:
  """Loads an estimator from its folder or a run's, or a COMET checkpoint.

  Raises:
    FileNotFoundError: there is no such folder.
    ValueError: none is named, or it is damaged.
  """
  if not model:
    raise OptionError(
      'COMES needs a model: give the folder of an estimator or of a COMET '
      'checkpoint as the model (-m)'
    )
  path = kinds.folder(model)
  if kinds.of(path) != kinds.REGRESSOR:
    return comet.load_comet(
      path, tokenizer, layer_transformation=layer_transformation
    )
  if tokenizer or layer_transformation:
    raise OptionError(
      'tokenizer and layer_transformation are for COMET checkpoints'
    )
  if kinds.has_weights(path):
    return regressors.load(path)
  # Orbax takes a second to import.
  from t5score_jax.checkpoints import native

  loaded = native.load_regressor(path)
  assert isinstance(loaded, regressors.Regressor)
  return loaded
