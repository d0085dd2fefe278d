"""Gradients of equation 3: over groups, and over the pairs of the same groups.

Both have the same pairs, so the same loss and the same gradient; the group
objective scores each hypothesis once, where every pair scores its two.
"""

import numpy as np

TITLE = 'T5Score gradient, ten systems'
UNIT = 'pairs'
OURS = {'here': 'ours', 'pairwise objective': 'pairwise'}
PEERS = {}
TOLERANCE = 1e-4
MEASURE = 'seconds'
GOALS = {'pairwise objective': 4}
_SYSTEMS = 10
_SHAPE = {
  'vocab_size': 32128,
  'emb_dim': 256,
  'num_heads': 4,
  'mlp_dim': 512,
  'num_encoder_layers': 4,
  'num_decoder_layers': 4,
}
_TINY = {'vocab_size': 4096, 'emb_dim': 128, 'num_heads': 2, 'mlp_dim': 256}


def prepare(folder, size):
  """Groups of one length."""
  groups, length = (1, 32) if size['quick'] else (1, 48)
  pairs = _SYSTEMS * (_SYSTEMS - 1) // 2
  shape = _SHAPE | (_TINY if size['quick'] else {})
  # Both directions are trained.
  return {
    'items': 2 * pairs * groups,
    'groups': groups,
    'length': length,
    'shape': shape,
    **size,
  }


def _group_batch(job):
  draw = np.random.default_rng(0)
  groups, length = job['groups'], job['length']
  most = job['shape']['vocab_size']
  ids = draw.integers(3, most, (groups, 1 + _SYSTEMS, length)).astype('i4')
  ids[..., -1] = 1
  return {
    'shared_tokens': ids[:, 0],
    'hypothesis_tokens': ids[:, 1:],
    'ratings': draw.permuted(
      np.tile(np.linspace(0, 1, _SYSTEMS, dtype='f4'), (groups, 1)), axis=1
    ),
    'group_mask': np.ones((groups, _SYSTEMS), 'f4'),
  }


def _pair_batch(job):
  """Every pair of each group, in both directions."""
  group = _group_batch(job)
  inputs, targets, ratings = [], [], []
  for shared, texts, marks in zip(
    group['shared_tokens'],
    group['hypothesis_tokens'],
    group['ratings'],
    strict=True,
  ):
    order = np.argsort(-marks)
    for n, better in enumerate(order):
      for worse in order[n + 1 :]:
        both, twice = texts[[better, worse]], np.stack([shared, shared])
        inputs += [twice, both]
        targets += [both, twice]
        ratings += [marks[[better, worse]]] * 2
  return {
    'encoder_input_tokens': np.stack(inputs),
    'decoder_target_tokens': np.stack(targets),
    'ratings': np.stack(ratings),
  }


def ours(job):
  """The group objective."""
  from t5score_jax.models import t5score

  return _gradient(job, t5score.GroupModel, _group_batch(job))


def pairwise(job):
  """The pairwise objective."""
  from t5score_jax.models import t5score

  return _gradient(job, t5score.PairModel, _pair_batch(job))


def _gradient(job, kind, batch):
  import jax
  import jax.numpy as jnp

  from t5score_jax.nn import t5

  model = kind(t5.T5Config(**job['shape']))
  params = model.init(jax.random.key(0))

  def loss(params, batch):
    total, aux = model.loss_fn(params, batch, None)
    return total / aux['weight']

  @jax.jit
  def step(params, batch):
    value, gradient = jax.value_and_grad(loss)(params, batch)
    norms = [jnp.linalg.norm(x) for x in jax.tree.leaves(gradient)]
    return value, jnp.stack(norms)

  batch = jax.device_put(batch)

  def run():
    value, norms = jax.block_until_ready(step(params, batch))
    return {'scores': np.append(np.asarray(norms), value)}

  return run
