"""Converts DistilBERT's names and settings to those of the equivalent BERT.

A DistilBERT is a BERT without segments: it is read as a BERT whose only segment
has an embedding of zeros, and written as a BERT. Not here: reading the arrays
(`formats/huggingface/encoders.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from t5score_jax.checkpoints.weights import LazyArray

MODEL_TYPE = 'distilbert'

_SETTINGS = {
  'vocab_size': 'vocab_size',
  'dim': 'hidden_size',
  'n_heads': 'num_attention_heads',
  'hidden_dim': 'intermediate_size',
  'n_layers': 'num_hidden_layers',
  'max_position_embeddings': 'max_position_embeddings',
  'pad_token_id': 'pad_token_id',
  'activation': 'hidden_act',
  'dropout': 'hidden_dropout_prob',
}
_LAYER = {
  'attention.q_lin': 'attention.self.query',
  'attention.k_lin': 'attention.self.key',
  'attention.v_lin': 'attention.self.value',
  'attention.out_lin': 'attention.output.dense',
  'sa_layer_norm': 'attention.output.LayerNorm',
  'ffn.lin1': 'intermediate.dense',
  'ffn.lin2': 'output.dense',
  'output_layer_norm': 'output.LayerNorm',
}
_NAME = re.compile(r'transformer\.layer\.(\d+)\.(.+)\.(weight|bias)')
_WORDS = 'embeddings.word_embeddings.weight'


def as_bert(found: Mapping[str, Any]) -> dict[str, Any]:
  """The `config.json` of the same network as a BERT."""
  settings = {
    theirs: found[ours] for ours, theirs in _SETTINGS.items() if ours in found
  }
  return {**settings, 'model_type': 'bert', 'type_vocab_size': 1}


def renamed(weights: Mapping[str, LazyArray]) -> dict[str, LazyArray]:
  """The arrays under BERT's names; arrays of other encoders are unchanged."""
  made = {}
  for name, array in weights.items():
    plain = name.removeprefix(f'{MODEL_TYPE}.')
    match = _NAME.fullmatch(plain)
    if match and match[2] in _LAYER:
      plain = f'encoder.layer.{match[1]}.{_LAYER[match[2]]}.{match[3]}'
    made[plain] = array
  if _WORDS in made:
    width = made[_WORDS].shape[1]
    made['embeddings.token_type_embeddings.weight'] = LazyArray.of(
      np.zeros((1, width), np.float32)
    )
  return made
