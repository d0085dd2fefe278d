"""What kind of model a folder holds, by its small files alone, and where it is.

A name or a path is enough to know which metric it means, before JAX or a weight
is loaded. Not here: reading models, and formats to convert from
(``checkpoints/registry.py``).
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

#: A T5 network in this library's description (``checkpoints/bundle.py``).
BUNDLE = 'bundle'
#: COMET's or COMES's regressor (``checkpoints/regressors.py``).
REGRESSOR = 'estimator'
#: Unbabel's own layout of it (``checkpoints/formats/comet.py``).
COMET = 'comet'
#: FrugalScore's cross-encoder (``checkpoints/cross_encoders.py``).
CROSS_ENCODER = 'miniature'
#: An encoder of the BERT family (`checkpoints/formats/huggingface/`).
ENCODER = 'encoder'

#: Each in words.
WORDS = {
  BUNDLE: 'a T5 model',
  REGRESSOR: 'a regressor (COMES, COMET)',
  COMET: 'a COMET checkpoint',
  CROSS_ENCODER: 'a FrugalScore miniature',
  ENCODER: 'an encoder',
}

#: What Hugging Face's ``config.json`` calls the encoders that are known here.
ENCODER_TYPES = (
  'bert',
  'roberta',
  'xlm-roberta',
  'camembert',
  'xlm-roberta-xl',
)
#: The architecture of a miniature.
CROSS_ENCODER_ARCHITECTURE = 'BertForSequenceClassification'

_CONFIG_FILE = 'config.json'
_COMET_FILE = 'hparams.yaml'
_PRETRAINED = Path(__file__).resolve().parent.parent / 'pretrained'


def of(path: str | os.PathLike[str]) -> str:
  """The kind of the model in a path.

  Args:
    path: a folder, a ``checkpoint_N`` of a training run, which is of the kind
      that its MODEL_DIR says, or a ``.ckpt`` file of COMET's.

  Returns:
    One of this module's kinds, or '' where none is recognised.
  """
  folder = Path(path)
  if folder.suffix == '.ckpt' and folder.is_file():
    return COMET
  if not (folder / _CONFIG_FILE).is_file():
    if (folder / _COMET_FILE).is_file():
      return COMET
    if not re.fullmatch(r'checkpoint_\d+', folder.name):
      return ''
    folder = folder.parent
  return described(folder)


def described(folder: str | os.PathLike[str]) -> str:
  """The kind that a folder's own ``config.json`` says, or ''."""
  return _of_description(_description(Path(folder)))


def looks_like_a_model(path: str | os.PathLike[str]) -> bool:
  """Whether a folder might hold a model of any kind, a run's too."""
  folder = Path(path)
  names = (_CONFIG_FILE, _COMET_FILE, 'checkpoint_*')
  return folder.is_dir() and any(next(folder.glob(n), None) for n in names)


def has_weights(folder: str | os.PathLike[str]) -> bool:
  """Whether weights lie in a folder itself, not in checkpoints of a run."""
  endings = ('.safetensors', '.bin')
  return any(path.suffix in endings for path in Path(folder).iterdir())


def _description(folder: Path) -> dict[str, Any]:
  """What ``config.json`` says; nothing if it is absent or damaged."""
  try:
    found = json.loads((folder / _CONFIG_FILE).read_bytes())
  except (OSError, ValueError):
    return {}
  return found if isinstance(found, dict) else {}


def _of_description(found: dict[str, Any]) -> str:
  if found.get('kind') == REGRESSOR:
    return REGRESSOR
  if found.get('architectures') == [CROSS_ENCODER_ARCHITECTURE]:
    return CROSS_ENCODER
  if found.get('model_type') in ENCODER_TYPES:
    return ENCODER
  own = found and not {'kind', 'model_type'} & set(found)
  return BUNDLE if own else ''


def embedded(kind: str | None = None) -> list[str]:
  """The names of the models that come with the package.

  Args:
    kind: of this kind only.
  """
  if not _PRETRAINED.is_dir():
    return []
  return sorted(
    path.name
    for path in _PRETRAINED.iterdir()
    if (found := of(path)) and kind in (None, found)
  )


def folder(name_or_path: str | os.PathLike[str]) -> Path:
  """The folder that a model's name or path means.

  Args:
    name_or_path: the name of an embedded model, which goes before a path: a
      folder of the same name is ``./NAME``, or a ``Path``.

  Raises:
    FileNotFoundError: there is no such model.
  """
  known = embedded()
  path = Path(name_or_path)
  if isinstance(name_or_path, str) and name_or_path in known:
    return _PRETRAINED / path
  if not path.exists():
    close = difflib.get_close_matches(str(name_or_path), known, 1)
    raise FileNotFoundError(
      f'no model {str(name_or_path)!r}: there is no such folder, and '
      + (
        f'the embedded models are {", ".join(known)}'
        if known
        else f'no models are embedded ({_PRETRAINED} is missing: install the '
        'package again)'
      )
      + (f'; did you mean {close[0]!r}?' if close else '')
    )
  return path
