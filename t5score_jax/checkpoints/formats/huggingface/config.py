"""Converts HuggingFace's T5 `config.json` from and to our `T5Config`.

A setting that is unknown, or that our network does not support, is an error
that names it: ignoring it could silently change scores. Whether the output is
tied to the embedding also depends on the weights, since transformers 5 writes
`tie_word_embeddings: true` for every model: see `Description`.
Not here: weights (`checkpoint.py`), tokenizers (`tokenizer.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.weights import CheckpointError, read_json
from t5score_jax.data import prompts
from t5score_jax.data.vocab import ByteVocabulary, Vocabulary
from t5score_jax.nn.t5 import T5Config

CONFIG_FILE = 'config.json'
#: `model_type` -> the class that generates.
MODEL_TYPES = {
  't5': 'T5ForConditionalGeneration',
  'mt5': 'MT5ForConditionalGeneration',
  'umt5': 'UMT5ForConditionalGeneration',
}
#: The key of our settings that HuggingFace has no name for.
OWN_KEY = 't5score'

# Theirs -> ours, for settings with equal values.
_SAME = {
  'vocab_size': 'vocab_size',
  'd_model': 'emb_dim',
  'num_heads': 'num_heads',
  'd_kv': 'head_dim',
  'd_ff': 'mlp_dim',
  'num_layers': 'num_encoder_layers',
  'num_decoder_layers': 'num_decoder_layers',
  'dropout_rate': 'dropout_rate',
  'relative_attention_num_buckets': 'relative_attention_num_buckets',
  'relative_attention_max_distance': 'relative_attention_max_distance',
}
# The defaults of transformers for settings missing in the file.
_DEFAULTS: dict[str, Any] = {
  'dropout_rate': 0.1,
  'relative_attention_num_buckets': 32,
  'relative_attention_max_distance': 128,
}
_DEFAULT_PROJECTION = {'t5': 'relu', 'mt5': 'gated-gelu', 'umt5': 'gated-gelu'}
# Settings that our network supports with one value only; None and absence mean
# this value.
_FIXED: dict[str, Any] = {
  'layer_norm_epsilon': 1e-6,
  'pad_token_id': 0,
  'eos_token_id': 1,
  'decoder_start_token_id': 0,
  'is_encoder_decoder': True,
  'is_decoder': False,
  'tie_encoder_decoder': False,
  'add_cross_attention': False,
  'chunk_size_feed_forward': 0,
  'pruned_heads': {},
}
# Their names of activations -> ours. Their 'gelu' is exact, ours is the tanh
# approximation of T5's authors; their 'gated-gelu' is this approximation too.
_ACTIVATIONS = {
  'gelu_new': 'gelu',
  'gelu_pytorch_tanh': 'gelu',
  'gelu_fast': 'gelu',
  'relu': 'relu',
  'silu': 'silu',
  'swish': 'silu',
  'linear': 'linear',
}
# Ours -> theirs.
_PROJECTIONS: dict[tuple[str, ...], str] = {
  ('relu',): 'relu',
  ('gelu',): 'gelu_new',
  ('silu',): 'silu',
  ('linear',): 'linear',
  ('relu', 'linear'): 'gated-relu',
  ('gelu', 'linear'): 'gated-gelu',
  ('silu', 'linear'): 'gated-silu',
  ('linear', 'linear'): 'gated-linear',
}
# Settings that do not change what the network computes: generation, what is
# returned, training, and bookkeeping of transformers 2 to 5.
_IRRELEVANT = frozenset(
  """
  _attn_implementation_autoset _commit_hash _name_or_path architectures
  attn_implementation bad_words_ids begin_suppress_tokens bos_token_id
  classifier_dropout cls_token_id cross_attention_hidden_size
  diversity_penalty do_sample dtype early_stopping
  encoder_no_repeat_ngram_size eos_token exponential_decay_length_penalty
  finetuning_task forced_bos_token_id forced_eos_token_id
  gradient_checkpointing id2label initializer_factor label2id length_penalty
  max_length max_new_tokens min_length model_type n_positions name_or_path
  no_repeat_ngram_size num_beam_groups num_beams num_labels
  num_return_sequences output_attentions output_hidden_states output_past
  output_scores prefix problem_type remove_invalid_values repetition_penalty
  return_dict return_dict_in_generate scalable_attention sep_token_id
  suppress_tokens task_specific_params temperature tf_legacy_loss
  tokenizer_class top_k top_p torch_dtype torchscript transformers_version
  typical_p use_bfloat16 use_cache
  """.split()
)
_ABOUT_TYING = frozenset(('tie_word_embeddings', 'scale_decoder_outputs'))
_ABOUT_MLP = frozenset(('feed_forward_proj', 'dense_act_fn', 'is_gated_act'))
# Rows of mT5's and umT5's vocabularies; T5's and ByT5's are far smaller.
_MULTILINGUAL_ROWS = 200_000


@dataclasses.dataclass(frozen=True)
class Description:
  """The content of a `config.json`.

  Attributes:
    path: The file.
    model_type: A key of `MODEL_TYPES`.
    config: The network, `logits_via_embedding` yet to be decided.
    scaled: Whether the decoder's output is divided by sqrt(d_model).
    saved_by: The major version of transformers that wrote it; 0 if unknown.
    own: What we wrote into it (`OWN_KEY`).
  """

  path: Path
  model_type: str
  config: T5Config
  scaled: bool
  saved_by: int
  own: Mapping[str, Any]


def model_type(folder: Path) -> str | None:
  """The model type in a folder's `config.json`; None without such a file."""
  try:
    name = read_json(folder / CONFIG_FILE).get('model_type')
  except CheckpointError:
    return None
  return name if isinstance(name, str) else None


def read(folder: Path) -> Description:
  """Reads `config.json`.

  Raises:
    CheckpointError: It is missing, damaged, of another kind of model, or has
      a setting that our network does not support.
  """
  path = folder / CONFIG_FILE
  settings = read_json(path)
  kind = settings.get('model_type')
  if kind not in MODEL_TYPES:
    raise CheckpointError(
      f'{path}: model_type {kind!r}: only {", ".join(MODEL_TYPES)} are read '
      '(T5 1.1 and ByT5 are of type t5)'
    )
  classes = settings.get('architectures') or []
  if any('EncoderModel' in str(name) for name in classes):
    raise CheckpointError(
      f'{path}: architectures {classes}: an encoder alone cannot score, which '
      'takes the probabilities that a decoder gives; use the whole model'
    )
  _check_settings(path, settings)
  values = {**_DEFAULTS, **_without_nulls(settings)}
  values.setdefault('num_decoder_layers', values.get('num_layers'))
  try:
    config = T5Config(
      **{ours: values[theirs] for theirs, ours in _SAME.items()},
      mlp_activations=_activations(path, settings, kind),
      relative_attention_per_layer=kind == 'umt5',
    )
  except KeyError as error:
    raise CheckpointError(f'{path}: does not say {error}') from error
  except (TypeError, ValueError) as error:
    raise CheckpointError(f'{path}: {error}') from error
  version = str(settings.get('transformers_version') or '0').partition('.')[0]
  saved_by = int(version) if version.isdigit() else 0
  own = settings.get(OWN_KEY)
  return Description(
    path=path,
    model_type=kind,
    config=config,
    scaled=_scaled(settings, kind, saved_by),
    saved_by=saved_by,
    own=own if isinstance(own, dict) else {},
  )


def _without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
  return {name: value for name, value in settings.items() if value is not None}


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
  """Refuses what our network has not."""
  for name, value in _without_nulls(settings).items():
    if name in _FIXED:
      if value != _FIXED[name]:
        raise CheckpointError(
          f'{path}: {name} is {value!r}; only {_FIXED[name]!r} is supported'
        )
    elif name in _SAME:
      types = (int, float) if name == 'dropout_rate' else (int,)
      if not isinstance(value, types) or isinstance(value, bool) or value < 0:
        raise CheckpointError(f'{path}: {name} is {value!r}, not a number')
    elif name not in _IRRELEVANT | _ABOUT_TYING | _ABOUT_MLP | {OWN_KEY}:
      raise CheckpointError(
        f'{path}: the setting {name} ({value!r}) is not known here; if it does '
        'not change what the network computes, remove it from the file'
      )


def _activations(
  path: Path, settings: Mapping[str, Any], kind: str
) -> tuple[str, ...]:
  """Our `mlp_activations`."""
  projection = settings.get('feed_forward_proj') or _DEFAULT_PROJECTION[kind]
  gate, _, name = str(projection).rpartition('-')
  if gate not in ('', 'gated'):
    raise CheckpointError(
      f'{path}: feed_forward_proj is {projection!r}; use ACTIVATION or '
      'gated-ACTIVATION'
    )
  gated = gate == 'gated'
  if projection == 'gated-gelu':
    name = 'gelu_new'
  # These two follow from the first unless the file has them.
  name = settings.get('dense_act_fn') or name
  gated = bool(settings.get('is_gated_act', gated))
  if name not in _ACTIVATIONS:
    exact = ': the exact gelu is another function' if name == 'gelu' else ''
    raise CheckpointError(
      f'{path}: the activation {name!r} (feed_forward_proj {projection!r}) is '
      f'not supported{exact}; use one of {", ".join(_ACTIVATIONS)}'
    )
  return (_ACTIVATIONS[name], *(('linear',) if gated else ()))


def _scaled(settings: Mapping[str, Any], kind: str, saved_by: int) -> bool:
  """Whether the decoder's output is divided by sqrt(d_model).

  T5 1.0, which is tied, does so. Up to version 4, transformers scales if
  `tie_word_embeddings` is true, which is the default except in mT5. Version 5
  has a separate setting for T5 and umT5, and never scales mT5.
  """
  tied = settings.get('tie_word_embeddings')
  if kind == 'mt5':
    return bool(tied) and 0 < saved_by < 5
  scale = settings.get('scale_decoder_outputs')
  return tied is not False if scale is None else bool(scale)


def choose_model_type(
  config: T5Config, vocabulary: Vocabulary, before: object = None
) -> str:
  """The HuggingFace model type as which a network is exported.

  umT5 has position biases in every layer. T5 and mT5 are otherwise identical,
  except that only T5 scales a tied output. An untied network is exported as mT5
  if its vocabulary has mT5's size, or if it was imported as mT5.

  Args:
    config: The network, not scanned.
    vocabulary: The model's vocabulary.
    before: The model type that it was imported as.
  """
  if config.relative_attention_per_layer:
    return 'umt5'
  large = config.vocab_size >= _MULTILINGUAL_ROWS
  if (
    (large or before == 'mt5')
    and not config.logits_via_embedding
    and not isinstance(vocabulary, ByteVocabulary)
  ):
    return 'mt5'
  return 't5'


def architecture(
  config: T5Config, kind: str, settings: Mapping[str, Any]
) -> str:
  """The class of an exported network.

  The published class of MetricX is an mT5 that returns one particular logit;
  any other network of the metric is exported as a generation model.

  Args:
    config: The network.
    kind: A key of `MODEL_TYPES`.
    settings: See `Bundle.settings`.
  """
  of_metricx = (
    settings.get(kinds.METRIC_SETTING) == kinds.METRICX
    and kind == 'mt5'
    and settings.get('output_id', prompts.METRICX_ID) == prompts.METRICX_ID
    and config.vocab_size > prompts.METRICX_ID
  )
  return kinds.METRICX_ARCHITECTURE if of_metricx else MODEL_TYPES[kind]


def metricx_settings(folder: Path) -> dict[str, Any] | None:
  """Settings of a published MetricX, from its class and its folder's name.

  Returns:
    Its settings; None for other models.
  """
  if kinds.described(folder) != kinds.METRICX:
    return None
  name = folder.resolve().name.lower()
  version = re.search(r'metricx-(\d\d)\b', name)
  return {
    kinds.METRIC_SETTING: kinds.METRICX,
    **({'version': int(version[1])} if version else {}),
    **({'source_based': True} if '-qe-' in f'{name}-' else {}),
  }


def make(
  config: T5Config,
  kind: str,
  dtype: str,
  tokenizer_class: str,
  own: Mapping[str, Any],
) -> dict[str, Any]:
  """The content of `config.json`.

  Args:
    config: The network, not scanned.
    kind: A key of `MODEL_TYPES`; see `choose_model_type`.
    dtype: The dtype of the stored weights.
    tokenizer_class: The name of the tokenizer's class.
    own: The value to store under `OWN_KEY`.

  Raises:
    CheckpointError: transformers has no such feed-forward block.
  """
  if config.mlp_activations not in _PROJECTIONS:
    raise CheckpointError(
      f'mlp_activations {config.mlp_activations}: transformers has none but '
      f'{", ".join("+".join(names) for names in _PROJECTIONS)}'
    )
  return {
    'architectures': [architecture(config, kind, own.get('settings', {}))],
    'model_type': kind,
    **{theirs: getattr(config, ours) for theirs, ours in _SAME.items()},
    'feed_forward_proj': _PROJECTIONS[config.mlp_activations],
    'tie_word_embeddings': config.logits_via_embedding,
    'layer_norm_epsilon': 1e-6,
    'is_encoder_decoder': True,
    'pad_token_id': 0,
    'eos_token_id': 1,
    'decoder_start_token_id': 0,
    'tokenizer_class': tokenizer_class,
    'use_cache': True,
    # The first is the name up to transformers 4.55, the other since then.
    'torch_dtype': dtype,
    'dtype': dtype,
    OWN_KEY: dict(own),
  }
