"""Two steps of training on one batch, beside a step as flax and optax have it.

The same network, initial weights and Adafactor. The step that is written by
hand has the logits of all tokens at once and keeps the old state until the new
one is there; this library's takes the loss in blocks and donates the state.
T5X itself is on no package index and is not measured. Memory is the largest
resident one while the steps run.
"""

import numpy as np

TITLE = 'Training step, T5 (4 + 4 x 256, 32,128 ids)'
UNIT = 'pairs'
OURS = {'here': 'ours', 'flax and optax, by hand': 'by_hand'}
PEERS = {}
TOLERANCE = 1e-3
MEASURE = 'seconds'
GOALS = {'flax and optax, by hand': 1}
_STEPS = 2
_RATE = 1e-3
_SHAPE = {
  'vocab_size': 32128,
  'emb_dim': 256,
  'num_heads': 4,
  'mlp_dim': 512,
  'num_encoder_layers': 4,
  'num_decoder_layers': 4,
}
_TINY = {'vocab_size': 1000, 'emb_dim': 128, 'num_heads': 2, 'mlp_dim': 256}


def prepare(folder, size):
  """One batch of random ids."""
  rows, length = (2, 16) if size['quick'] else (16, 64)
  shape = _SHAPE | (_TINY if size['quick'] else {})
  return {
    'items': _STEPS * rows,
    'batch': [rows, length],
    'shape': shape,
    **size,
  }


def _batch(job):
  draw = np.random.default_rng(0)
  ids = draw.integers(3, job['shape']['vocab_size'], [2, *job['batch']])
  ids[..., -1] = 1
  inputs, targets = ids.astype('i4')
  return {'encoder_input_tokens': inputs, 'decoder_target_tokens': targets}


def _run(step, state, batch):
  import measuring

  def run():
    nonlocal state
    losses = []
    with measuring.Memory() as memory:
      for _ in range(_STEPS):
        state, loss = step(state, batch)
        losses.append(float(loss))
    return {'scores': losses, 'memory': memory.peak}

  return run


def ours(job):
  """The step of `t5score train`."""
  import jax

  from t5score_jax.models import t5score
  from t5score_jax.nn import t5
  from t5score_jax.training import optimizers, partitioning
  from t5score_jax.training import state as states

  model = t5score.GenerativeModel(t5.T5Config(**job['shape']))
  optimizer = optimizers.adafactor(optimizers.constant(_RATE))
  partitioner = partitioning.Partitioner()
  plan = states.plan(model, optimizer, partitioner)
  state = plan.create(plan.init_params(jax.random.key(0)))
  steps = states.make_step(model, optimizer, partitioner, plan, seed=0)
  # [steps, rows, length]
  batch = {name: ids[None] for name, ids in _batch(job).items()}
  batch = jax.device_put(batch, partitioner.batch_sharding(leading=1))

  def step(state, batch):
    state, totals = steps(state, batch)
    loss, weight = totals['loss']
    return state, loss / weight

  return _run(step, state, batch)


def by_hand(job):
  """As the guides of flax and optax write it."""
  import jax
  import jax.numpy as jnp
  import optax

  from t5score_jax.nn import t5

  config = t5.T5Config(**job['shape'])
  network = t5.Transformer(config)
  params = t5.init_params(config, jax.random.key(0))
  optimizer = optax.adafactor(_RATE)

  def loss_of(params, inputs, targets):
    shifted = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
    hidden = network.apply({'params': params}, inputs, shifted)
    logits = hidden @ t5.output_kernel(params, config)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return losses.mean(1).mean()

  @jax.jit
  def step(state, batch):
    params, moments = state
    loss, gradients = jax.value_and_grad(loss_of)(
      params, batch['encoder_input_tokens'], batch['decoder_target_tokens']
    )
    updates, moments = optimizer.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), loss

  batch = jax.device_put(_batch(job))
  return _run(step, (params, optimizer.init(params)), batch)
