"""Products of traced programs, against counts by hand."""

import jax
import jax.numpy as jnp
import pytest

from t5score_jax.models import t5score
from t5score_jax.nn import t5
from t5score_jax.precompile import flops

CONFIG = t5.T5Config(
  vocab_size=64,
  emb_dim=16,
  num_heads=2,
  head_dim=8,
  mlp_dim=24,
  num_encoder_layers=3,
  num_decoder_layers=2,
)
ROWS, INPUTS, TARGETS = 4, 6, 5


def _count(function, *shapes):
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return flops.count(jax.make_jaxpr(function)(*arguments))


def test_products_by_hand():
  assert _count(lambda a, b: a @ b, (3, 4), (4, 5)) == 2 * 3 * 4 * 5
  batched = _count(
    lambda a, b: jnp.einsum('bij,bkj->bik', a, b), (2, 3, 4), (2, 5, 4)
  )
  assert batched == 2 * 2 * 3 * 4 * 5
  assert _count(jnp.add, (3, 4), (3, 4)) == 0


def test_loops_branches_and_recomputation():
  def loop(a, b):
    return jax.lax.scan(lambda x, _: (x @ b, None), a, None, length=7)[0]

  def branch(a, b):
    return jax.lax.cond(a[0, 0] > 0, lambda: (a @ b) @ b, lambda: a @ b)

  def two(a, b):
    return jnp.sum(jnp.tanh(jnp.tanh(a @ b) @ b))

  one = 2 * 3 * 4 * 4
  assert _count(loop, (3, 4), (4, 4)) == 7 * one
  assert _count(branch, (3, 4), (4, 4)) == 2 * one
  plain = _count(jax.grad(two, argnums=(0, 1)), (3, 4), (4, 4))
  # Both products forward, two more for each backward.
  assert plain == 6 * one
  again = _count(jax.grad(jax.checkpoint(two), argnums=(0, 1)), (3, 4), (4, 4))
  assert plain < again <= 8 * one


def _forward_by_hand(config):
  """Projections, attention and logits of one forward pass."""
  joined = config.num_heads * config.head_dim
  encoder_tokens, decoder_tokens = ROWS * INPUTS, ROWS * TARGETS
  attention = 4 * config.emb_dim * joined
  mlp = 3 * config.emb_dim * config.mlp_dim
  total = config.num_encoder_layers * encoder_tokens * (attention + mlp)
  total += config.num_decoder_layers * (
    decoder_tokens * (attention + mlp + 2 * config.emb_dim * joined)
    + encoder_tokens * 2 * config.emb_dim * joined
  )
  total += 2 * joined * config.num_encoder_layers * ROWS * INPUTS**2
  total += 2 * joined * config.num_decoder_layers * ROWS * TARGETS**2
  total += 2 * joined * config.num_decoder_layers * ROWS * TARGETS * INPUTS
  total += decoder_tokens * config.emb_dim * config.vocab_size
  return 2 * total


@pytest.mark.parametrize(
  'scan', [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_network_by_hand_and_by_its_parameters(scan):
  config = t5.T5Config(**{**CONFIG.__dict__, 'scan_layers': scan})
  model = t5score.GenerativeModel(config)
  params = jax.eval_shape(model.init, jax.random.key(0))
  batch = {
    'encoder_input_tokens': jax.ShapeDtypeStruct((ROWS, INPUTS), jnp.int32),
    'decoder_target_tokens': jax.ShapeDtypeStruct((ROWS, TARGETS), jnp.int32),
  }

  def loss(params, batch):
    return model.loss_fn(params, batch, None)[0]

  forward = flops.count(jax.make_jaxpr(loss)(params, batch))
  assert forward == _forward_by_hand(config)
  both = flops.count(jax.make_jaxpr(jax.grad(loss))(params, batch))
  logits = 2 * ROWS * TARGETS * config.emb_dim * config.vocab_size
  # The blocked loss computes its logits a second time.
  assert both == 3 * forward + logits
  # The rule of thumb: 6 FLOPs a parameter and token, embeddings left out.
  used = sum(
    x.size
    * (INPUTS if 'encoder' in jax.tree_util.keystr(path[:1]) else TARGETS)
    for path, x in jax.tree_util.tree_leaves_with_path(params)
    if 'embedder' not in jax.tree_util.keystr(path)
  )
  assert 3 * forward == pytest.approx(6 * used * ROWS, rel=0.15)
