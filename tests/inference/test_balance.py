"""Work divided by cost; what processes tell each other is in the CLI tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5score_jax.inference import balance


@given(
  st.lists(st.integers(0, 100), max_size=60),
  st.integers(min_value=1, max_value=7),
)
def test_every_item_has_an_owner_and_loads_are_close(costs, count):
  owner = balance.owners(costs, count)
  assert owner.shape == (len(costs),)
  assert np.all((owner >= 0) & (owner < count))
  loads = np.bincount(owner, costs, minlength=count)
  # Graham's bound for the longest first: nobody is ahead by more than an item.
  if costs:
    assert loads.max() <= sum(costs) / count + max(costs)


def test_four_processes_share_like_lengths_well():
  costs = np.random.default_rng(0).integers(5, 200, 1000)
  loads = np.bincount(balance.owners(costs, 4), costs)
  assert loads.max() / loads.mean() < 1.002


def test_one_process_keeps_all():
  assert balance.owners([3, 1], 1).tolist() == [0, 0]
  assert balance.gather(b'abc') == [b'abc']
  balance.agree(['a'], 'the texts')


@pytest.mark.parametrize('count', [2, 3])
def test_division_does_not_depend_on_where_it_is_computed(count):
  costs = [5, 5, 5, 5, 2, 2]
  first = balance.owners(costs, count)
  np.testing.assert_array_equal(first, balance.owners(np.asarray(costs), count))
  assert set(first.tolist()) == set(range(count))
