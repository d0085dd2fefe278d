"""UScore folders: the encoders, models and weights of one metric.

A folder holds `config.json` (kind 'uscore') and its parts: an encoder of words
with a map, a language model, pseudo references or their translator, and an
encoder of sentences. A part is named by its path in the folder, or is a model
that is installed (`e5-small`). Not here: what the parts compute
(`metrics/uscore.py`), how they are made (`fitting/uscore.py`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.weights import CheckpointError, read_json
from t5score_jax.data import files
from t5score_jax.errors import OptionError

FORMAT = 1
CONFIG_FILE = 'config.json'

# Tolerance for sums of weights that were rounded in a file.
_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Weights:
  """The weights of equations 3 and 6 (Belouadi and Eger 2023).

  Attributes:
    wmd: Weight of the distance between source and hypothesis, w_xlng.
    pseudo: Weight of the distance between pseudo reference and hypothesis.
    lm: Weight of the language model.
    word: Weight of these three together; the sentence's weight is 1 - word.
  """

  wmd: float
  pseudo: float
  lm: float
  word: float

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if not 0 <= value <= 1:
        raise OptionError(f'weight {field.name} = {value}: must be 0 to 1')
    total = self.wmd + self.pseudo + self.lm
    if abs(total - 1) > _TOLERANCE:
      raise OptionError(
        f'the weights wmd {self.wmd:g}, pseudo {self.pseudo:g} and lm '
        f'{self.lm:g} sum to {total:g}: must be 1'
      )

  def of(self, parts: Parts) -> Weights:
    """These weights without those of absent parts, each group rescaled.

    Raises:
      OptionError: Every part with a weight is absent.
    """
    present = {
      'wmd': self.wmd if parts.encoder else 0.0,
      'pseudo': self.pseudo
      if parts.encoder and parts.pseudo_references
      else 0.0,
      'lm': self.lm if parts.language_model else 0.0,
    }
    total = math.fsum(present.values())
    if not parts.sentence_encoder and not total:
      raise OptionError(
        'no part of the metric has a weight: it has '
        + (', '.join(parts.names()) or 'none')
      )
    if not total:
      return dataclasses.replace(self, word=0.0)
    return Weights(
      **{name: weight / total for name, weight in present.items()},
      word=self.word if parts.sentence_encoder else 1.0,
    )


#: Weights of the paper's section 4.3, by the name of the metric's variant.
WEIGHTS: Mapping[str, Weights] = {
  'paper': Weights(wmd=0.5, pseudo=0.4, lm=0.1, word=0.6),
  'plus': Weights(wmd=0.45, pseudo=0.45, lm=0.1, word=0.5),
  'uniform': Weights(wmd=1 / 3, pseudo=1 / 3, lm=1 / 3, word=0.5),
}


@dataclasses.dataclass(frozen=True)
class Parts:
  """The parts of a metric; '' for a missing part.

  Attributes:
    weights: How they are combined.
    encoder: Compares words.
    layer: The layer of its hidden states.
    map: Maps the source's words; see `crosslingual/remap.py`.
    language_model: See `crosslingual/language_model.py`.
    pseudo_references: A translator's folder, or a file of translations; see
      `crosslingual/pseudo_references.py`.
    beams: Beams of the translator's search; 1 is greedy.
    sentence_encoder: Compares sentences.
    source: The sources' language, for example 'de'; '' if not stated.
    target: The hypotheses'.
  """

  weights: Weights
  encoder: str = ''
  layer: int = -1
  map: str = ''
  language_model: str = ''
  pseudo_references: str = ''
  beams: int = 1
  sentence_encoder: str = ''
  source: str = ''
  target: str = ''

  def names(self) -> list[str]:
    """The names of the parts that are there."""
    return [name for name in _PATHS if getattr(self, name)]


_PATHS = (
  'encoder',
  'map',
  'language_model',
  'pseudo_references',
  'sentence_encoder',
)


def save(parts: Parts, folder: str | os.PathLike[str]) -> None:
  """Writes the description into a folder that holds the parts.

  Args:
    parts: Paths are relative to the folder.
    folder: An existing folder.
  """
  description = {
    'format': FORMAT,
    'kind': kinds.USCORE,
    **dataclasses.asdict(parts),
  }
  with files.write_atomically(Path(folder) / CONFIG_FILE) as out:
    json.dump(description, out, indent=2)
    out.write('\n')


def load(folder: str | os.PathLike[str]) -> Parts:
  """Reads the description; paths of parts are whole.

  Raises:
    FileNotFoundError: There is no such folder.
    CheckpointError: It is not a UScore folder, or a part is missing.
  """
  path = Path(folder)
  if not path.is_dir():
    raise FileNotFoundError(f'no UScore metric {str(path)!r}: no such folder')
  file = path / CONFIG_FILE
  if kinds.described(path) != kinds.USCORE:
    raise CheckpointError(
      f'{path}: not a UScore metric, as `t5score uscore` writes them (kind in '
      f'{CONFIG_FILE})'
    )
  found: dict[str, Any] = dict(read_json(file))
  if found.pop('format', None) != FORMAT:
    raise CheckpointError(f'{file}: its format is not {FORMAT}')
  del found['kind']
  try:
    parts = msgspec.convert(found, Parts)
  except (msgspec.ValidationError, OptionError) as error:
    raise CheckpointError(f'{file}: damaged ({error})') from error
  whole: dict[str, Any] = {
    name: _whole(path, getattr(parts, name)) for name in _PATHS
  }
  return dataclasses.replace(parts, **whole)


def _whole(folder: Path, part: str) -> str:
  if not part or (part in kinds.names() and not (folder / part).exists()):
    return part
  if not (folder / part).exists():
    raise CheckpointError(f'{folder / part}: part of the metric, but missing')
  return str(folder / part)
