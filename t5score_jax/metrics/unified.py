"""UnifiedMetric: UniTE and CometKiwi, which read texts as one sequence.

The hypothesis is read with the source, with the reference and with both
(`nn/unified.py`). The score is the mean of the three numbers (Wan et al. 2022;
Rei et al. 2022), or the only one that the model or the segments allow. Networks
that tag words find errors as well. Not here: XCOMET's score
(`metrics/xcomet.py`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5score_jax.data.records import Segment
from t5score_jax.data.subwords import JsonTokenizer
from t5score_jax.errors import OptionError
from t5score_jax.inference import joint
from t5score_jax.metrics import _models, _regressors, _spans, base
from t5score_jax.nn import unified

MEAN = 'mean'
# COMET's weights for the tag probabilities from the three inputs.
_TAG_WEIGHTS = {'source': 0.1667, 'reference': 0.3333, 'unified': 0.5}


class Metric(_models.ModelMetric):
  """A network that reads texts as one sequence, as a metric."""

  name = 'UnifiedMetric'
  MODELS: ClassVar[tuple[str, ...]] = ('unified', 'comet-unified')
  READS: ClassVar[tuple[str, ...]] = ('xcomet', 'comet-xcomet')
  _needs_tags = False

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    output: str = MEAN,
    threshold: float | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    layer_transformation: str | None = None,
    num_heads: int | None = None,
    **options: Any,
  ):
    """Loads the model.

    Args:
      model: The folder of a COMET checkpoint (`hparams.yaml` and a `.ckpt`), of
        a regressor of this kind, or a MODEL_DIR or checkpoint of training.
      output: The input whose score is used: 'source', 'reference' or 'unified';
        'mean' combines those for which the segments have the texts.
      threshold: For networks that tag words. A token is an error if the
        probabilities of its severities sum to more than this, in (0, 1).
        Default: if a severity is the most probable tag.
      tokenizer: For a COMET checkpoint; see
        `checkpoints.formats.comet.checkpoint.load_comet`.
      layer_transformation: Likewise.
      num_heads: Likewise.
      **options: See `_models.ModelMetric`; `max_length` is that of a joint
        sequence.

    Raises:
      FileNotFoundError: There is no such folder.
      ValueError: An option is out of range, or the model is damaged.
    """
    super().__init__(**options)
    loaded = self._reading(
      _regressors.load(
        model,
        self.name,
        (*self.MODELS, *self.READS),
        tokenizer,
        num_heads,
        layer_transformation,
      )
    )
    c = loaded.config
    assert isinstance(c, unified.UnifiedConfig)
    base.check_choice('output', output, (MEAN, *c.inputs))
    if self._needs_tags and not c.labels:
      raise OptionError(
        f'{self.name} needs a model that tags words, which this one does not; '
        '--metric unified scores with it'
      )
    if threshold is not None and not (c.labels and 0 < threshold < 1):
      raise OptionError(
        f'threshold {threshold}: above 0 and below 1, for a model that tags '
        'words'
      )
    self.output = output
    self.threshold = threshold
    self._config = c
    self.reads_references = any(
      'reference' in unified.INPUTS[name]
      for name in (c.inputs if output == MEAN else (output,))
    )
    if self._max_length is None:
      self._max_length = loaded.settings.get('max_length')
    self._scorer = joint.JointScorer(
      loaded, max_length=self._max_length, **self._placing
    )
    name = loaded.settings.get('name') or Path(str(model)).name
    self._identify(name, loaded, loaded.tokenizer)

  @property
  def labels(self) -> tuple[str, ...]:
    """The severities of errors that the network tags; empty without tags."""
    return self._config.labels

  def signature(self, **observed: object) -> str:
    """The settings and versions; that of scores also has `inputs`, `nrefs`."""
    c = self._config
    mixed = c.layer_transformation if c.layer == 'mix' else ''
    return self._sign(
      output=self.output,
      **({'mix': mixed} if mixed else {}),
      **({'threshold': self.threshold} if self.threshold else {}),
      **observed,
      length=self._scorer.max_length,
      dtype=self._scorer.dtype,
    )

  def score_segments(self, segments: Sequence[Segment]) -> _spans.Scores:
    """Scores segments; each input's score is a component."""
    inputs, observed = self._inputs(segments)
    owners, rows = _rows(segments, inputs)
    distinct = list(dict.fromkeys(texts for row in rows for texts in row))
    place = {texts: n for n, texts in enumerate(distinct)}
    readings = self._scorer.read(distinct, self.progress)
    index = np.array([[place[texts] for texts in row] for row in rows], int)
    index = index.reshape(len(rows), len(inputs))
    parts = {
      name: readings.scores[index[:, n]] for n, name in enumerate(inputs)
    }
    spans = self._spans(readings, index, inputs, segments, owners)
    values, parts = self._combined(parts, spans)
    columns = {f'{name}_score': column for name, column in parts.items()}
    chosen, best = _over_references(
      {'': values, **columns}, owners, self.reference_rule
    )
    return _spans.Scores(
      chosen.pop('').astype(np.float32),
      self.signature(inputs='+'.join(inputs), **observed),
      {n: v.astype(np.float32) for n, v in chosen.items() if len(chosen) > 1},
      truncated=readings.cut,
      texts=len(distinct),
      notes=self._notes(inputs),
      spans=None if spans is None else [spans[n] for n in best],
    )

  def _combined(
    self,
    parts: dict[str, np.ndarray],
    spans: Sequence[tuple[_spans.ErrorSpan, ...]] | None,
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the scores of R rows, float64 [R], and their components."""
    del spans
    return np.mean([v.astype(np.float64) for v in parts.values()], 0), parts

  def _notes(self, inputs: Sequence[str]) -> tuple[str, ...]:
    if self.output != MEAN or len(inputs) == len(self._config.inputs):
      return ()
    (name,) = inputs
    return (f'the segments have only a {name}: the score of that input alone',)

  def _inputs(
    self, segments: Sequence[Segment]
  ) -> tuple[tuple[str, ...], dict[str, object]]:
    """Returns the inputs that are read and the settings for signatures."""
    names = self._config.inputs
    if self.output != MEAN:
      names = (self.output,)
    elif len(names) > 1:
      present = {
        'source': any(s.source is not None for s in segments),
        'reference': any(s.references for s in segments),
      }
      readable = [
        n for n in names if all(present[text] for text in unified.INPUTS[n])
      ]
      names = tuple(readable) or names
    read = {text for name in names for text in unified.INPUTS[name]}
    if 'source' in read:
      base.require_sources(segments, self.name)
    return names, self._references(segments) if 'reference' in read else {}

  def _spans(
    self,
    readings: joint.Readings,
    index: np.ndarray,
    inputs: Sequence[str],
    segments: Sequence[Segment],
    owners: np.ndarray,
  ) -> list[tuple[_spans.ErrorSpan, ...]] | None:
    """The errors in each row; None if the network has no tags."""
    if not self._config.labels:
      return None
    tokenizer = self._scorer.tokenizer
    assert isinstance(tokenizer, JsonTokenizer)
    offsets = tokenizer.offsets(
      [s.hypothesis for s in segments], self._scorer.text_length
    )
    weights = [np.float32(_TAG_WEIGHTS[name]) for name in inputs]
    if len(inputs) == 1:
      weights = [np.float32(1)]
    found = []
    for row, owner in zip(index, owners, strict=True):
      tags = sum(
        w * readings.tags[n] for w, n in zip(weights, row, strict=True)
      )
      found.append(
        _spans.decode(tags, offsets[owner], self.labels, self.threshold)
      )
    return found


def _rows(
  segments: Sequence[Segment], inputs: Sequence[str]
) -> tuple[np.ndarray, list[list[tuple[str, ...]]]]:
  """Returns each row's segment, int [R], and the texts of its inputs.

  A segment has one row per reference, or a single row if none is read.
  """
  owners: list[int] = []
  rows = []
  compared = any('reference' in unified.INPUTS[name] for name in inputs)
  for n, segment in enumerate(segments):
    for reference in segment.references if compared else ('',):
      texts = {'source': segment.source or '', 'reference': reference}
      owners.append(n)
      rows.append(
        [
          (segment.hypothesis, *(texts[t] for t in unified.INPUTS[name]))
          for name in inputs
        ]
      )
  return np.array(owners, int), rows


def _over_references(
  columns: dict[str, np.ndarray], owners: np.ndarray, rule: str
) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """Reduces rows to segments by the first column.

  Returns:
    Each column, [segments]: its value in the best row, or its mean; and the
    best row of each segment.
  """
  scores = next(iter(columns.values()))
  order = np.lexsort((-scores, owners))
  starts = np.flatnonzero(np.diff(owners, prepend=-1))
  best = order[starts]
  if rule == 'max':
    return {name: column[best] for name, column in columns.items()}, best
  counts = np.diff(starts, append=len(owners))
  return {
    name: np.add.reduceat(column.astype(np.float64), starts) / counts
    if len(starts)
    else column
    for name, column in columns.items()
  }, best
