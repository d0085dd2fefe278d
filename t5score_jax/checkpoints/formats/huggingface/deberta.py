"""Converts settings and weight names of DeBERTa-v2 and -v3 from and to ours.

Not here: the network (`nn/deberta.py`), reading the arrays
(`formats/huggingface/encoders.py`), the tokenizer (`data/subwords.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from t5score_jax.checkpoints.weights import CheckpointError, check_fixed
from t5score_jax.nn.bert import ACTIVATIONS
from t5score_jax.nn.deberta import TERMS, DebertaConfig

MODEL_TYPE = 'deberta-v2'

_LAYER = {
  'attention/query': 'attention.self.query_proj',
  'attention/key': 'attention.self.key_proj',
  'attention/value': 'attention.self.value_proj',
  'attention/position_query': 'attention.self.pos_query_proj',
  'attention/position_key': 'attention.self.pos_key_proj',
  'attention/out': 'attention.output.dense',
  'attention_norm': 'attention.output.LayerNorm',
  'wi': 'intermediate.dense',
  'wo': 'output.dense',
  'mlp_norm': 'output.LayerNorm',
}
_FIXED: Mapping[str, tuple[object, ...]] = {
  'relative_attention': (True,),
  'attention_head_size': (None,),
  'conv_groups': (1, None),
}


def config_from_settings(found: Mapping[str, Any], where: str) -> DebertaConfig:
  """Turns Hugging Face's settings into ours.

  Args:
    found: The content of `config.json`.
    where: The file, for messages.

  Raises:
    CheckpointError: A setting is missing or unknown.
  """
  width = found.get('hidden_size')
  check_fixed(found, {**_FIXED, 'embedding_size': (None, width)}, where)
  activation = found.get('hidden_act', 'gelu')
  if activation not in ACTIVATIONS:
    raise CheckpointError(
      f'{where}: hidden_act {activation!r} is not one of {sorted(ACTIVATIONS)}'
    )
  terms = found.get('pos_att_type') or ()
  if isinstance(terms, str):
    terms = [term.strip() for term in terms.lower().split('|')]
  try:
    positions = int(found['max_position_embeddings'])
    distance = int(found.get('max_relative_positions', -1))
    return DebertaConfig(
      vocab_size=int(found['vocab_size']),
      emb_dim=int(found['hidden_size']),
      num_heads=int(found['num_attention_heads']),
      mlp_dim=int(found['intermediate_size']),
      num_layers=int(found['num_hidden_layers']),
      max_positions=positions,
      type_vocab_size=int(found.get('type_vocab_size', 0)),
      pad_id=int(found.get('pad_token_id') or 0),
      activation=activation,
      norm_epsilon=float(found.get('layer_norm_eps', 1e-7)),
      dropout_rate=float(found.get('hidden_dropout_prob', 0.1)),
      terms=tuple(term for term in TERMS if term in terms),
      buckets=max(0, int(found.get('position_buckets', -1))),
      max_distance=distance if distance > 0 else positions,
      shared_projections=bool(found.get('share_att_key', False)),
      relative_norm='layer_norm' in str(found.get('norm_rel_ebd', 'none')),
      absolute=bool(found.get('position_biased_input', True)),
      conv_width=int(found.get('conv_kernel_size') or 0),
      conv_activation=str(found.get('conv_act', 'tanh')),
    )
  except KeyError as error:
    raise CheckpointError(f'{where}: there is no setting {error}') from None


def settings_from_config(config: DebertaConfig) -> dict[str, Any]:
  """The `config.json` with which `transformers` loads the encoder."""
  return {
    'architectures': ['DebertaV2Model'],
    'model_type': MODEL_TYPE,
    'vocab_size': config.vocab_size,
    'hidden_size': config.emb_dim,
    'num_attention_heads': config.num_heads,
    'intermediate_size': config.mlp_dim,
    'num_hidden_layers': config.num_layers,
    'max_position_embeddings': config.max_positions,
    'type_vocab_size': config.type_vocab_size,
    'pad_token_id': config.pad_id,
    'hidden_act': config.activation,
    'layer_norm_eps': config.norm_epsilon,
    'hidden_dropout_prob': config.dropout_rate,
    'attention_probs_dropout_prob': config.dropout_rate,
    'relative_attention': True,
    'pos_att_type': list(config.terms),
    'position_buckets': config.buckets or -1,
    'max_relative_positions': config.max_distance,
    'share_att_key': config.shared_projections,
    'norm_rel_ebd': 'layer_norm' if config.relative_norm else 'none',
    'position_biased_input': config.absolute,
    **(
      {
        'conv_kernel_size': config.conv_width,
        'conv_act': config.conv_activation,
      }
      if config.conv_width
      else {}
    ),
  }


def parameter_names(
  config: DebertaConfig, prefix: str
) -> Iterator[tuple[str, str, bool]]:
  """Yields (our name, Hugging Face's, whether it is transposed).

  Args:
    config: The network's shape.
    prefix: The prefix of Hugging Face's names, such as 'deberta.'.
  """
  tables = {
    'embeddings/word': 'embeddings.word_embeddings',
    'relative/embedding': 'encoder.rel_embeddings',
  }
  if config.absolute:
    tables['embeddings/position'] = 'embeddings.position_embeddings'
  if config.type_vocab_size:
    tables['embeddings/type'] = 'embeddings.token_type_embeddings'
  for ours, theirs in tables.items():
    yield ours, f'{prefix}{theirs}.weight', False
  blocks = {'embeddings/norm': 'embeddings.LayerNorm'}
  if config.relative_norm:
    blocks['relative/norm'] = 'encoder.LayerNorm'
  if config.conv_width:
    blocks['convolution/conv'] = 'encoder.conv.conv'
    blocks['convolution/norm'] = 'encoder.conv.LayerNorm'
  own = {'query': 'p2c' in config.terms, 'key': 'c2p' in config.terms}
  for layer in range(config.num_layers):
    for ours, theirs in _LAYER.items():
      name = ours.partition('position_')[2]
      if not name or (own[name] and not config.shared_projections):
        blocks[f'layers_{layer}/{ours}'] = f'encoder.layer.{layer}.{theirs}'
  for ours, theirs in blocks.items():
    leaf = 'scale' if ours.endswith('norm') else 'kernel'
    yield f'{ours}/{leaf}', f'{prefix}{theirs}.weight', leaf == 'kernel'
    yield f'{ours}/bias', f'{prefix}{theirs}.bias', False
