"""T5 1.1 in float64 NumPy: one pair of texts, no padding.

What scoring is compared with. Slow and plain on purpose.
"""

import numpy as np


def token_log_probs(bundle, pair: tuple[str, str]) -> np.ndarray:
  """Equation 1's summands: log p of each target token, `</s>` last."""
  limit = bundle.settings.get('max_length', 1024)
  source, target = (
    [*bundle.vocabulary.encode(text)[: limit - 1], 1] for text in pair
  )
  params, config = bundle.params, bundle.config
  embedding = params['token_embedder']['embedding'].astype(np.float64)
  encoded = _stack(config, params['encoder'], 'encoder', embedding[source])
  shifted = [0, *target[:-1]]
  hidden = _stack(
    config, params['decoder'], 'decoder', embedding[shifted], encoded
  )
  if config.logits_via_embedding:
    logits = hidden @ embedding.T / np.sqrt(config.emb_dim)
  else:
    logits = hidden @ params['decoder']['logits_dense']['kernel']
  highest = logits.max(-1, keepdims=True)
  log_z = np.log(np.exp(logits - highest).sum(-1)) + highest[:, 0]
  return logits[np.arange(len(target)), target] - log_z


def _stack(config, params, side, x, encoded=None):
  decoder = side == 'decoder'
  own = 'self_attention' if decoder else 'attention'
  bias = _position_bias(
    config, params['relpos_bias']['rel_embedding'], len(x), causal=decoder
  )
  for n in range(getattr(config, f'num_{side}_layers')):
    layer = params[f'layers_{n}']
    y = _norm(x, layer[f'pre_{own}_layer_norm'])
    x = x + _attention(config, layer[own], y, y, bias)
    if decoder:
      y = _norm(x, layer['pre_cross_attention_layer_norm'])
      x = x + _attention(
        config, layer['encoder_decoder_attention'], y, encoded, 0.0
      )
    y = _norm(x, layer['pre_mlp_layer_norm'])
    mlp = {name: value['kernel'] for name, value in layer['mlp'].items()}
    gate = y @ mlp['wi_0']
    gate = (
      gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    )
    x = x + (gate * (y @ mlp['wi_1'])) @ mlp['wo']
  return _norm(x, params[f'{side}_norm'])


def _norm(x, layer):
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * layer['scale']


def _attention(config, layer, x, y, bias):
  heads = (-1, config.num_heads, config.head_dim)
  query = (x @ layer['query']['kernel']).reshape(heads)
  key = (y @ layer['key']['kernel']).reshape(heads)
  value = (y @ layer['value']['kernel']).reshape(heads)
  logits = np.einsum('qhd,khd->hqk', query, key) + bias
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  mixed = np.einsum('hqk,khd->qhd', weights, value).reshape(len(x), -1)
  return mixed @ layer['out']['kernel']


def _position_bias(config, table, length, causal):
  """[heads, query, key]; -inf where a position must not look."""
  bias = np.zeros((config.num_heads, length, length))
  buckets = config.relative_attention_num_buckets // (1 if causal else 2)
  exact = buckets // 2
  far = config.relative_attention_max_distance
  for query in range(length):
    for key in range(length):
      distance = abs(key - query)
      bucket = distance
      if distance >= exact:
        steps = np.log(np.float32(distance) / exact) / np.log(far / exact)
        bucket = min(exact + int(steps * (buckets - exact)), buckets - 1)
      if key > query:
        bias[:, query, key] = -np.inf if causal else table[:, buckets + bucket]
      else:
        bias[:, query, key] = table[:, bucket]
  return bias
