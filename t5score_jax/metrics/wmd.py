"""Word mover's distance between a hypothesis and its source or a reference.

UScore's distance (Belouadi and Eger 2023, section 3.1): the optimal transport
cost between the word states of source and hypothesis in one layer of a
multilingual encoder. The source's states are mapped into the target's space
(`remap`). The score is 1 - distance, so higher is better: 1 for equal words, -3
at worst. It needs no human-written text except the source. With pseudo
references, the hypothesis is compared with a translation of the source into the
hypothesis' language: WMD(y, y') of equation 3.

Not here: the distance (`crosslingual/transport.py`), the maps
(`crosslingual/remap.py`), the translations
(`crosslingual/pseudo_references.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.crosslingual import (
  pseudo_references as translating,
)
from t5score_jax.crosslingual import remap, transport, words
from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.metrics import _token_states as token_states
from t5score_jax.metrics import base

CONDITIONINGS = ('source', 'reference', 'pseudo')
# Pairs between two progress reports.
_AT_ONCE = 1024


class Metric(token_states.PairMetric):
  """Word mover's distance under one encoder."""

  name = 'WMD'
  READS = ('encoder', 'miniature')

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    remap: str | os.PathLike[str] | None = None,
    conditioning: str = 'source',
    layer: int = -1,
    pseudo_references: str | os.PathLike[str] | None = None,
    pseudo_beams: int = 1,
    **options: Any,
  ):
    """Loads the encoder and the map.

    Args:
      model: The folder of an encoder, or the name of an installed one.
      remap: A file that `t5score remap` wrote, applied to the side that the
        hypothesis is compared with.
      conditioning: What the hypothesis is compared with: 'source',
        'reference' (one or several), or 'pseudo', a translation of the source.
      layer: The hidden states to use; 0 is the embeddings, -1 the last layer.
      pseudo_references: The translator of sources: a T5 model's folder, or a
        file of translations; see `crosslingual.pseudo_references`.
      pseudo_beams: Beam width of that model; 1 means greedy search.
      **options: See `_models.ModelMetric`.

    Raises:
      FileNotFoundError: There is no such folder or file.
      OptionError: A value is out of range, or options contradict each other.
      RecordError: A file of translations is malformed.
      RemapError: The map is damaged or for another encoder or layer.
    """
    super().__init__(**options)
    base.check_choice('conditioning', conditioning, CONDITIONINGS)
    _check_pseudo(conditioning, pseudo_references, pseudo_beams, remap)
    self._pseudo: translating.PseudoReferences | None = None
    if pseudo_references is not None:
      # Before the encoder: rejecting a bad file is faster than loading it.
      self._pseudo = translating.PseudoReferences(
        pseudo_references, beams=pseudo_beams, **self._placing
      )
    # Cached translations: several systems are scored on the same sources.
    self._translated: dict[str, str] = {}
    self._load(model, token_states.IDF_NONE, lambda _: [layer])
    self.conditioning = conditioning
    self.reads_references = conditioning == 'reference'
    self._map = _load_map(
      remap, self._model['checkpoint'], self._encoder.layers[0]
    )

  def _settings(self) -> dict[str, object]:
    settings = {
      'conditioning': self.conditioning,
      'layer': self._encoder.layers[0],
    }
    if self._map is not None:
      settings['remap'] = f'{self._map.method}@{self._map.digest()}'
    if self._pseudo is not None:
      settings |= self._pseudo.identity()
    return settings

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    if self.conditioning == 'reference':
      return super().score_segments(segments)
    base.require_sources(segments, self.name)
    sources = [segment.source or '' for segment in segments]
    others = sources
    notes: list[str] = []
    if self._pseudo is not None:
      others, notes = self._translate(self._pseudo, sources)
    scores = super().score_segments(
      [
        dataclasses.replace(segment, references=(other,))
        for segment, other in zip(segments, others, strict=True)
      ]
    )
    return dataclasses.replace(scores, notes=(*scores.notes, *notes))

  def _translate(
    self, translate: translating.PseudoReferences, sources: Sequence[str]
  ) -> tuple[list[str], list[str]]:
    """Returns the translations of sources, with notes on them."""
    new = [x for x in dict.fromkeys(sources) if x not in self._translated]
    made = translate(new, self.progress)
    self._translated.update(zip(new, made, strict=True))
    notes: list[str] = []
    if translate.truncated:
      cut = base.share(translate.truncated, len(new))
      notes.append(f'{cut} longer than the translator reads: cut')
    others = [self._translated[source] for source in sources]
    empty = sum(
      not other.strip()
      for source, other in zip(sources, others, strict=True)
      if source.strip()
    )
    if empty:
      notes.append(f'{base.share(empty, len(sources))} translated as nothing')
    return others, notes

  def _references(self, segments: Sequence[Segment]) -> dict[str, object]:
    if self.conditioning != 'reference':
      return {}
    return super()._references(segments)

  def _pair_scores(
    self,
    pairs: token_states.TextPairs,
    rows: np.ndarray,
    states: Mapping[int, np.ndarray],
    idfs: token_states.Idfs,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    del idfs  # All words weigh the same.
    for chosen, values in self._similarities(pairs, rows, states, self._map):
      yield chosen, values[:, None]

  def _similarities(
    self,
    pairs: token_states.TextPairs,
    rows: np.ndarray,
    states: Mapping[int, np.ndarray],
    chosen_map: remap.Map | None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields rows and 1 - distance of their pairs; see `_pair_scores`."""
    own: dict[int, np.ndarray] = {}
    mapped: dict[int, np.ndarray] = {}
    for hypothesis, other in pairs.pairs[rows].tolist():
      if hypothesis not in own:
        own[hypothesis] = self._words(pairs, states, hypothesis)
      if other not in mapped:
        vectors = self._words(pairs, states, other)
        mapped[other] = vectors if chosen_map is None else chosen_map(vectors)
    for start in range(0, len(rows), _AT_ONCE):
      chosen = rows[start : start + _AT_ONCE]
      distances = transport.distances(
        [own[n] for n in pairs.pairs[chosen, 0]],
        [mapped[n] for n in pairs.pairs[chosen, 1]],
      )
      yield chosen, 1.0 - distances

  def _words(
    self,
    pairs: token_states.TextPairs,
    states: Mapping[int, np.ndarray],
    text: int,
  ) -> np.ndarray:
    return words.vectors(pairs.encoded[text], states[text][-1])


def _check_pseudo(
  conditioning: str,
  pseudo_references: str | os.PathLike[str] | None,
  pseudo_beams: int,
  remap: str | os.PathLike[str] | None,
) -> None:
  if conditioning == 'pseudo':
    if pseudo_references is None:
      raise OptionError(
        "conditioning 'pseudo' needs pseudo_references: the folder of a model "
        'that translates the sources, or a file of translations'
      )
    if remap is not None:
      raise OptionError(
        "remap: with conditioning 'pseudo' both texts are of one language, and "
        'no map is applied; leave it out'
      )
  elif pseudo_references is not None or pseudo_beams != 1:
    raise OptionError(
      'pseudo_references and pseudo_beams are for conditioning '
      f"'pseudo', not {conditioning!r}"
    )


def _load_map(
  path: str | os.PathLike[str] | None, checkpoint: str, layer: int
) -> remap.Map | None:
  if path is None:
    return None
  found = remap.load(Path(path))
  remap.check(found, checkpoint, layer, path)
  return found
