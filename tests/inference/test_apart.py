import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.inference import apart, buckets


def _plan(of_pair, inputs, targets, cost=0.0, **options):
  return apart.plan(
    np.asarray(of_pair),
    np.asarray(inputs),
    np.asarray(targets),
    max_length=200,
    costs=buckets.Costs(1e-5, 3e-5, cost, cost),
    **options,
  )


@given(
  seed=st.integers(0, 1000),
  inputs=st.integers(1, 30),
  more=st.integers(0, 60),
  tokens=st.integers(1, 3000),
  cost=st.sampled_from([0.0, 0.01, 1e9]),
)
@settings(max_examples=100, deadline=None)
def test_plan_holds_everything_once_and_fits(seed, inputs, more, tokens, cost):
  rng = np.random.default_rng(seed)
  of_pair = np.r_[np.arange(inputs), rng.integers(inputs, size=more)]
  rng.shuffle(of_pair)
  given_lengths = rng.integers(1, 201, size=inputs)
  target_lengths = rng.integers(1, 201, size=len(of_pair))
  parts = _plan(
    of_pair, given_lengths, target_lengths, cost, batch_tokens=tokens
  )
  done = set()
  encoded, decoded = [], []
  for part in parts:
    held = [i for b in part.encodes for i in b.inputs.tolist()]
    encoded += held
    for b in part.encodes:
      assert len(b.inputs) <= b.rows
      assert given_lengths[b.inputs].max() <= b.length <= 200
      # At least one row; otherwise within the budget.
      assert b.rows == 1 or b.rows * b.length <= tokens
    for b in part.decodes:
      decoded += b.pairs.tolist()
      # The states are there.
      assert set(of_pair[b.pairs].tolist()) <= set(held)
      assert len(b.pairs) <= b.rows
      assert target_lengths[b.pairs].max() <= b.length <= 200
      assert given_lengths[of_pair[b.pairs]].max() <= b.input_length <= 200
      assert b.rows == 1 or b.rows * max(b.length, b.input_length) <= tokens
    done |= set(part.shapes)
  assert sorted(encoded) == list(range(inputs))
  assert sorted(decoded) == list(range(len(of_pair)))
  if cost == 1e9:
    assert len({shape[1] for shape in done if len(shape) == 2}) == 1
    assert len({shape[3] for shape in done if len(shape) == 4}) == 1


def test_little_is_padding():
  """Ten systems and their references, both directions."""
  rng = np.random.default_rng(0)
  references = np.clip(rng.lognormal(3.7, 0.6, 300), 4, 199).astype(int)
  near = references[:, None] * rng.uniform(0.8, 1.25, (300, 10))
  lengths = np.r_[references, np.clip(near, 1, 200).astype(int).ravel()]
  hypotheses = np.arange(3000) + 300
  of_reference = np.repeat(np.arange(300), 10)
  given_texts = np.r_[of_reference, hypotheses]
  targets = lengths[np.r_[hypotheses, of_reference]]
  parts = _plan(given_texts, lengths, targets, batch_tokens=2048)
  assert len(parts) > 1
  encoded = sum(b.rows * b.length for p in parts for b in p.encodes)
  decoded = sum(b.rows * b.length for p in parts for b in p.decodes)
  assert encoded < 1.15 * lengths.sum()
  assert decoded < 1.15 * targets.sum()


def test_a_few_texts_make_small_batches():
  parts = _plan([0, 0], [20], [20, 30], batch_tokens=4096)
  assert parts[0].shapes == [(8, 20), (8, 32, 8, 32)]
  parts = _plan([0], [9], [20], batch_tokens=4096, cost=9.0, ready={(8, 48)})
  assert [b.shape for b in parts[0].encodes] == [(8, 48)]


@pytest.mark.parametrize('held', [1, 64])
def test_states_are_those_of_their_inputs(held, monkeypatch):
  monkeypatch.setattr(apart, '_HELD', held)
  rng = np.random.default_rng(0)
  inputs, targets = (
    [rng.integers(1, 99, n, dtype=np.int32) for n in rng.integers(1, 60, count)]
    for count in (20, 50)
  )
  of_pair = rng.permutation(np.r_[np.arange(20), rng.integers(20, size=30)])
  parts = _plan(
    of_pair, *(list(map(len, x)) for x in (inputs, targets)), batch_tokens=200
  )
  assert (len(parts) > 1) == (held == 1)

  def decode(encoded, ids, rows, wanted):
    np.testing.assert_array_equal(encoded[..., 0], ids)
    return encoded.sum(1)[rows][:, None] + wanted[..., None]

  seen = {}
  for pairs, hidden in apart.states(
    parts, inputs, targets, of_pair, lambda ids: ids[..., None] * 1.0, decode
  ):
    seen |= dict(zip(pairs.tolist(), hidden, strict=True))
  assert sorted(seen) == list(range(50))
  for pair, row in seen.items():
    target = targets[pair]
    expected = inputs[of_pair[pair]].sum() + target
    np.testing.assert_array_equal(row[: len(target), 0], expected)
