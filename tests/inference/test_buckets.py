import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.inference import buckets

# Seconds, as of a small model on two cores.
COSTS = buckets.Costs(1e-5, 3e-5, 0.4, 0.65)
FREE_PROGRAMS = buckets.Costs(1e-5, 3e-5, 0.0, 0.0)


@pytest.mark.parametrize('max_length', [2, 16, 17, 64, 1000, 1024, 5000])
def test_boundaries_end_at_max_length_in_small_steps(max_length):
  for steps, most in ((1, 2), (2, 1.5), (4, 1.25)):
    bounds = buckets.boundaries(max_length, steps)
    assert bounds[-1] == max_length
    assert list(bounds) == sorted(set(bounds))
    for low, high in itertools.pairwise(bounds):
      assert high <= low * most


@given(
  weights=st.dictionaries(
    st.sampled_from([16, 24, 32, 48, 64, 96, 128]),
    st.integers(1, 500),
    min_size=1,
  ),
  ready=st.sets(st.sampled_from([24, 48, 96, 192]), max_size=3),
  cost=st.floats(0, 1e4),
)
@settings(max_examples=200, deadline=None)
def test_boundaries_are_the_best_choice(weights, ready, cost):
  def cost_of(chosen):
    total = sum(cost for bound in chosen if bound not in ready)
    for bound, items in weights.items():
      total += items * min(r for r in chosen if r >= bound)
    return total

  bounds = sorted({*weights, *ready})
  choices = [
    chosen
    for n in range(1, len(bounds) + 1)
    for chosen in itertools.combinations(bounds, n)
    if chosen[-1] >= max(weights)
  ]
  chosen = buckets.choose_boundaries(weights, cost, ready)
  assert cost_of(chosen) == pytest.approx(min(map(cost_of, choices)))


@st.composite
def _problems(draw):
  inputs = draw(st.integers(1, 30))
  pairs = draw(st.integers(inputs, 90))
  rng = np.random.default_rng(draw(st.integers(0, 1000)))
  # Every input has a pair, as in scoring.
  of_pair = np.concatenate(
    [np.arange(inputs), rng.integers(inputs, size=pairs - inputs)]
  )
  rng.shuffle(of_pair)
  return (
    of_pair,
    rng.integers(1, 201, size=inputs),
    rng.integers(1, 201, size=pairs),
  )


@given(
  problem=_problems(),
  tokens=st.integers(1, 3000),
  multiple=st.sampled_from([1, 3, 8]),
  cost=st.sampled_from([0.0, 0.01, 1e9]),
)
@settings(max_examples=200, deadline=None)
def test_plan_holds_everything_once_and_fits(problem, tokens, multiple, cost):
  of_pair, input_lengths, target_lengths = problem
  pools = buckets.plan(
    of_pair,
    input_lengths,
    target_lengths,
    max_length=200,
    batch_tokens=tokens,
    costs=buckets.Costs(1e-5, 3e-5, cost, cost),
    row_multiple=multiple,
  )
  seen_inputs = [i for pool in pools for i in pool.inputs]
  seen_pairs = [p for pool in pools for b in pool.batches for p in b.pairs]
  assert sorted(seen_inputs) == list(range(len(input_lengths)))
  assert sorted(seen_pairs) == list(range(len(of_pair)))
  for pool in pools:
    assert len(pool.inputs) <= pool.rows and pool.rows % multiple == 0
    assert input_lengths[pool.inputs].max() <= pool.length <= 200
    # At least one row, at least one a device; otherwise within the budget.
    assert pool.rows * pool.length < tokens + multiple * pool.length
    for batch in pool.batches:
      assert len(batch.pairs) <= batch.rows and batch.rows % multiple == 0
      assert target_lengths[batch.pairs].max() <= batch.length <= 200
      longest = max(batch.length, pool.length)
      assert batch.rows * longest < tokens + multiple * longest
      assert (pool.inputs[batch.input_rows] == of_pair[batch.pairs]).all()
  if cost == 1e9:
    assert len({shape for pool in pools for shape in pool.shapes}) <= 2


def test_many_hypotheses_of_an_input_share_its_encoding():
  # 4 references of 20 tokens, 10 hypotheses each.
  pools = buckets.plan(
    np.repeat(np.arange(4), 10),
    np.full(4, 20),
    np.full(40, 20),
    max_length=64,
    batch_tokens=200,
    costs=FREE_PROGRAMS,
  )
  assert [len(pool.inputs) for pool in pools] == [4]
  assert [len(batch.pairs) for batch in pools[0].batches] == [10] * 4


def test_padding_is_bounded_on_many_texts():
  rng = np.random.default_rng(0)
  lengths = np.clip(rng.lognormal(3.4, 0.6, 5000), 1, 300).astype(int)
  pools = buckets.plan(
    np.arange(5000),
    lengths,
    lengths,
    max_length=1024,
    batch_tokens=4096,
    costs=FREE_PROGRAMS,
  )
  computed = sum(pool.rows * pool.length for pool in pools)
  decoded = sum(b.rows * b.length for pool in pools for b in pool.batches)
  # A quarter of an octave between boundaries costs about a tenth on average,
  # and the last batches of 16 boundaries are not full.
  assert computed < 1.3 * lengths.sum()
  assert decoded < 1.3 * lengths.sum()


def test_batches_of_a_pool_are_full():
  """1.1 targets an input must not cost two batches a pool."""
  rng = np.random.default_rng(0)
  of_pair = np.concatenate([np.arange(2000), rng.integers(2000, size=200)])
  pools = buckets.plan(
    of_pair,
    np.full(2000, 32),
    np.full(2200, 32),
    max_length=64,
    batch_tokens=1024,
    costs=COSTS,
  )
  assert sum(len(pool.batches) for pool in pools) < 1.1 * 2200 / 32
  assert len(pools) < 1.2 * 2000 / 32


def test_documents_and_summaries_have_separate_buckets():
  documents, summaries = np.full(500, 500), np.full(500, 40)
  pools = buckets.plan(
    np.arange(1000),
    np.concatenate([documents, summaries]),
    np.concatenate([summaries, documents]),
    max_length=512,
    batch_tokens=4096,
    costs=COSTS,
  )
  shapes = {s for pool in pools for s in pool.shapes if len(s) == 4}
  assert {(s[1], s[3]) for s in shapes} == {(512, 40), (40, 512)}


def test_texts_of_similar_length_share_a_bucket():
  rng = np.random.default_rng(0)
  lengths = np.clip(rng.lognormal(3.4, 0.4, 1000), 1, 100).astype(int)
  near = np.maximum(lengths + rng.integers(-5, 6, size=1000), 1)
  pools = buckets.plan(
    np.arange(1000),
    lengths,
    near,
    max_length=256,
    batch_tokens=2048,
    costs=COSTS,
  )
  shapes = {s for pool in pools for s in pool.shapes}
  assert len(shapes) <= 6
  decoded = sum(b.rows * b.length for pool in pools for b in pool.batches)
  assert decoded < 2 * near.sum()


def test_compiled_shapes_are_used_again():
  def shapes(length, ready=()):
    one = np.full(1, length)
    pools = buckets.plan(
      np.zeros(1, int),
      one,
      one,
      max_length=256,
      batch_tokens=4096,
      costs=COSTS,
      ready=ready,
    )
    return pools[0].shapes

  first = shapes(60)
  assert first == ((8, 64), (8, 64, 8, 64))
  assert shapes(10) != first
  assert shapes(10, ready=first) == first
  assert shapes(70, ready=first) == ((8, 80), (8, 80, 8, 80))


def test_few_items_get_a_batch_of_their_size():
  sizes = [buckets.rows_of(n, 42) for n in (1, 8, 9, 16, 17, 32, 33, 1000)]
  assert sizes == [8, 8, 16, 16, 32, 32, 42, 42]
  assert buckets.rows_of(3, 5) == 5
