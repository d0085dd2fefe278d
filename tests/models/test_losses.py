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

from t5score_jax.models import _logit_blocks, losses

# The shapes that hypothesis draws from: each costs a compilation.
_SHAPES = st.sampled_from([(1, 1, 1, 2), (2, 7, 3, 11), (3, 5, 5, 6)])
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
  @jax.jit
  def compute(hidden, kernel):
    value, pull = jax.vjp(lambda h, k: function(h, k, targets), hidden, kernel)
    return value, *pull(cotangent)

  return compute(hidden, kernel)


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
def _blocked(cut, hidden, kernel, targets, cotangent):
  """Values and gradients.

  Args:
    cut: What is cut, and how many positions of each row, or about as many
      logits, are computed at a time.
    hidden: As of `losses.token_log_probs`; the other arguments likewise.
    kernel: See there.
    targets: See there.
    cotangent: Float32 [batch, length].
  """
  axis, size = cut
  if axis == 'positions':
    function = functools.partial(_logit_blocks.by_positions, block=size)
  else:
    # The default on the CPU of these tests.
    elements = size * targets.shape[0] * kernel.shape[1]
    function = functools.partial(
      losses.token_log_probs, block_elements=elements
    )
  return _value_and_grads(function, hidden, kernel, targets, cotangent)


_CUTS = st.sampled_from(
  [('positions', 1), ('positions', 3), ('vocabulary', 2), ('vocabulary', 8)]
)


@settings(max_examples=20, deadline=None)
@given(shape=_SHAPES, cut=_CUTS, seed=_SEEDS)
def test_blocked_equals_naive(shape, cut, seed):
  draw = _draw(shape, seed)
  made = _blocked(cut, *draw)
  expected = _numpy(*draw)
  for name, a, b in zip(
    ('value', 'd_hidden', 'd_kernel'), made, expected, strict=True
  ):
    assert a.dtype == jnp.float32
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=name)
  assert np.all(np.asarray(made[0]) <= 0)


@settings(max_examples=10, deadline=None)
@given(shape=_SHAPES, cut=_CUTS, seed=_SEEDS)
def test_bfloat16_blocked_equals_naive(shape, cut, seed):
  hidden, kernel, *rest = _draw(shape, seed, jnp.bfloat16)
  value, d_hidden, d_kernel = _blocked(cut, hidden, kernel, *rest)
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


@pytest.mark.parametrize('share', [0.1, 0.6, 1.0])
def test_what_does_not_count_changes_nothing(share):
  # 600 positions: five tiles of tokens; 300 columns: blocks of 48, some twice.
  hidden, kernel, targets, cotangent = _draw((4, 150, 5, 300), 3)
  counted = np.random.default_rng(0).random((4, 150)) < share
  made = _value_and_grads(
    lambda *args: losses.token_log_probs(*args, counted, 48 * 120),
    jnp.where(counted[..., None], hidden, jnp.nan),
    kernel,
    jnp.where(counted, targets, -1),
    cotangent,
  )
  cut = jnp.where(counted, cotangent, 0.0)
  value, *gradients = _numpy(hidden, kernel, targets, cut)
  expected = value * counted, *gradients
  for a, b in zip(made, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_tiles_of_padding_are_skipped():
  hidden, kernel, targets, cotangent = _draw((4, 150, 5, 300), 3)
  made = _value_and_grads(
    lambda *args: losses.token_log_probs(*args, jnp.zeros((4, 150))),
    hidden,
    # Whatever is multiplied by it is NaN.
    jnp.nan * kernel,
    targets,
    cotangent,
  )
  assert not any(np.any(x) for x in made)


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


# Contrastive loss of sentence vectors (UScore, equation 4).


def _vectors(count, seed=0, width=5):
  generator = np.random.default_rng(seed)
  return generator.normal(size=(2, count, width)).astype(np.float32) * 3


def _equation_4(x, y, tau, include_positive, same=None, np=np):
  """The mean loss of pairs, as a reader would write it."""
  count = len(x)
  same = [[False] * count] * count if same is None else same
  total = 0.0
  for a, b in ((x, y), (y, x)):
    a = a / np.sqrt((a * a).sum(1, keepdims=True))
    b = b / np.sqrt((b * b).sum(1, keepdims=True))
    cosines = a @ b.T
    for i in range(count):
      summands = [
        np.exp(cosines[i, j] / tau)
        for j in range(count)
        if (include_positive if j == i else not same[i][j])
      ]
      positive = np.exp(cosines[i, i] / tau)
      total = total - np.log(positive / sum(summands))
  return total / count


@functools.partial(jax.jit, static_argnames=('temperature', 'include_positive'))
def _info_nce(x, y, mask=None, **options):
  mask = jnp.ones(len(x)) if mask is None else jnp.asarray(mask, jnp.float32)
  loss, weight = losses.info_nce(x, y, mask, **options)
  return loss / jnp.maximum(weight, 1.0)


_info_nce_and_grads = jax.jit(
  jax.value_and_grad(_info_nce, (0, 1)),
  static_argnames=('temperature', 'include_positive'),
)


@pytest.mark.parametrize(
  ('tau', 'include_positive'), [(0.05, False), (1.0, True)]
)
def test_info_nce_is_equation_4_in_both_directions(tau, include_positive):
  x, y = _vectors(4)
  options = {'temperature': tau, 'include_positive': include_positive}
  expected = _equation_4(*_vectors(4).astype('f8'), tau, include_positive)
  np.testing.assert_allclose(_info_nce(x, y, **options), expected, rtol=1e-5)
  _, found = _info_nce_and_grads(x, y, **options)
  naive = jax.jit(
    jax.grad(
      lambda x, y: _equation_4(x, y, tau, include_positive, np=jnp), (0, 1)
    )
  )(x, y)
  for one, other in zip(found, naive, strict=True):
    assert np.abs(other).max() > 1e-2
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
  # No pair is first, and the sides may be exchanged.
  order = [2, 0, 3, 1]
  for a, b in ((y, x), (x[order], y[order])):
    np.testing.assert_allclose(_info_nce(a, b, **options), expected, rtol=1e-5)


def test_info_nce_leaves_out_the_pair_itself():
  # Orthogonal texts: positives at 1, negatives at 0.
  x = np.eye(3, dtype=np.float32)
  printed = _info_nce(x, x, temperature=0.5)
  np.testing.assert_allclose(printed, 2 * (np.log(2) - 2), rtol=1e-6)
  whole = _info_nce(x, x, temperature=0.5, include_positive=True)
  np.testing.assert_allclose(whole, 2 * (np.log(2 + np.e**2) - 2), rtol=1e-6)
  # The least value of the loss: opposite negatives.
  line = np.array([[1.0], [-1.0]], np.float32)
  np.testing.assert_allclose(_info_nce(line, line), 2 * (0 - 40), rtol=1e-6)


@pytest.mark.parametrize('filled', [False, True])
def test_info_nce_does_not_see_padding(filled):
  x, y = _vectors(4)
  more = np.zeros((2, 5), np.float32)
  rows = [0, 4, 1, 2, 5, 3]
  wide_x, wide_y = (np.concatenate([side, more])[rows] for side in (x, y))
  mask = np.array(rows) < 4
  if filled:
    wide_x[~mask], wide_y[~mask] = x[0], y[0]
  found = _info_nce_and_grads(wide_x, wide_y, mask)
  expected = _info_nce_and_grads(x, y)
  np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
  for wide, narrow in zip(found[1], expected[1], strict=True):
    kept = np.asarray(wide)[mask]
    order = np.array(rows)[mask]
    np.testing.assert_allclose(kept, np.asarray(narrow)[order], atol=1e-5)
    assert not np.any(np.asarray(wide)[~mask])


def test_pairs_that_share_a_text_are_no_negatives():
  x, y = _vectors(4)
  y[1] = y[0]
  same = np.eye(4, dtype=bool)
  same[0, 1] = same[1, 0] = True
  found = _info_nce(x, y, same=same)
  expected = _equation_4(x.astype('f8'), y.astype('f8'), 0.05, False, same)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert abs(float(_info_nce(x, y)) - float(found)) > 0.1


@pytest.mark.parametrize('include_positive', [False, True])
def test_a_pair_without_negatives_teaches_nothing(include_positive):
  x, y = _vectors(2)
  for mask, same in (([1, 0], None), ([1, 1], np.ones((2, 2), bool))):

    @jax.jit
    def compute(x, y, mask=mask, same=same):
      mask = jnp.array(mask, jnp.float32)
      return jax.value_and_grad(losses.info_nce, has_aux=True)(
        x, y, mask, 0.05, include_positive, same
      )

    (loss, weight), gradient = compute(x, y)
    assert float(loss) == float(weight) == 0
    assert not np.any(gradient)
