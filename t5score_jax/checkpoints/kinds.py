"""Recognises the kind of a model by its folder's small files, and finds models.

A name or a path suffices to determine the metric, before JAX or weights are
loaded. Not here: reading models, and recognising the format of a checkpoint
(`checkpoints/registry.py`).
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import hub, packaged, peers
from t5score_jax.data.vocab import PRETRAINED

#: A T5 network in this library's description (`checkpoints/bundle.py`).
BUNDLE = 'bundle'
#: COMET's or COMES's regressor (`checkpoints/regressors.py`).
REGRESSOR = 'estimator'
#: Unbabel's own layout of it (`checkpoints/formats/comet/checkpoint.py`).
COMET = 'comet'
#: UniTE's and CometKiwi's regressor on joint texts (`nn/unified.py`).
UNIFIED = 'unified'
#: XCOMET's, which finds errors too.
XCOMET = 'xcomet'
#: Unbabel's own layout of these two.
COMET_UNIFIED = 'comet-unified'
COMET_XCOMET = 'comet-xcomet'
#: FrugalScore's cross-encoder (`checkpoints/cross_encoders.py`).
CROSS_ENCODER = 'miniature'
#: An encoder of the BERT family (`formats/huggingface/encoders.py`).
ENCODER = 'encoder'
#: GPT-2 (`formats/huggingface/gpt2.py`).
CAUSAL = 'causal'
#: The parts of one UScore metric (`checkpoints/uscore.py`).
USCORE = 'uscore'
#: BART (`formats/huggingface/bart.py`).
BART = 'bart'
#: A T5 whose first decoder step is a score: MetricX.
METRICX = 'metricx'
#: A T5 that answers questions: UniEval.
UNIEVAL = 'unieval'

#: Each in words.
WORDS = {
  BUNDLE: 'a T5 model',
  REGRESSOR: 'a regressor (COMES, COMET)',
  COMET: 'a COMET checkpoint',
  UNIFIED: 'a UnifiedMetric (CometKiwi, UniTE)',
  XCOMET: 'an XCOMET',
  COMET_UNIFIED: 'a COMET checkpoint of a UnifiedMetric (CometKiwi, UniTE)',
  COMET_XCOMET: 'a COMET checkpoint of an XCOMET',
  CROSS_ENCODER: 'a FrugalScore cross-encoder',
  ENCODER: 'an encoder',
  CAUSAL: 'a causal language model (GPT-2)',
  USCORE: 'a UScore metric',
  BART: 'a BART model',
  METRICX: 'a MetricX model',
  UNIEVAL: 'a UniEval model',
}

#: Kinds in this library's layout of regressors, and in COMET's.
REGRESSORS = (REGRESSOR, UNIFIED, XCOMET)
COMETS = (COMET, COMET_UNIFIED, COMET_XCOMET)

#: Hugging Face's names, in `config.json`, of the supported encoders.
ENCODER_TYPES = (
  'bert',
  'roberta',
  'xlm-roberta',
  'camembert',
  'xlm-roberta-xl',
  'distilbert',
  'deberta-v2',
)
#: What it calls GPT-2, and BART.
CAUSAL_TYPE = 'gpt2'
BART_TYPE = 'bart'
#: The architecture of a cross-encoder.
CROSS_ENCODER_ARCHITECTURE = 'BertForSequenceClassification'
#: The architecture of published MetricX models.
METRICX_ARCHITECTURE = 'MT5ForRegression'
#: The setting of a T5 that names its metric (`Bundle.settings`).
METRIC_SETTING = 'metric'

_CONFIG_FILE = 'config.json'
_COMET_FILE = 'hparams.yaml'
# COMET's class_identifier -> kind; any other is `COMET`.
_COMET_CLASSES = {
  'unified_metric': COMET_UNIFIED,
  'xcomet_metric': COMET_XCOMET,
}


def of(path: str | os.PathLike[str]) -> str:
  """The kind of the model in a path.

  Args:
    path: A folder, a `checkpoint_N` of a training run, whose kind is that of
      its MODEL_DIR, or a `.ckpt` file of COMET's.

  Returns:
    One of this module's kinds, or '' if none is recognised.
  """
  folder = Path(path)
  if folder.suffix == '.ckpt' and folder.is_file():
    places = (folder.parent, folder.parent.parent)
    found = (p for p in places if (p / _COMET_FILE).is_file())
    return _of_comet(next(found, folder.parent))
  # COMET's folders may hold the encoder's config.json as well.
  if (folder / _COMET_FILE).is_file() and described(folder) in ('', ENCODER):
    return _of_comet(folder)
  if not (folder / _CONFIG_FILE).is_file():
    if not re.fullmatch(r'checkpoint_\d+', folder.name):
      return ''
    folder = folder.parent
  return described(folder)


def _of_comet(folder: Path) -> str:
  """The COMET class that `hparams.yaml` names."""
  try:
    text = (folder / _COMET_FILE).read_text('utf-8', 'replace')
  except OSError:
    return COMET
  found = re.search(r'^class_identifier:\s*[\'"]?(\w+)', text, re.MULTILINE)
  return _COMET_CLASSES.get(found[1], COMET) if found else COMET


def described(folder: str | os.PathLike[str]) -> str:
  """The kind according to a folder's own `config.json`, or ''."""
  return _of_description(_description(Path(folder)))


def looks_like_a_model(path: str | os.PathLike[str]) -> bool:
  """Whether a folder may hold a model of any kind, or a run."""
  folder = Path(path)
  names = (_CONFIG_FILE, _COMET_FILE, 'checkpoint_*')
  return folder.is_dir() and any(next(folder.glob(n), None) for n in names)


def has_weights(folder: str | os.PathLike[str]) -> bool:
  """Whether a folder itself holds weights, not the checkpoints of a run."""
  endings = ('.safetensors', '.bin')
  return any(path.suffix in endings for path in Path(folder).iterdir())


def _description(folder: Path) -> dict[str, Any]:
  """The content of `config.json`; empty if it is absent or damaged."""
  try:
    found = json.loads((folder / _CONFIG_FILE).read_bytes())
  except (OSError, ValueError):
    return {}
  return found if isinstance(found, dict) else {}


def _of_description(found: dict[str, Any]) -> str:
  if found.get('kind') in (*REGRESSORS, USCORE):
    return str(found['kind'])
  if found.get('architectures') == [CROSS_ENCODER_ARCHITECTURE]:
    return CROSS_ENCODER
  if found.get('architectures') == [METRICX_ARCHITECTURE]:
    return METRICX
  # In a bundle or a run, and in a model exported to Hugging Face's layout.
  own_settings = (found.get('t5score') or found).get('settings')
  if isinstance(own_settings, dict):
    metric = own_settings.get(METRIC_SETTING)
    if metric in (METRICX, UNIEVAL):
      return str(metric)
  if found.get('model_type') in ENCODER_TYPES:
    return ENCODER
  if found.get('model_type') == CAUSAL_TYPE:
    return CAUSAL
  if found.get('model_type') == BART_TYPE:
    return BART
  own = found and not {'kind', 'model_type'} & set(found)
  return BUNDLE if own else ''


def embedded(kind: str | None = None) -> list[str]:
  """The names of the models that come with the package.

  Args:
    kind: Selects models of one kind.
  """
  if not PRETRAINED.is_dir():
    return []
  return sorted(
    path.name
    for path in PRETRAINED.iterdir()
    if (found := of(path)) and kind in (None, found)
  )


def names() -> list[str]:
  """The models known by name: embedded ones, and installed encoders."""
  return [*embedded(), *packaged.installed()]


def folder(name_or_path: str | os.PathLike[str]) -> Path:
  """The folder that a model's name or path means.

  Args:
    name_or_path: The name of an embedded model or of an encoder in another
      package (`packaged.NAMES`). It takes precedence over a path: a
      folder of the same name is `./NAME`, or a `Path`. OWNER/NAME without
      such a folder is a model on the Hugging Face Hub (`hub.py`).

  Raises:
    FileNotFoundError: There is no such model, or its package is missing, or it
      cannot be downloaded.
  """
  known = embedded()
  path = Path(name_or_path)
  if isinstance(name_or_path, str) and name_or_path in known:
    return PRETRAINED / path
  if isinstance(name_or_path, str) and name_or_path in packaged.NAMES:
    return packaged.folder(name_or_path)
  if not path.exists() and hub.is_name(str(name_or_path)):
    return hub.folder(str(name_or_path))
  if not path.exists():
    raise FileNotFoundError(
      f'no model {str(name_or_path)!r}: there is no such folder, and '
      + (
        f'the embedded models are {", ".join(known)}'
        if known
        else f'no models are embedded ({PRETRAINED} is missing: install the '
        'package again)'
      )
      + _hint(str(name_or_path), [*known, *packaged.NAMES])
    )
  return path


def _hint(name: str, known: list[str]) -> str:
  """What an unknown name may have meant; '' if nothing."""
  if advice := peers.advice(name):
    return f'. {advice}'
  close = difflib.get_close_matches(name, known, 1)
  return f'; did you mean {close[0]!r}?' if close else ''
