"""A network of `nn/unified.py` on a tiny encoder, and its scores in NumPy."""

import dataclasses

import numpy as np
import tiny_encoder
import tiny_regressor

from t5score_jax.checkpoints import regressors
from t5score_jax.nn import heads, unified

LABELS = ('minor', 'major', 'critical')


def make(encoder, seed=3, **changes):
  """Random weights; tags differ from token to token."""
  settings = {
    'hidden_sizes': (12, 8),
    'layer_transformation': 'sparsemax',
    'separators': 1,
    'token_types': True,
  }
  if changes.get('xcomet'):
    settings |= {'labels': LABELS, 'word_layer': 2}
  config = unified.UnifiedConfig(encoder.config, **(settings | changes))
  params = tiny_regressor.params(config, seed) | {'encoder': encoder.params}
  if config.layer == 'mix':
    params['mix'] = {
      'scalars': np.array([-0.2, 0.1, 0.0, 0.4], np.float32)[
        : len(config.layers)
      ],
      'gamma': np.array([1.3], np.float32),
    }
  if config.labels:
    kernel = np.random.default_rng(seed).normal(size=(16, config.num_tags))
    bias = np.array([1.0, *[0.0] * len(config.labels)])
    params['tagger'] = {
      'kernel': kernel.astype(np.float32),
      'bias': bias.astype(np.float32),
    }
  settings = {'name': 'toy', 'max_length': 20}
  return regressors.Regressor(config, params, encoder.tokenizer, settings)


def numpy_reading(model, texts):
  """A sequence's score and its hypothesis' tag probabilities, by NumPy."""
  c, params = model.config, model.params
  assert (c.separators, c.token_types, c.layer_norm) == (1, True, False)
  first, *others = (e.ids for e in model.tokenizer.encode_batch(texts, 18))
  ids = [*first, *(i for other in others for i in other[1:])][:20]
  types = [int(n >= len(first)) for n in range(len(ids))]
  states = tiny_encoder.numpy_states(params['encoder'], c.encoder, ids, types)
  weights = np.asarray(
    heads.layer_weights(params['mix']['scalars'], c.layer_transformation)
  )
  x = params['mix']['gamma'] * np.einsum('l,le->e', weights, states[:, 0])
  layers = params['estimator']
  for n in range(len(c.hidden_sizes)):
    p = layers[f'layers_{n}']
    x = np.tanh(x @ p['kernel'] + p['bias'])
  p = layers[f'layers_{len(c.hidden_sizes)}']
  score = (x @ p['kernel'] + p['bias'])[0]
  if not c.labels:
    return score, None
  logits = states[c.word_layer, : len(first)] @ params['tagger']['kernel']
  logits = np.exp(logits + params['tagger']['bias'])
  return score, logits / logits.sum(1, keepdims=True)


def with_config(model, **changes):
  return dataclasses.replace(
    model, config=dataclasses.replace(model.config, **changes)
  )
