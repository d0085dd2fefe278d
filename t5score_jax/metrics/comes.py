"""COMES and COMET: an encoder and a regressor trained on human judgments.

COMET (Rei et al. 2020) reads hypothesis, source and reference, or only the
first two (COMET-QE), and predicts one number. COMES (2022, section 3) predicts
one per quality dimension. A segment's score is the chosen output or the mean of
all outputs. With several references the best counts, as in the paper's tests.

Not here: the network (`nn/heads.py`), vectors of texts
(`inference/embedding.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.inference import embedding, prediction
from t5score_jax.metrics import _models, _regressors, _utilities, base

MEAN = 'mean'

# Groups with candidate and reference indices, int [P] each.
_Pairs = Sequence[tuple[int, np.ndarray, np.ndarray]]


class Metric(_models.ModelMetric):
  """A regressor as a metric."""

  name = 'COMES'
  MODELS = ('estimator', 'comet')

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    output: str = MEAN,
    tokenizer: str | os.PathLike[str] | None = None,
    layer_transformation: str | None = None,
    num_heads: int | None = None,
    windows: bool | None = None,
    stride: int | None = None,
    **options: Any,
  ):
    """Loads the model.

    Args:
      model: The folder of a regressor or of a COMET checkpoint (`hparams.yaml`
        and a `.ckpt`), or a MODEL_DIR or checkpoint of training.
      output: The output used as the score, or 'mean' for the mean of all.
      tokenizer: For a COMET checkpoint; see
        `checkpoints.formats.comet.checkpoint.load_comet`.
      layer_transformation: Likewise.
      num_heads: Likewise.
      windows: Whether texts longer than `max_length` are read whole, in
        windows whose vectors are averaged (with max pooling: their maximum);
        see `inference/embedding.py`. The paper truncates them. Layers
        normalised before the mix use each window's statistics.
      stride: Minimum number of tokens that adjacent windows share. By default
        the model's settings of both are used, else windows are off.
      **options: See `_models.ModelMetric`.

    Raises:
      FileNotFoundError: There is no such folder.
      ValueError: An option is out of range, or the model is damaged.
    """
    super().__init__(**options)
    loaded = self._reading(
      _regressors.load(
        model,
        self.name,
        self.MODELS,
        tokenizer,
        num_heads,
        layer_transformation,
      )
    )
    outputs = loaded.config.outputs
    if output != MEAN and output not in outputs:
      raise OptionError(
        f'output {output!r}: the model has {", ".join(outputs)}, and {MEAN}'
      )
    self.output = output
    self.outputs = outputs
    self._config = loaded.config
    self.reads_references = loaded.config.reference
    # The head alone: the encoder's weights are on the devices.
    self._regressor = dataclasses.replace(
      loaded, params={'estimator': loaded.params['estimator']}
    )
    if self._max_length is None:
      self._max_length = loaded.settings.get('max_length')
    if windows is None:
      windows = bool(loaded.settings.get('windows', False))
      if windows and stride is None:
        stride = int(loaded.settings.get('stride', 0))
    self._encoder = embedding.TextEmbedder(
      loaded,
      max_length=self._max_length,
      windows=windows,
      stride=stride or 0,
      **self._placing,
    )
    name = loaded.settings.get('name') or Path(str(model)).name
    self._identify(name, loaded, loaded.tokenizer)

  def signature(self, **observed: object) -> str:
    """The settings and versions; that of scores also has `nrefs`."""
    c = self._config
    mixed = c.layer_transformation if c.layer == 'mix' else ''
    return self._sign(
      output=self.output,
      conditioning='source+reference' if c.reference else 'source',
      **({'mix': mixed} if mixed else {}),
      **observed,
      length=self._encoder.max_length,
      **self._windows(),
      dtype=self._encoder.dtype,
    )

  def _windows(self) -> dict[str, str]:
    if not self._encoder.windows:
      return {}
    return {'windows': f'stride{self._encoder.stride}'}

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; each output of the model is a component."""
    base.require_sources(segments, self.name)
    observed: dict[str, object] = {}
    texts = [s.hypothesis for s in segments]
    texts += [s.source or '' for s in segments]
    count = len(segments)
    # One instance per reference; hypotheses, sources and references index the
    # rows of the vectors.
    owners, references = np.arange(count), None
    if self._config.reference:
      observed = self._references(segments)
      owners = np.repeat(owners, [len(s.references) for s in segments])
      references = 2 * count + np.arange(len(owners))
      texts += [text for s in segments for text in s.references]
    vectors = self._encoder.vectors(texts, self.progress)
    values = prediction.outputs(
      self._regressor, vectors.values, owners, count + owners, references
    )
    chosen = prediction.over_references(
      values.astype(np.float64), owners, self.reference_rule
    )
    return base.Scores(
      self._chosen(chosen).astype(np.float32),
      self.signature(**observed),
      {
        name: chosen[:, n].astype(np.float32)
        for n, name in enumerate(self.outputs)
        if len(self.outputs) > 1
      },
      truncated=vectors.cut,
      texts=vectors.texts,
      notes=_notes(vectors),
    )

  def utilities(self, groups: Sequence[_utilities.Group]) -> Utilities:
    """Encodes each text of the groups once; see `base.Metric.utilities`."""
    return Utilities(self, groups)

  def _chosen(self, outputs: np.ndarray) -> np.ndarray:
    """The score of each row of outputs, [N, outputs] -> [N]."""
    if self.output == MEAN:
      return outputs.mean(1)
    return outputs[:, self.outputs.index(self.output)]


class Utilities(_utilities.Utilities):
  """Utilities of a regressor: one vector per text, one head per pair.

  References are averaged as vectors (Vamvas and Sennrich 2024).
  """

  metric: Metric

  def __init__(self, metric: Metric, groups: Sequence[_utilities.Group]):
    super().__init__(metric, groups)
    sources = [
      Segment('', source=group.source, segment=group.name) for group in groups
    ]
    base.require_sources(sources, metric.name)
    counts = [len(group.candidates) for group in groups]
    # Candidates, references and sources of all groups, in order.
    texts = [text for group in groups for text in group.candidates]
    self._first = np.cumsum([0, *counts])
    texts += [text for group in groups for text in group.references]
    references = [len(group.references) for group in groups]
    self._first_reference = np.cumsum([0, *references])
    texts += [group.source or '' for group in groups]
    vectors = metric._encoder.vectors(texts, metric.progress)
    self.cut = vectors.cut
    ends = np.cumsum([sum(counts), sum(references)])
    self._hypotheses, self._references, origins = np.split(vectors.values, ends)
    self._sources = np.repeat(origins, counts, axis=0)
    self._pairs = self._paired(self._references)

  def matrices(
    self, rows: _utilities.Indices, columns: _utilities.Indices
  ) -> list[np.ndarray]:
    """See `_utilities.Utilities.matrices`."""
    one, both = [], []
    for n, (row, column) in enumerate(zip(rows, columns, strict=True)):
      if self._symmetric(n, row, column):
        i, j = np.triu_indices(len(row), 1)
        both.append((n, row[i], row[j]))
        one.append((n, row, row))
      else:
        i, j = (
          part.ravel() for part in np.meshgrid(row, column, indexing='ij')
        )
        one.append((n, i, j))
    values = self._one_way(one)
    upper = iter(self._both_ways(both))
    found = []
    for n, (row, column) in enumerate(zip(rows, columns, strict=True)):
      if not self._symmetric(n, row, column):
        found.append(values[n].reshape(len(row), len(column)))
        continue
      matrix = np.diag(values[n])
      i, j = np.triu_indices(len(row), 1)
      matrix[i, j], matrix[j, i] = next(upper)
      found.append(matrix)
    return found

  def _symmetric(self, n: int, row: np.ndarray, column: np.ndarray) -> bool:
    """Whether both (i, j) and (j, i) are wanted; they share most work."""
    group = self.groups[n]
    return group.candidates == group.references and np.array_equal(row, column)

  def aggregated(
    self, rows: _utilities.Indices, weights: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """See `_utilities.Utilities.aggregated`."""
    parts = np.split(self._references, self._first_reference[1:-1])
    means = np.stack(
      [
        weight.astype(np.float32) @ part
        for weight, part in zip(weights, parts, strict=True)
      ]
    )
    group = [np.full(len(row), n) for n, row in enumerate(rows)]
    own = [row + self._first[n] for n, row in enumerate(rows)]
    outputs = self._paired(means).outputs(
      np.concatenate(own), np.concatenate(group)
    )
    return self._per_group(outputs, [len(row) for row in rows])

  def _paired(self, references: np.ndarray) -> prediction.PairedOutputs:
    return prediction.PairedOutputs(
      self.metric._regressor, self._hypotheses, self._sources, references
    )

  def _one_way(self, wanted: _Pairs) -> list[np.ndarray]:
    """The utilities of pairs of each group, float64 [P] each."""
    outputs = self._pairs.outputs(
      np.concatenate([i + self._first[n] for n, i, _ in wanted]),
      np.concatenate([j + self._first_reference[n] for n, _, j in wanted]),
    )
    return self._per_group(outputs, [len(i) for _, i, _ in wanted])

  def _both_ways(self, wanted: _Pairs) -> list[tuple[np.ndarray, np.ndarray]]:
    """The utilities of (i, j) and of (j, i)."""
    if not wanted:
      return []
    counts = [len(i) for _, i, _ in wanted]
    columns = [
      np.concatenate([pair[side] + first[pair[0]] for pair in wanted])
      for first in (self._first, self._first_reference)
      for side in (1, 2)
    ]
    one, other = self._pairs.both(*columns)
    return list(
      zip(
        self._per_group(one, counts),
        self._per_group(other, counts),
        strict=True,
      )
    )

  def _per_group(
    self, outputs: np.ndarray, counts: Sequence[int]
  ) -> list[np.ndarray]:
    scores = self.metric._chosen(outputs.astype(np.float64))
    return np.split(scores, np.cumsum(counts)[:-1])


def _notes(vectors: embedding.TextVectors) -> tuple[str, ...]:
  if not vectors.windowed:
    return ()
  windowed = base.share(vectors.windowed, vectors.texts)
  return (f'{windowed} were read in several windows',)
