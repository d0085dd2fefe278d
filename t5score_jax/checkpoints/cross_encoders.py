"""FrugalScore folders: Hugging Face's sequence classification with one label.

The published models have this format (`BertForSequenceClassification`), and so
do this library's: `transformers` loads them as
`AutoModelForSequenceClassification`. This library's own settings are in
`config.json` under 'frugalscore'. Not here: plain encoders
(`checkpoints/formats/huggingface/encoders.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.formats.huggingface import (
  weights as huggingface_weights,
)
from t5score_jax.checkpoints.weights import CheckpointError, read_json
from t5score_jax.data import files
from t5score_jax.data.subwords import SubwordTokenizer, load_tokenizer
from t5score_jax.nn.bert import BertConfig

SETTINGS_KEY = 'frugalscore'
#: Tokens per pair, the paper's value.
MAX_LENGTH = 128

# (ours, theirs, whether transposed)
_HEAD = (
  ('pooler/kernel', 'bert.pooler.dense.weight', True),
  ('pooler/bias', 'bert.pooler.dense.bias', False),
  ('output/kernel', 'classifier.weight', True),
  ('output/bias', 'classifier.bias', False),
)


@dataclasses.dataclass(frozen=True)
class CrossEncoder:
  """A cross-encoder that can score.

  Attributes:
    config: Its encoder's shape.
    params: 'encoder', 'pooler' and 'output', float32.
    tokenizer: Encodes two texts as ids.
    settings: All optional: `name` (str), `max_length` (tokens per pair),
      `teacher` (str, the signature of what it was distilled from).
  """

  config: BertConfig
  params: Mapping[str, Any]
  tokenizer: SubwordTokenizer
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def is_cross_encoder(path: str | os.PathLike[str]) -> bool:
  """Whether `path` is a folder with a regressor on a BERT encoder."""
  return kinds.described(path) == kinds.CROSS_ENCODER


def load(folder: str | os.PathLike[str]) -> CrossEncoder:
  """Loads a cross-encoder, this library's or a published one.

  Raises:
    CheckpointError: Not such a folder, or one with several labels.
    FileNotFoundError: There is no such folder.
  """
  path = Path(folder)
  if not path.is_dir():
    raise FileNotFoundError(
      f'no model {str(folder)!r}: there is no such folder'
    )
  config, tokenizer, settings = read_description(path)
  encoders.check_vocabulary(tokenizer, config, path)
  weights = huggingface_weights.open_folder(path)
  params = encoders.read_named(_HEAD, weights, str(path))
  params['encoder'] = encoders.read_params(config, weights, str(path))
  labels = params['output']['bias'].shape[0]
  if labels != 1:
    raise CheckpointError(f'{path}: {labels} labels; a score is one')
  return CrossEncoder(config, params, tokenizer, settings)


def read_description(
  folder: str | os.PathLike[str],
) -> tuple[BertConfig, SubwordTokenizer, dict[str, Any]]:
  """Reads everything but the weights.

  Raises:
    CheckpointError: Not such a folder, or a damaged one.
  """
  path = Path(folder)
  if not is_cross_encoder(path):
    raise CheckpointError(
      f'{path}: not a BertForSequenceClassification, by its config.json'
    )
  config = encoders.read_config(path)
  found = read_json(path / encoders.CONFIG_FILE)
  settings = {'name': path.resolve().name, **found.get(SETTINGS_KEY, {})}
  return config, load_tokenizer(path), settings


def write_description(
  folder: str | os.PathLike[str],
  config: BertConfig,
  tokenizer: SubwordTokenizer,
  settings: Mapping[str, Any],
) -> None:
  """Writes everything but the weights into an existing folder."""
  tokenizer.save(folder)
  with files.write_atomically(Path(folder) / encoders.CONFIG_FILE) as out:
    json.dump(_description(config, settings, 'float32'), out, indent=2)
    out.write('\n')


def save(
  model: CrossEncoder, folder: str | os.PathLike[str], dtype: str = 'float32'
) -> None:
  """Writes a folder that `AutoModelForSequenceClassification` loads.

  Args:
    model: The cross-encoder.
    folder: Created if necessary; each file appears whole or not at all.
    dtype: The dtype of the stored weights, 'float32' or 'bfloat16'.

  Raises:
    CheckpointError: The encoder is not a BERT.
  """
  description = _description(model.config, model.settings, dtype)
  names = encoders.parameter_names(model.config, 'bert.')
  tensors = {
    **encoders.write_named(names, model.params['encoder']),
    **encoders.write_named(_HEAD, model.params),
  }
  path = Path(folder)
  path.mkdir(parents=True, exist_ok=True)
  model.tokenizer.save(path)
  encoders.write_folder(path, description, tensors, dtype)


def _description(
  config: BertConfig, settings: Mapping[str, Any], dtype: str
) -> dict[str, Any]:
  """What `config.json` says."""
  found = encoders.settings_from_config(config)
  if found['model_type'] != 'bert':
    raise CheckpointError(
      f'a cross-encoder on {found["model_type"]} cannot be written; only BERT'
    )
  return found | {
    'architectures': [kinds.CROSS_ENCODER_ARCHITECTURE],
    'num_labels': 1,
    'id2label': {'0': 'LABEL_0'},
    'label2id': {'LABEL_0': 0},
    'problem_type': 'regression',
    'dtype': dtype,
    SETTINGS_KEY: dict(settings),
  }
