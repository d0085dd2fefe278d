import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.inference import packing


def _plan(lengths, most=64, ready=(), program_cost=0.0):
  lengths = np.asarray(lengths)
  return packing.plan(
    np.arange(len(lengths))[::-1],
    lengths,
    most=most,
    token_cost=1.0,
    program_cost=program_cost,
    ready=ready,
  )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 300), max_size=40), st.integers(1, 400))
def test_chunks_hold_every_pair_once_and_fit(lengths, most):
  lengths = np.asarray(lengths, int)
  chunks = _plan(lengths, most)
  whole = np.concatenate([[], *(c.pairs for c in chunks)])
  assert whole.tolist() == list(range(len(lengths)))[::-1]
  most = max([most, *lengths])
  for chunk in chunks:
    assert lengths[chunk.pairs].sum() <= chunk.size <= most
  for chunk, following in itertools.pairwise(chunks):
    assert chunk.size == most
    # The next target does not fit.
    assert lengths[chunk.pairs].sum() + lengths[following.pairs[0]] > most


def test_the_last_chunk_takes_the_cheapest_size():
  def last(**options):
    return _plan([100] * 21, most=1000, **options)[-1].size

  assert last() == 128
  assert last(program_cost=100.0) == 128
  assert last(program_cost=900.0) == 1000
  assert last(program_cost=900.0, ready=[300]) == 300
  assert last(program_cost=900.0, ready=[90]) == 1000
  # Nothing else has been compiled for the first chunk.
  assert _plan([10], 1000, program_cost=900.0)[0].size == 64


@pytest.mark.parametrize('order', [[0, 1, 2], [2, 0, 1]])
def test_results_are_those_of_their_tokens_whatever_comes_first(order):
  draw = np.random.default_rng(0)
  lengths = draw.integers(1, 8, 12)
  targets = [draw.integers(1, 99, n, dtype=np.int32) for n in lengths]
  states = draw.normal(size=(12, 8, 3)).astype('f4')
  pairs = draw.permutation(12).reshape(3, 4)
  chunks = packing.plan(
    pairs.ravel(), lengths, most=20, token_cost=1, program_cost=0
  )
  sizes = []

  def compute(hidden, ids):
    sizes.append(len(ids))
    return hidden.sum(1) + ids

  done = {}
  batches = ((pairs[n], states[pairs[n]]) for n in order)
  for of_token, result in packing.packed(batches, chunks, targets, compute):
    some, rows = packing.by_pair(of_token, result[: len(of_token)])
    done |= dict(zip(some.tolist(), rows, strict=True))
  assert sorted(sizes) == sorted(chunk.size for chunk in chunks)
  assert sorted(done) == list(range(12))
  for pair, row in done.items():
    n = lengths[pair]
    expected = states[pair, :n].sum(1) + targets[pair]
    np.testing.assert_allclose(row[:n], expected, rtol=1e-5)
    assert not row[n:].any()
