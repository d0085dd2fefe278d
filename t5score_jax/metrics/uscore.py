"""UScore: a hypothesis and its source, without references or supervision.

The weighted sum of equations 3 and 6 (Belouadi and Eger 2023):

    wmd       1 - word mover's distance between hypothesis and source, whose
              words are mapped into the target's space
    pseudo    1 - word mover's distance between hypothesis and pseudo reference
    lm        mean token log-probability of the hypothesis
    sentence  cosine of the sentence vectors of hypothesis and source

    word  = w_wmd wmd + w_pseudo pseudo + w_lm lm
    score = w_word word + (1 - w_word) sentence

A UScore folder, made by `t5score uscore`, names the models. The weights of
missing parts go to the other terms of the same sum. `uscore+` and `uscore++`
use the untuned weights of section 4.3. Not here: the parts (`metrics/wmd.py`,
`metrics/lm.py`, `metrics/cosine.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from t5score_jax.checkpoints import kinds, uscore
from t5score_jax.checkpoints.uscore import Parts
from t5score_jax.crosslingual import pseudo_references
from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.metrics import _models, base, cosine, lm, wmd
from t5score_jax.metrics import _token_states as token_states

_WMD, _PSEUDO, _LM, _SENTENCE = 'wmd', 'pseudo', 'lm', 'sentence'
_WORD = 'word'
# The part that computes both `wmd` and `pseudo`.
_WORDS = 'words'


class Metric(_models.ModelMetric):
  """The weighted sum of the parts that one folder names."""

  name = 'UScore'
  MODELS = ('uscore',)
  VARIANTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
    '+': {'weights': 'plus'},
    '++': {'weights': 'uniform'},
  }

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    weights: str | None = None,
    wmd_weight: float | None = None,
    pseudo_weight: float | None = None,
    lm_weight: float | None = None,
    word_weight: float | None = None,
    translations: str | os.PathLike[str] | None = None,
    **options: Any,
  ):
    """Loads the parts whose weights are not 0.

    Args:
      model: A UScore folder.
      weights: 'paper', 'plus' (UScore+) or 'uniform' (UScore++); by default
        those of the folder.
      wmd_weight: Replaces this weight, as do the options below; the weights of
        wmd, pseudo and lm sum to 1.
      pseudo_weight: Likewise.
      lm_weight: Likewise.
      word_weight: Likewise; the weight of the sentence is 1 - word_weight.
      translations: A translator's folder or a file of translations (see
        `crosslingual/pseudo_references.py`), in place of the folder's.
      **options: See `_models.ModelMetric`.

    Raises:
      FileNotFoundError: There is no such folder.
      CheckpointError: The folder is damaged or not a UScore folder.
      OptionError: A value is out of range.
    """
    super().__init__(**options)
    self._read_no_references()
    self.reads_references = False
    if not model:
      raise OptionError(
        f'{self.name} needs a folder that `t5score uscore` made, as the model '
        '(-m)'
      )
    parts = uscore.load(kinds.folder(model))
    if translations is not None:
      parts = dataclasses.replace(
        parts, pseudo_references=os.fspath(translations), beams=1
      )
    if weights is not None:
      base.check_choice('weights', weights, uscore.WEIGHTS)
    chosen = parts.weights if weights is None else uscore.WEIGHTS[weights]
    replaced = {
      _WMD: wmd_weight,
      _PSEUDO: pseudo_weight,
      _LM: lm_weight,
      _WORD: word_weight,
    }
    given = {name: w for name, w in replaced.items() if w is not None}
    self.weights = dataclasses.replace(chosen, **given).of(parts)
    _check_present(given, parts)
    self._parts = _load(parts, self.weights, options)
    self.num_parameters = sum(
      part.num_parameters or 0 for part in self._parts.values()
    )

  def signature(self, **observed: object) -> str:
    """The weights, and each part's settings prefixed by its name."""
    settings: dict[str, object] = {
      name: f'{weight:.6g}'
      for name, weight in dataclasses.asdict(self.weights).items()
    }
    for name, part in self._parts.items():
      for pair in part.signature().split('|')[1:-1]:
        key, _, value = pair.partition(':')
        settings[f'{name}.{key}'] = value
    return base.format_signature({'metric': self.name, **settings, **observed})

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    base.require_sources(segments, self.name)
    columns: dict[str, np.ndarray] = {}
    cut, texts = 0, 0
    notes: list[str] = []
    count = len(self._parts)
    for number, (name, part) in enumerate(self._parts.items()):
      scores = part.score(
        [segment.hypothesis for segment in segments],
        sources=[segment.source or '' for segment in segments],
        progress=_within(self.progress, number, count),
      )
      columns |= scores.components if name == _WORDS else {name: scores.values}
      cut, texts = max(cut, scores.truncated), max(texts, scores.texts)
      notes += scores.notes
    values = self._combine(columns, len(segments))
    return base.Scores(
      values,
      self.signature(),
      columns,
      truncated=cut,
      texts=texts,
      notes=tuple(notes),
    )

  def _combine(self, columns: dict[str, np.ndarray], count: int) -> np.ndarray:
    """Adds the column 'word'; returns the scores, float32 [count]."""
    weights = self.weights
    values = np.zeros(count)
    if weights.word:
      word = sum(
        getattr(weights, name) * columns[name].astype(np.float64)
        for name in (_WMD, _PSEUDO, _LM)
        if name in columns
      )
      columns[_WORD] = np.asarray(word, np.float32)
      values = values + weights.word * word
    if _SENTENCE in columns:
      values = values + (1 - weights.word) * columns[_SENTENCE]
    return np.asarray(values, np.float32)


class _Words(wmd.Metric):
  """Both distances under one encoder, which reads each hypothesis once."""

  def __init__(self, parts: Parts, columns: Sequence[str], **options: Any):
    super().__init__(
      parts.encoder, parts.map or None, layer=parts.layer, **options
    )
    self.COLUMNS = tuple(columns)  # type: ignore[misc]
    if _PSEUDO in columns:
      self._pseudo = pseudo_references.PseudoReferences(
        parts.pseudo_references, beams=parts.beams, **self._placing
      )

  def _settings(self) -> dict[str, object]:
    return {**super()._settings(), 'conditioning': '+'.join(self.COLUMNS)}

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments: the first column, with all of them as components."""
    sources = [segment.source or '' for segment in segments]
    others: list[list[str]] = []
    notes: list[str] = []
    for name in self.COLUMNS:
      texts: list[str] = sources
      if name == _PSEUDO and self._pseudo is not None:
        texts, notes = self._translate(self._pseudo, sources)
      others.append(texts)
    pairs, values = self._pair_values(
      [
        dataclasses.replace(segment, references=texts)
        for segment, texts in zip(
          segments, zip(*others, strict=True), strict=True
        )
      ]
    )
    columns = {
      name: np.asarray(values[pairs.index[:, column], column], np.float32)
      for column, name in enumerate(self.COLUMNS if len(segments) else ())
    }
    return base.Scores(
      next(iter(columns.values()), np.zeros(0, np.float32)),
      self.signature(),
      columns,
      truncated=pairs.cut,
      texts=len(pairs.encoded),
      notes=tuple(notes),
    )

  def _pair_scores(
    self,
    pairs: token_states.TextPairs,
    rows: np.ndarray,
    states: Mapping[int, np.ndarray],
    idfs: token_states.Idfs,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    del idfs  # All words weigh the same.
    values = np.zeros((len(pairs.pairs), len(self.COLUMNS)))
    for column, name in enumerate(self.COLUMNS):
      # A pair is in both columns if a source is its own translation.
      own = rows[np.isin(rows, pairs.index[:, column])]
      chosen_map = self._map if name == _WMD else None
      for part, found in self._similarities(pairs, own, states, chosen_map):
        values[part, column] = found
    yield rows, values[rows]


def _load(
  parts: Parts, weights: uscore.Weights, options: Mapping[str, Any]
) -> dict[str, base.Metric]:
  """Loads the parts with a weight, in the order in which they run."""
  loaded: dict[str, base.Metric] = {}
  if weights.word:
    columns = [name for name in (_WMD, _PSEUDO) if getattr(weights, name)]
    if columns:
      loaded[_WORDS] = _Words(parts, columns, **options)
    if weights.lm:
      loaded[_LM] = lm.Metric(parts.language_model, **options)
  if weights.word < 1:
    loaded[_SENTENCE] = cosine.Metric(parts.sentence_encoder, **options)
  return loaded


def _check_present(given: Mapping[str, float], parts: Parts) -> None:
  """Raises OptionError if an option gives a weight to an absent part."""
  needed = {
    _WMD: parts.encoder,
    _PSEUDO: parts.encoder and parts.pseudo_references,
    _LM: parts.language_model,
  }
  for name, weight in given.items():
    if weight and not needed.get(name, True):
      raise OptionError(
        f'{name}_weight {weight}: the metric has no such part, it has '
        f'{", ".join(parts.names())}'
      )


def _within(
  progress: base.Progress | None, number: int, count: int
) -> base.Progress | None:
  """Reports the progress of one part as a share of all parts."""
  if progress is None:
    return None
  return lambda done, total: progress(number * total + done, count * total)
