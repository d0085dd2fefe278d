"""The losses against NumPy, and the blocked log-probabilities."""

import functools
import itertools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.models import losses

# The shapes that hypothesis draws from: each costs a compilation or two.
_SHAPES = st.tuples(
  st.integers(1, 3), st.integers(1, 7), st.integers(1, 5), st.integers(2, 11)
)
_SEEDS = st.integers(0, 2**32 - 1)


def _draw(shape, seed, dtype=jnp.float32, scale=1.0):
  """hidden, kernel, targets and a cotangent for one (b, l, d, v)."""
  rows, length, dim, vocab = shape
  rng = np.random.default_rng(seed)
  return (
    jnp.asarray(scale * rng.standard_normal((rows, length, dim)), dtype),
    jnp.asarray(rng.standard_normal((dim, vocab)), jnp.float32),
    jnp.asarray(rng.integers(0, vocab, (rows, length)), jnp.int32),
    jnp.asarray(rng.standard_normal((rows, length)), jnp.float32),
  )


def _naive(hidden, kernel, targets):
  """Equation 1's summands with all logits, as a reader would write them."""
  logits = hidden.astype(jnp.float32) @ kernel.astype(hidden.dtype).astype(
    jnp.float32
  )
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  return jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]


def _value_and_grads(function, hidden, kernel, targets, cotangent):
  value, pull = jax.vjp(lambda h, k: function(h, k, targets), hidden, kernel)
  return value, *pull(cotangent)


def _numpy(hidden, kernel, targets, cotangent):
  """Values and gradients of equation 1's summands in float64."""
  hidden, kernel, cotangent = (
    np.asarray(x, np.float64) for x in (hidden, kernel, cotangent)
  )
  logits = hidden @ kernel
  log_probs = logits - logits.max(-1, keepdims=True)
  log_probs -= np.log(np.exp(log_probs).sum(-1, keepdims=True))
  onehot = np.eye(kernel.shape[1])[np.asarray(targets)]
  d_logits = (onehot - np.exp(log_probs)) * cotangent[..., None]
  return (
    (log_probs * onehot).sum(-1),
    d_logits @ kernel.T,
    np.einsum('bld,blv->dv', hidden, d_logits),
  )


@functools.partial(jax.jit, static_argnums=0)
def _blocked(per_row, hidden, kernel, targets, cotangent):
  """Values and gradients, ``per_row`` positions of a row at a time."""
  elements = per_row * targets.shape[0] * kernel.shape[1]
  return _value_and_grads(
    lambda *args: losses.token_log_probs(*args, block_elements=elements),
    hidden,
    kernel,
    targets,
    cotangent,
  )


@settings(max_examples=20, deadline=None)
@given(shape=_SHAPES, per_row=st.integers(1, 8), seed=_SEEDS)
def test_blocked_equals_naive(shape, per_row, seed):
  draw = _draw(shape, seed)
  made = _blocked(per_row, *draw)
  expected = _numpy(*draw)
  for name, a, b in zip(
    ('value', 'd_hidden', 'd_kernel'), made, expected, strict=True
  ):
    assert a.dtype == jnp.float32
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=name)
  assert np.all(np.asarray(made[0]) <= 0)


@settings(max_examples=10, deadline=None)
@given(shape=_SHAPES, per_row=st.integers(1, 8), seed=_SEEDS)
def test_bfloat16_blocked_equals_naive(shape, per_row, seed):
  hidden, kernel, *rest = _draw(shape, seed, jnp.bfloat16)
  value, d_hidden, d_kernel = _blocked(per_row, hidden, kernel, *rest)
  assert (value.dtype, d_hidden.dtype) == (jnp.float32, jnp.bfloat16)
  assert d_kernel.dtype == jnp.float32
  rounded = kernel.astype(jnp.bfloat16)
  expected, *gradients = _numpy(hidden, rounded, *rest)
  # Products of bfloat16 numbers are exact in float32 ...
  np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
  # ... and gradients are rounded to 8 bits on the way.
  for made, expected in zip((d_hidden, d_kernel), gradients, strict=True):
    np.testing.assert_allclose(
      np.asarray(made, np.float64),
      expected,
      atol=0.02 * max(1.0, np.abs(expected).max()),
    )


def test_gradient_against_finite_differences():
  jax.test_util.check_grads(
    lambda h, k: losses.token_log_probs(
      h, k, _draw((2, 5, 3, 7), 1)[2], block_elements=28
    ),
    _draw((2, 5, 3, 7), 1)[:2],
    order=1,
    modes=['rev'],
    atol=1e-2,
    rtol=1e-2,
  )


def test_extreme_logits_stay_finite():
  hidden, kernel, targets, cotangent = _draw((2, 4, 3, 9), 5, scale=1e4)
  made = _value_and_grads(
    losses.token_log_probs, hidden, kernel, targets, cotangent
  )
  assert all(np.all(np.isfinite(x)) for x in made)
  expected = _naive(hidden, kernel, targets)
  np.testing.assert_allclose(made[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  ('shape', 'elements', 'expected'),
  [
    ((16, 64, 250_112), 2**26, 16),
    ((1, 64, 100), 2**26, 64),
    ((16, 64, 250_112), 1, 1),
    ((2, 7, 10), 60, 3),
    ((0, 0, 10), 60, 1),
  ],
)
def test_block_length(shape, elements, expected):
  assert losses.block_length(*shape, elements) == expected


def _sizes(jaxpr):
  """Number of elements of every array in a jaxpr and those inside it."""
  for equation in jaxpr.eqns:
    for variable in (*equation.invars, *equation.outvars):
      yield int(np.prod(getattr(variable.aval, 'shape', ())))
    for value in jax.tree.leaves(
      list(equation.params.values()),
      is_leaf=lambda x: hasattr(x, 'eqns') or hasattr(x, 'jaxpr'),
    ):
      inner = getattr(value, 'jaxpr', value)
      if hasattr(inner, 'eqns'):
        yield from _sizes(inner)


def _traced(function, elements):
  """The largest array of a value with gradients at mT5's vocabulary."""
  rows, length, dim, vocab = 4, 64, 8, 250_112
  args = (
    jax.ShapeDtypeStruct((rows, length, dim), jnp.float32),
    jax.ShapeDtypeStruct((dim, vocab), jnp.float32),
    jax.ShapeDtypeStruct((rows, length), jnp.int32),
    jax.ShapeDtypeStruct((rows, length), jnp.float32),
  )
  compiled = jax.jit(lambda *args: _value_and_grads(function, *args)).trace(
    *args
  )
  return max(_sizes(compiled.jaxpr.jaxpr)), rows * length * vocab


def test_never_holds_all_logits():
  elements = 4_000_000

  def blocked(*args):
    return losses.token_log_probs(*args, block_elements=elements)

  largest, all_logits = _traced(blocked, elements)
  # A block, or the kernel [8, 250112].
  assert largest <= elements
  assert elements < all_logits / 16
  # The measure sees the array where there is one.
  assert _traced(_naive, elements)[0] >= all_logits


def test_compiled_memory_is_that_of_blocks():
  args = _draw((4, 32, 8, 4096), 0)
  bytes_of_logits = 4 * 4 * 32 * 4096

  def temporary(function):
    lowered = jax.jit(lambda *a: _value_and_grads(function, *a)).lower(*args)
    return lowered.compile().memory_analysis().temp_size_in_bytes

  def blocked(*args):
    return losses.token_log_probs(*args, block_elements=4 * 2 * 4096)

  assert temporary(_naive) >= bytes_of_logits
  assert temporary(blocked) < bytes_of_logits / 2


def test_sequence_scores_equation_1():
  log_probs = np.array([[-1.0, -2.0, -9.0], [-4.0, -9.0, -9.0]])
  weights = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
  np.testing.assert_allclose(
    losses.sequence_scores(log_probs, weights), [-1.5, -4.0]
  )
  # The published trainer: the source has 4 and 2 tokens.
  np.testing.assert_allclose(
    losses.sequence_scores(log_probs, weights, np.array([4.0, 2.0])),
    [-0.75, -2.0],
  )
  assert losses.sequence_scores(log_probs, 0 * weights).tolist() == [0, 0]


@pytest.mark.parametrize(
  ('normalize', 'loss', 'weight'),
  [
    # Means -1.5 and -4 of the two texts; the third is empty.
    ('sequence', 5.5, 2.0),
    ('tokens', 7.0, 3.0),
    # Padding counts, in numerator and denominator.
    ('padded', 7.0 + 9.0 * 3 + 3.0 * 3, 9.0),
  ],
)
def test_nll_equation_2(normalize, loss, weight):
  log_probs = np.array([[-1.0, -2.0, -9.0], [-4.0, -9.0, -9.0], [-3.0] * 3])
  weights = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0] * 3])
  made = losses.nll(jnp.array(log_probs), jnp.array(weights), normalize)
  np.testing.assert_allclose(made, (loss, weight), rtol=1e-6)


def test_nll_refuses_an_unknown_normalization():
  with pytest.raises(ValueError, match="normalize='mean': use 'sequence'"):
    losses.nll(jnp.zeros((1, 1)), jnp.ones((1, 1)), 'mean')


def test_pair_margin_equation_3():
  better = np.array([-1.0, -3.0, -2.0, -5.0])
  worse = np.array([-2.0, -1.0, -2.5, -1.0])
  better_rating = np.array([0.5, 0.7, 1.0, 0.3])
  worse_rating = np.array([0.0, -0.3, -1.0, 0.3])
  # max(0, worse - better + alpha * gap); equal ratings are left out.
  #   -2 + 1 + .5 < 0;  -1 + 3 + 1 = 3;  -.5 + 2 = 1.5
  made = losses.pair_margin(better, worse, better_rating, worse_rating)
  np.testing.assert_allclose(made, (4.5, 3.0), rtol=1e-6)
  # alpha 2: -1 + 1 = 0;  2 + 2 = 4;  -.5 + 4 = 3.5
  made = losses.pair_margin(
    better, worse, better_rating, worse_rating, alpha=2.0
  )
  np.testing.assert_allclose(made, (7.5, 3.0), rtol=1e-6)


def _pairs_of(ratings, mask, min_gap):
  """(group, better, worse) of every pair that counts."""
  return [
    (group, i, j)
    for group, i in np.argwhere(mask)
    for j in np.flatnonzero(mask[group])
    if ratings[group, i] - ratings[group, j] > min_gap
  ]


@jax.jit
def _by_groups(scores, ratings, mask, alpha, min_gap):
  return jax.value_and_grad(losses.group_margin, has_aux=True)(
    scores, ratings, mask, alpha, min_gap
  )


@jax.jit
def _by_pairs(scores, ratings, pairs, alpha):
  group, better, worse = pairs

  def loss(scores):
    return losses.pair_margin(
      scores[group, better],
      scores[group, worse],
      ratings[group, better],
      ratings[group, worse],
      alpha,
    )

  return jax.value_and_grad(loss, has_aux=True)(scores)


@settings(max_examples=100, deadline=None)
@given(
  seed=_SEEDS,
  density=st.floats(0, 1),
  alpha=st.sampled_from([0.0, 0.5, 1.0]),
  min_gap=st.sampled_from([0.0, 1.0]),
)
def test_groups_equal_all_their_pairs(seed, density, alpha, min_gap):
  groups, size = 3, 5
  rng = np.random.default_rng(seed)
  scores = rng.standard_normal((groups, size)).astype(np.float32)
  # Few values, so that there are ties; halves, so that gaps are exact.
  ratings = rng.integers(-3, 4, (groups, size)).astype(np.float32) / 2
  mask = (rng.random((groups, size)) < density).astype(np.float32)
  listed = _pairs_of(ratings, mask, min_gap)
  # One shape for all; a text against itself does not count.
  padding = [(0, 0, 0)] * (groups * size * (size - 1) // 2 - len(listed))
  pairs = np.array(listed + padding).T
  (loss, weight), gradient = _by_groups(scores, ratings, mask, alpha, min_gap)
  (expected, count), expected_gradient = _by_pairs(
    scores, ratings, pairs, alpha
  )
  np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
  assert weight == count == len(listed)
  np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-5)


def test_ten_systems_make_45_pairs():
  ratings = np.arange(10, dtype=np.float32)[None]
  scores = ratings * -1.0
  loss, weight = losses.group_margin(scores, ratings, np.ones((1, 10)))
  assert weight == 45
  # Each pair is in reverse order: twice its gap.
  expected = sum(2 * (j - i) for i, j in itertools.combinations(range(10), 2))
  np.testing.assert_allclose(loss, expected)
