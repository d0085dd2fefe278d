"""Small regressors: one with batches for it, and any on a given encoder."""

import dataclasses
import functools

import jax
import numpy as np
import tiny_encoder

from t5score_jax.checkpoints import regressors
from t5score_jax.nn import bert, heads
from t5score_jax.nn.shapes import param_shapes

ENCODER = dataclasses.replace(
  tiny_encoder.CONFIG, num_layers=1, dropout_rate=0.0
)


CONFIG = heads.RegressorConfig(
  ENCODER, ('a', 'b', 'c'), hidden_sizes=(10, 6), dropout_rate=0.0
)


ROLES = ('hypothesis', 'source', 'reference')


@functools.lru_cache
def params(config, seed=1):
  """Weights of which none is what it was initialised to, as zero or one."""
  shapes = param_shapes(heads.init_params, config)
  return tiny_encoder.random_params(shapes, seed)


def tokens(rows=6, seed=0, lengths=(9, 9, 9)):
  rng = np.random.default_rng(seed)
  batch = {}
  for role, length in zip(ROLES, lengths, strict=True):
    ends = rng.integers(2, length + 1, rows)[:, None]
    ids = rng.integers(5, ENCODER.vocab_size, (rows, length))
    batch[f'{role}_tokens'] = np.where(np.arange(length) < ends, ids, 0)
  ratings = rng.normal(size=(rows, 3))
  ratings[1, 0] = ratings[3, 2] = np.nan
  batch['ratings'] = ratings.astype(np.float32)
  return batch


@functools.lru_cache
def _layer_vectors(config):
  def of(encoder, tokens):
    states = bert.hidden_states(
      encoder, config.encoder, tokens, layers=config.layers
    )
    mask = (tokens != config.encoder.pad_id).astype(np.float32)
    return heads.layer_vectors({}, config, states, mask)

  return jax.jit(of)


def vectors(params, config, batch):
  of = _layer_vectors(config)
  found = {'ratings': batch['ratings']}
  for role in ROLES:
    vectors = of(params['encoder'], batch[f'{role}_tokens'])
    found[f'{role}_vectors'] = np.asarray(vectors)
  return found


def head_params(params):
  return {k: v for k, v in params.items() if k != 'encoder'}


def make(encoder, **changes):
  """A regressor on a `tiny_encoder` that was loaded; a mix is uneven."""
  settings = {'hidden_sizes': (20, 12), 'layer_transformation': 'sparsemax'}
  config = heads.RegressorConfig(encoder.config, **(settings | changes))
  made = params(config) | {'encoder': encoder.params}
  if config.layer == 'mix':
    made['mix'] = {
      'scalars': np.array([-0.2, 0.1, 0.0, 0.4], np.float32)[
        : len(config.layers)
      ],
      'gamma': np.array([1.3], np.float32),
    }
  return regressors.Regressor(config, made, encoder.tokenizer, {'name': 'toy'})
