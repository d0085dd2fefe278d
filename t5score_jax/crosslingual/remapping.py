"""Estimates maps from texts: sentence pairs, then word pairs, then a map.

UScore's iterated remapping (Belouadi and Eger 2023, section 3.1). The sentence
pairs are mined from monolingual texts, or given as parallel text (appendix C).
Not here: estimation from vectors (`crosslingual/remap.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.crosslingual import (
  alignment,
  filters,
  mining,
  remap,
  runs,
  words,
)
from t5score_jax.errors import InputError, OptionError
from t5score_jax.inference import encoding


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings of an estimation; the defaults are the paper's.

  Attributes:
    method: 'umd' or 'clp'.
    rounds: Rounds of mining and estimation; a round mines with the map of the
      previous one.
    share: Number of sentence pairs used, as a share of the sources.
    k: Number of sentences, nearest by centroid, that are compared exactly.
    threshold: See `alignment.align`.
    max_overlap: Maximum similarity of a pair's texts by edit distance.
    backend: See `neighbours.nearest`.
  """

  method: str = 'umd'
  rounds: int = 1
  share: float = 0.05
  k: int = mining.DISTANCE_NEIGHBOURS
  threshold: float = alignment.THRESHOLD
  max_overlap: float = filters.MOST_OVERLAP
  backend: str = 'auto'


def layers(layer: int, align_layer: int | None, depth: int) -> list[int]:
  """The layers that an encoder must return: for alignment, and to be mapped.

  Args:
    layer: The mapped layer; negative numbers count from the last one.
    align_layer: The layer whose states align words; None for two thirds of
      the depth, but not above `layer`.
    depth: Number of the encoder's layers.

  Raises:
    OptionError: `align_layer` is above `layer`.
  """
  (mapped,) = encoding.resolve_layers([layer], depth)
  if align_layer is None:
    return [min(mapped, alignment.default_layer(depth)), mapped]
  if align_layer > mapped:
    raise OptionError(
      f'alignment layer {align_layer}: must be at most the mapped layer, which '
      f'is {mapped}'
    )
  return [align_layer, mapped]


def from_texts(
  folder: Path,
  sources: Sequence[str],
  targets: Sequence[str],
  encoder: encoding.TextEncoder,
  about: Mapping[str, Any],
  settings: Settings = Settings(),  # noqa: B008 (frozen)
  progress: runs.Progress | None = None,
  say: Callable[[str], None] = lambda line: None,
) -> remap.Map:
  """Estimates a map from monolingual texts; resumes in the folder.

  Args:
    folder: As for `runs.by_distance`.
    sources: Sentences of the language that is mapped.
    targets: Sentences of the language that it is mapped to.
    encoder: Returns the states of `layers`.
    about: Further attributes of `remap.Map`: what the map is for.
    settings: The settings.
    progress: Called from time to time.
    say: Called with a line for each round.

  Raises:
    InputError: No pairs of sentences, or no pairs of words.
  """
  found: remap.Map | None = None
  for number in range(1, settings.rounds + 1):
    pairs = runs.by_distance(
      folder,
      sources,
      targets,
      encoder,
      settings.k,
      found,
      settings.backend,
      progress,
    )
    pairs = runs.without_copies(pairs, sources, targets, settings.max_overlap)
    pairs = pairs.first(max(1, round(settings.share * len(sources))))
    if not len(pairs):
      raise InputError('no sentence pairs were mined: nothing to align')
    found = from_pairs(
      [sources[n] for n in pairs.sources],
      [targets[n] for n in pairs.targets],
      encoder,
      {**about, 'rounds': number},
      settings,
    )
    say(
      f'round {number}: {len(pairs)} sentence pairs, {found.pairs} word '
      f'pairs, {found.method}@{found.digest()}'
    )
  if found is None:
    raise OptionError('rounds must be at least 1')
  return found


def from_pairs(
  sources: Sequence[str],
  targets: Sequence[str],
  encoder: encoding.TextEncoder,
  about: Mapping[str, Any],
  settings: Settings = Settings(),  # noqa: B008 (frozen)
) -> remap.Map:
  """Estimates a map from pairs of sentences.

  Args:
    sources: N sentences.
    targets: Their translations.
    encoder: As for `from_texts`.
    about: Likewise.
    settings: The settings; only `method` and `threshold` are used.

  Raises:
    InputError: There are no pairs of words.
  """
  return remap.estimate(
    *word_pairs(sources, targets, encoder, settings.threshold),
    settings.method,
    **about,
  )


def word_pairs(
  sources: Sequence[str],
  targets: Sequence[str],
  encoder: encoding.TextEncoder,
  threshold: float = alignment.THRESHOLD,
) -> tuple[np.ndarray, np.ndarray]:
  """Unit vectors of aligned words, float32 [pairs, width] for each side.

  Args:
    sources: N sentences.
    targets: Their translations.
    encoder: Its first layer aligns words, its last layer gives the vectors.
    threshold: See `alignment.align`.
  """
  sides: list[list[tuple[np.ndarray, np.ndarray]]] = []
  for texts in (sources, targets):
    none = np.zeros((0, 0), np.float32)
    side = [(none, none)] * len(texts)
    for index, encoded, states in words.encode(encoder, texts):
      rows = words.places(encoded)
      side[index] = states[0][rows], words.unit(states[-1][rows])
    sides.append(side)
  found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
  for (x_align, x), (y_align, y) in zip(*sides, strict=True):
    aligned = alignment.align(x_align, y_align, threshold)
    found[0].append(x[aligned[:, 0]])
    found[1].append(y[aligned[:, 1]])
  return np.concatenate(found[0]), np.concatenate(found[1])
