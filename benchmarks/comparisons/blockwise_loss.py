"""Memory of the loss and its gradient at mT5's vocabulary, in blocks and not.

What counts is how much the resident memory grows while the compiled program
runs; the kernel, its gradient and the runtime are in both.
"""

import numpy as np

TITLE = 'Loss and gradient at 250,112 ids'
UNIT = 'tokens'
OURS = {'here': 'ours', 'all logits at once': 'naive'}
PEERS = {}
TOLERANCE = 1e-3
MEASURE = 'memory'
GOALS = {'all logits at once': 5}


def prepare(folder, size):
  """Rows of one length."""
  rows, length, vocab, width = 8, 64, 250112, 128
  if size['quick']:
    rows, width = 4, 32
  return {
    'items': rows * length,
    'shape': [rows, length, width],
    'vocab': vocab,
    **size,
  }


def ours(job):
  """The library's loss."""
  from t5score_jax.models import losses

  return _gradient(job, losses.token_log_probs)


def naive(job):
  """Logits of all tokens, as the equation is written."""
  import jax
  import jax.numpy as jnp

  def log_probs(hidden, kernel, targets):
    whole = jax.nn.log_softmax(hidden @ kernel)
    return jnp.take_along_axis(whole, targets[..., None], -1)[..., 0]

  return _gradient(job, log_probs)


def _gradient(job, log_probs):
  import jax
  import jax.numpy as jnp
  import measuring

  draw = np.random.default_rng(0)
  hidden = draw.normal(size=job['shape']).astype('f4')
  kernel = draw.normal(size=(job['shape'][-1], job['vocab'])).astype('f4') / 8
  targets = draw.integers(0, job['vocab'], job['shape'][:2])

  def loss(hidden, kernel):
    return -jnp.mean(log_probs(hidden, kernel, targets))

  arrays = jax.device_put((hidden, kernel))
  del hidden, kernel
  program = jax.jit(jax.value_and_grad(loss, (0, 1)))
  program = program.lower(*arrays).compile()

  def run():
    with measuring.Memory() as memory:
      value, gradients = jax.block_until_ready(program(*arrays))
    norms = [float(jnp.linalg.norm(x)) for x in gradients]
    return {
      'scores': [float(value), *norms],
      'memory': memory.peak - memory.start,
    }

  return run
