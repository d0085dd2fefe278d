"""A regressor of one layer with three outputs, and batches for it."""

import dataclasses
import functools

import jax
import numpy as np
import tiny_encoder

from t5score_jax.nn import bert, heads

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
  rng = np.random.default_rng(seed)
  init = jax.jit(lambda key: heads.init_params(config, key))
  return jax.tree.map(
    lambda x: np.asarray(x) + 0.2 * rng.normal(size=x.shape).astype('f4'),
    init(jax.random.key(seed)),
  )


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
    return heads.layer_vectors(config, states, mask)

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
