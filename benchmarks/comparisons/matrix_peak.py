"""The largest rate of matrix products: by it the shares of others are taken."""

import numpy as np

TITLE = 'Matrix product, float32'
UNIT = 'FLOP'
OURS = {'here': 'ours'}
PEERS = {'torch': 'peer'}
TOLERANCE = 1e-2
MEASURE = 'seconds'
_TIMES = 5


def prepare(folder, size):
  """A size that fills a CPU's cores, or a larger one for an accelerator."""
  width = 512 if size['quick'] else 3072
  if size['platform'] != 'cpu':
    width = 16384
  return {'items': 2 * width**3 * _TIMES, 'width': width, **size}


def _matrices(job):
  draw = np.random.default_rng(0)
  shape = (job['width'], job['width'])
  return draw.random(shape, np.float32), draw.random(shape, np.float32)


def ours(job):
  """XLA's."""
  import jax
  import jax.numpy as jnp

  a, b = map(jax.device_put, _matrices(job))
  product = jax.jit(jnp.dot)

  def run():
    for _ in range(_TIMES):
      result = product(a, b)
    rows = np.asarray(jax.block_until_ready(result)[0])
    return {'scores': rows / job['width']}

  return run


def peer(job):
  """Torch's."""
  import torch

  device = 'cuda' if job['platform'] == 'gpu' else 'cpu'
  a, b = (torch.from_numpy(x).to(device) for x in _matrices(job))

  def run():
    for _ in range(_TIMES):
      result = a @ b
    return {'scores': result[0].cpu().numpy() / job['width']}

  return run
