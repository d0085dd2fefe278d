"""Converts COMET's settings (`hparams.yaml`, the `.ckpt`'s) from and to ours.

Settings have the meaning they have in unbabel-comet 2.2; unsupported ones are
errors. Not here: weights and tokenizers (`formats/comet/checkpoint.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.source import ContradictionError
from t5score_jax.checkpoints.weights import (
  CheckpointError,
  LazyArray,
  read_json,
)
from t5score_jax.nn import bert, heads, unified

FILE = 'hparams.yaml'
# class_identifier of regression metrics -> whether they read a reference.
_CLASSES = {'regression_metric': True, 'referenceless_regression_metric': False}
#: class_identifier of the metrics that read texts jointly.
UNIFIED, XCOMET = 'unified_metric', 'xcomet_metric'
#: COMET's prefix of the names of an encoder's weights.
ENCODER = 'encoder.model.'
# COMET's word -> ours.
_POOLING = {'avg': 'mean', 'max': 'max', 'cls': 'cls', 'default': 'cls'}
# torch's name in lower case -> ours.
_ACTIVATIONS = {
  'tanh': 'tanh',
  'relu': 'relu',
  'gelu': 'gelu',
  'sigmoid': 'sigmoid',
  'leakyrelu': 'leaky_relu',
}
# Ours -> COMET's: it capitalises names, so that it finds no ReLU or GELU.
_WRITTEN_ACTIVATIONS = {'tanh': 'Tanh', 'sigmoid': 'Sigmoid'}
# COMET's softmax for models whose setting was written by mistake.
_TRANSFORMATIONS = {
  'softmax': 'softmax',
  'sparsemax': 'sparsemax',
  'sparsemax_patch': 'softmax',
}
# encoder_model -> what the weights do not show: (position offset, epsilon of
# the norms, pad id, norms before the blocks).
_ENCODERS: dict[str, tuple[int, float, int, bool]] = {
  'BERT': (0, 1e-12, 0, False),
  'XLM-RoBERTa': (2, 1e-5, 1, False),
  'XLM-RoBERTa-XL': (2, 1e-5, 1, True),
  # A BERT with XLM-R's tokenizer.
  'MiniLM': (0, 1e-12, 1, False),
}
# Attention heads of published encoders, by the last part of their names.
_PUBLISHED_HEADS = {
  'bert-base-cased': 12,
  'bert-base-multilingual-cased': 12,
  'bert-base-uncased': 12,
  'bert-large-cased': 16,
  'bert-large-uncased': 16,
  'infoxlm-base': 12,
  'infoxlm-large': 16,
  'multilingual-minilm-l12-h384': 12,
  'xlm-roberta-base': 12,
  'xlm-roberta-large': 16,
  'xlm-roberta-xl': 32,
  'xlm-roberta-xxl': 32,
}
# COMET's defaults of the settings that matter here.
_DEFAULTS: dict[str, Any] = {
  'encoder_model': 'XLM-RoBERTa',
  'pretrained_model': 'xlm-roberta-large',
  'pool': 'avg',
  'layer': 'mix',
  'layer_transformation': 'softmax',
  'layer_norm': True,
  'activations': 'Tanh',
  'final_activation': None,
  'dropout': 0.1,
  'outputs': ('score',),
  'hidden_sizes': (3072, 1024),
}
_UNIFIED_DEFAULTS: dict[str, Any] = {
  **{n: _DEFAULTS[n] for n in _DEFAULTS if n not in ('pool', 'layer')},
  'pretrained_model': 'microsoft/infoxlm-large',
  'sent_layer': 'mix',
  'layer_transformation': 'sparsemax',
  'word_layer': 24,
  'input_segments': ('mt', 'src', 'ref'),
  'word_level_training': False,
  'error_labels': ('minor', 'major'),
}
_CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
  'regression_metric': _DEFAULTS,
  'referenceless_regression_metric': {
    **_DEFAULTS,
    'hidden_sizes': (2048, 1024),
  },
  UNIFIED: _UNIFIED_DEFAULTS,
  XCOMET: {
    **_UNIFIED_DEFAULTS,
    'encoder_model': 'XLM-RoBERTa-XL',
    'pretrained_model': 'facebook/xlm-roberta-xl',
    'layer_norm': False,
    'word_layer': 36,
    'hidden_sizes': (2560, 1280),
    'error_labels': ('minor', 'major', 'critical'),
  },
}
# Settings of training, and of fetching the encoder.
_IGNORED = frozenset(
  'batch_size class_identifier encoder_learning_rate'
  ' input_segments keep_embeddings_frozen layerwise_decay learning_rate'
  ' load_pretrained_weights load_weights_from_checkpoint local_files_only loss'
  ' nr_frozen_epochs optimizer train_data validation_data warmup_steps'.split()
)


def read(path: Path) -> dict[str, Any]:
  """Reads `hparams.yaml`.

  Raises:
    CheckpointError: It is damaged.
  """
  try:
    found = yaml.safe_load(path.read_text('utf-8'))
  except (yaml.YAMLError, UnicodeDecodeError) as error:
    mark = getattr(error, 'problem_mark', None)
    line = '' if mark is None else f', line {mark.line + 1}'
    # A marked error's own text has several lines.
    problem = getattr(error, 'problem', None) or error
    raise CheckpointError(f'{path}{line}: not YAML ({problem})') from error
  if not isinstance(found, dict):
    raise CheckpointError(f'{path}: not a list of settings')
  return found


def merge(
  path: Path, written: Mapping[str, Any], stored: Mapping[str, Any]
) -> dict[str, Any]:
  """The settings of both files, those of the `.ckpt` first, with defaults.

  Raises:
    CheckpointError: The class or a setting is not supported.
  """
  # The class is the only setting that COMET takes from hparams.yaml.
  identifier = written.get('class_identifier', 'regression_metric')
  if identifier not in _CLASS_DEFAULTS:
    raise CheckpointError(
      f'{path}: class_identifier {identifier!r} is not supported, only '
      f'{", ".join(_CLASS_DEFAULTS)}'
    )
  defaults = _CLASS_DEFAULTS[identifier]
  settings = {**defaults, **written, **stored, 'class_identifier': identifier}
  # So is this correction of models published as sparsemax.
  if written.get('layer_transformation') == 'sparsemax_patch':
    settings['layer_transformation'] = 'softmax'
  unknown = sorted(set(settings) - _IGNORED - set(defaults))
  # Published joint metrics have settings left over from earlier versions of
  # COMET, such as `pool` and `word_weights`, which it ignores.
  if unknown and identifier in _CLASSES:
    raise CheckpointError(
      f'{path}: settings that are not supported: {", ".join(unknown)}'
    )
  return settings


def choose(
  settings: Mapping[str, Any], name: str, known: Mapping[Any, Any], path: Path
) -> Any:
  """The meaning of a setting's value; raises CheckpointError for any other."""
  value = settings[name]
  if value not in known:
    raise CheckpointError(
      f'{path}: {name} {value!r} is not one of '
      f'{", ".join(str(key) for key in known)}'
    )
  return known[value]


def _activation(settings: Mapping[str, Any], name: str, path: Path) -> str:
  lower = {name: str(settings[name]).lower()}
  found: str = choose(lower, name, _ACTIVATIONS, path)
  return found


def regressor_config(
  settings: Mapping[str, Any], encoder: bert.BertConfig, path: Path
) -> heads.RegressorConfig:
  """The regressor's shape, from its settings.

  Args:
    settings: The result of `merge`.
    encoder: The encoder's shape.
    path: The settings' file, for messages.

  Raises:
    CheckpointError: A setting is not supported.
  """
  if settings['class_identifier'] in (UNIFIED, XCOMET):
    return _configured(_joint_config, settings, encoder, path)
  return _configured(_separate_config, settings, encoder, path)


def _configured(
  make: Callable[..., heads.RegressorConfig],
  settings: Mapping[str, Any],
  encoder: bert.BertConfig,
  path: Path,
) -> heads.RegressorConfig:
  final = settings['final_activation']
  try:
    return make(
      settings,
      path,
      encoder=encoder,
      outputs=tuple(settings['outputs']),
      hidden_sizes=tuple(int(n) for n in settings['hidden_sizes']),
      activation=_activation(settings, 'activations', path),
      final_activation=_activation(settings, 'final_activation', path)
      if final
      else None,
      layer_transformation=choose(
        settings, 'layer_transformation', _TRANSFORMATIONS, path
      ),
      layer_norm=bool(settings['layer_norm']),
      dropout_rate=float(settings['dropout']),
    )
  except CheckpointError:
    raise
  except (ValueError, TypeError) as error:
    raise CheckpointError(f'{path}: {error}') from error


def _separate_config(
  settings: Mapping[str, Any],
  path: Path,
  encoder: bert.BertConfig,
  **shared: Any,
) -> heads.RegressorConfig:
  """RegressionMetric and ReferencelessRegression."""
  layer = settings['layer']
  pooling = choose(settings, 'pool', _POOLING, path)
  if settings['pool'] == 'default':
    # The encoder's own sentence vector, whatever the layer. COMET 2.2 fails
    # for BERT, whose pooler it leaves out; earlier versions had it.
    layer = encoder.num_layers
    if settings['encoder_model'] == 'BERT':
      pooling = 'pooler'
  return heads.RegressorConfig(
    encoder=encoder,
    reference=_CLASSES[settings['class_identifier']],
    pooling=pooling,
    layer=layer if layer == 'mix' else int(layer),
    **shared,
  )


def _joint_config(
  settings: Mapping[str, Any], path: Path, **shared: Any
) -> unified.UnifiedConfig:
  """UnifiedMetric and XCOMETMetric."""
  xcomet = settings['class_identifier'] == XCOMET
  # XCOMET has no choice of these two.
  reads = set(('src', 'ref') if xcomet else settings['input_segments'])
  tags = xcomet or settings['word_level_training']
  layer = settings['sent_layer']
  separators, token_types = _joining(settings['encoder_model'])
  return unified.UnifiedConfig(
    source='src' in reads,
    reference='ref' in reads,
    layer=layer if layer == 'mix' else int(layer),
    labels=tuple(settings['error_labels']) if tags else (),
    word_layer=int(settings['word_layer']) if tags else None,
    separators=separators,
    token_types=token_types,
    xcomet=xcomet,
    **shared,
  )


def _joining(encoder_model: str) -> tuple[int, bool]:
  """Separators between texts, and whether texts have segment embeddings."""
  return (1, True) if encoder_model == 'BERT' else (2, False)


def encoder_config(
  settings: Mapping[str, Any],
  tensors: Mapping[str, LazyArray],
  num_heads: int | None,
  places: list[Path],
  where: str,
) -> bert.BertConfig:
  """The encoder's shape from its weights, the rest from its `config.json`.

  Args:
    settings: The result of `merge`.
    tensors: The checkpoint's weights.
    num_heads: See `checkpoint.load_comet`.
    places: Folders that may hold the encoder's `config.json`.
    where: The checkpoint, for messages.

  Raises:
    CheckpointError: The weights are not of such an encoder, or its number of
      heads is unknown.
  """
  offset, epsilon, pad_id, pre_norm = choose(
    settings, 'encoder_model', _ENCODERS, Path(FILE)
  )

  def shape(name: str) -> tuple[int, ...]:
    try:
      return tensors[f'{ENCODER}{name}.weight'].shape
    except KeyError:
      raise CheckpointError(
        f'{where}: there is no {ENCODER}{name}.weight'
      ) from None

  vocab_size, width = shape('embeddings.word_embeddings')
  described = _described(places, width)
  if described is not None:
    epsilon = described.norm_epsilon
  layers = {
    int(match[1])
    for name in tensors
    if (match := re.match(r'encoder\.model\.encoder\.layer\.(\d+)\.', name))
  }
  return bert.BertConfig(
    vocab_size=vocab_size,
    emb_dim=width,
    num_heads=_heads(settings, width, num_heads, described),
    mlp_dim=shape('encoder.layer.0.intermediate.dense')[0],
    num_layers=len(layers),
    max_positions=shape('embeddings.position_embeddings')[0],
    position_offset=offset,
    type_vocab_size=shape('embeddings.token_type_embeddings')[0],
    pad_id=pad_id,
    activation=described.activation if described else 'gelu',
    norm_epsilon=epsilon,
    pre_norm=pre_norm,
  )


def _described(places: list[Path], width: int) -> bert.BertConfig | None:
  """The content of an encoder's `config.json` in one of the folders."""
  for place in places:
    path = place / encoders.CONFIG_FILE
    if encoders.is_encoder(place):
      config = encoders.config_from_settings(read_json(path), str(path))
      if config.emb_dim != width:
        raise CheckpointError(
          f'{path}: hidden_size {config.emb_dim}, but the encoder of the '
          f'checkpoint has {width}: it is of another encoder'
        )
      return config
  return None


def _heads(
  settings: Mapping[str, Any],
  width: int,
  num_heads: int | None,
  described: bert.BertConfig | None,
) -> int:
  """The number of attention heads, which weights do not show."""
  name = str(settings['pretrained_model']).rpartition('/')[2].lower()
  if described is not None:
    if num_heads not in (None, described.num_heads):
      raise ContradictionError(
        f"{num_heads} attention heads: the encoder's {encoders.CONFIG_FILE} "
        f'has {described.num_heads}; leave the option out'
      )
    return described.num_heads
  if num_heads is None:
    num_heads = _PUBLISHED_HEADS.get(name)
  if num_heads is None:
    raise CheckpointError(
      f"the encoder's number of attention heads is unknown: put its "
      f'{encoders.CONFIG_FILE} beside {FILE}, name its folder as the '
      'tokenizer, or state the number (--num-heads)'
    )
  if num_heads < 1 or width % num_heads:
    raise CheckpointError(
      f'{num_heads} attention heads: the width of the encoder is {width}, '
      'which they must divide'
    )
  return num_heads


def make(config: heads.RegressorConfig, encoder: str) -> dict[str, Any]:
  """The content of `hparams.yaml`.

  Args:
    config: The regressor.
    encoder: Where COMET finds the encoder's files.

  Raises:
    CheckpointError: COMET has no such encoder or activation.
  """
  traits = (
    config.encoder.position_offset,
    config.encoder.pad_id,
    config.encoder.pre_norm,
  )
  kinds = {
    (offset, pad_id, pre_norm): name
    for name, (offset, _, pad_id, pre_norm) in _ENCODERS.items()
  }
  if traits not in kinds:
    raise CheckpointError('COMET has no encoder of this kind')
  for activation in (config.activation, config.final_activation or 'tanh'):
    if activation not in _WRITTEN_ACTIVATIONS:
      raise CheckpointError(
        f'COMET cannot load the activation {activation}, only '
        f'{" and ".join(_WRITTEN_ACTIVATIONS)}'
      )
  if config.pooling == 'pooler':
    raise CheckpointError("COMET 2.2 builds BERT without the pooler's layer")
  final = config.final_activation
  settings = {
    'encoder_model': kinds[traits],
    'pretrained_model': encoder,
    'layer_transformation': config.layer_transformation,
    'layer_norm': config.layer_norm,
    'hidden_sizes': list(config.hidden_sizes),
    'activations': _WRITTEN_ACTIVATIONS[config.activation],
    'final_activation': _WRITTEN_ACTIVATIONS[final] if final else None,
    'dropout': config.dropout_rate,
  }
  if isinstance(config, unified.UnifiedConfig):
    return settings | _joint_settings(config, kinds[traits])
  identifiers = {has: name for name, has in _CLASSES.items()}
  pooling = {'mean': 'avg', 'max': 'max', 'cls': 'cls'}
  return settings | {
    'class_identifier': identifiers[config.reference],
    'pool': pooling[config.pooling],
    'layer': config.layer,
  }


def _joint_settings(
  config: unified.UnifiedConfig, encoder_model: str
) -> dict[str, Any]:
  """Further settings of UnifiedMetric and XCOMETMetric."""
  if (config.separators, config.token_types) != _joining(encoder_model):
    raise CheckpointError(
      f'COMET does not join texts with {config.separators} separators and '
      f'token_types={config.token_types} for {encoder_model}'
    )
  settings: dict[str, Any] = {
    'class_identifier': XCOMET if config.xcomet else UNIFIED,
    'sent_layer': config.layer,
    'word_level_training': bool(config.labels),
  }
  if config.labels:
    settings['error_labels'] = list(config.labels)
    settings['word_layer'] = config.word_layer
    # COMET's are for its own numbers of labels.
    settings['cross_entropy_weights'] = None
  if config.xcomet:
    known = list(_CLASS_DEFAULTS[XCOMET]['error_labels'])
    if settings['error_labels'] != known:
      raise CheckpointError(f'COMET has XCOMET with labels {", ".join(known)}')
    return settings
  reads = {'src': config.source, 'ref': config.reference}
  segments = ['mt', *(name for name, read in reads.items() if read)]
  return settings | {'input_segments': segments}
