"""Instances and folds, against cases made by hand."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5score_jax.data import instances
from t5score_jax.data.files import RecordError
from t5score_jax.data.records import Segment

NAN = float('nan')
# Two experts on one output, one on another; a reference is a text of its own
# system, and a source is shared.
ROWS = [
  Segment('h1', 's', ('r1', 'r2'), 'A', 'd1', ratings={'coh': 1.0, 'flu': 5.0}),
  Segment('h1', 's', ('r1', 'r2'), 'A', 'd1', ratings={'coh': 2.0}),
  Segment('r2', 's', ('r1', 'r2'), 'B', 'd1', ratings={'flu': 4.0}),
  Segment('h1', 't', ('r3',), 'A', 'd2', ratings={}),
]


def test_every_reference_and_every_judgment_is_an_instance():
  texts = instances.Texts()
  found = instances.build(ROWS, ('coh', 'flu'), texts)
  assert list(texts) == ['h1', 's', 'r1', 'r2', 't', 'r3']
  assert found.hypothesis.tolist() == [0, 0, 0, 0, 3, 3, 0]
  assert found.source.tolist() == [1, 1, 1, 1, 1, 1, 4]
  assert found.reference.tolist() == [2, 3, 2, 3, 2, 3, 5]
  assert found.record.tolist() == [0, 0, 1, 1, 2, 2, 3]
  np.testing.assert_array_equal(
    found.ratings,
    [[1, 5], [1, 5], [2, NAN], [2, NAN], [NAN, 4], [NAN, 4], [NAN, NAN]],
  )
  assert len(found.rated()) == 6 and len(found) == 7
  chosen = found.of_records(np.array([False, True, False, True]))
  assert chosen.reference.tolist() == [2, 3, 5]
  assert chosen.record.tolist() == [1, 1, 3]
  assert set(found.arrays()) == {
    'hypothesis',
    'source',
    'reference',
    'ratings',
    'system',
  }
  assert found.system.tolist() == [0, 0, 0, 0, 1, 1, 0]
  assert chosen.system.tolist() == [0, 0, 0]


def test_without_references_a_judgment_is_one_instance():
  texts = instances.Texts(['t'])
  found = instances.build(ROWS, ('coh',), texts, reference=False)
  assert list(texts) == ['t', 'h1', 's', 'r2']
  assert found.reference is None and 'reference' not in found.arrays()
  assert found.hypothesis.tolist() == [1, 1, 3, 1]
  assert found.source.tolist() == [2, 2, 2, 0]
  assert found.record.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
  ('changes', 'word'), [({'source': None}, 'source'), ({'references': ()}, '')]
)
def test_what_is_missing_is_named(changes, word):
  rows = [ROWS[0], dataclasses.replace(ROWS[2], **changes)]
  with pytest.raises(RecordError, match=f'record 2 .system B.*no {word}'):
    instances.build(rows, ('coh',), instances.Texts())


def test_no_records_give_no_instances():
  found = instances.build([], ('a', 'b'), instances.Texts())
  assert found.ratings.shape == (0, 2) and len(found.rated()) == 0


def test_judgments_of_one_output_are_averaged():
  found = instances.averaged(ROWS)
  assert [s.system for s in found] == ['A', 'B', 'A']
  assert found[0].ratings == {'coh': 1.5, 'flu': 5.0}
  assert found[1].ratings == {'flu': 4.0} and found[2].ratings == {}
  # Another reference, or another system with the same words, is another output.
  others = [ROWS[0], dataclasses.replace(ROWS[0], system='C'), ROWS[1]]
  assert [s.ratings['coh'] for s in instances.averaged(others)] == [1.5, 1.0]


def test_digests_tell_texts_apart():
  digests = {
    instances.Texts(texts).digest()
    for texts in (['ab', 'c'], ['a', 'bc'], ['c', 'ab'], ['ab', 'c', ''])
  }
  assert len(digests) == 4
  assert instances.Texts('aab').digest() == instances.Texts('ab').digest()


@given(
  names=st.sets(st.text(max_size=4), min_size=3, max_size=60),
  count=st.integers(3, 12),
  seed=st.integers(0, 3),
)
def test_folds_divide_documents(names, count, seed):
  if len(names) < count:
    with pytest.raises(ValueError, match='too few'):
      instances.folds(names, count, seed)
    return
  found = instances.folds(names, count, seed)
  assert len(found) == count
  tests = [name for fold in found for name in fold.test]
  assert sorted(tests) == sorted(names)
  for n, fold in enumerate(found):
    parts = [set(fold.train), set(fold.validation), set(fold.test)]
    assert set.union(*parts) == names
    assert sum(map(len, parts)) == len(names)
    assert fold.validation == found[(n + 1) % count].test
  sizes = [len(fold.test) for fold in found]
  assert max(sizes) - min(sizes) <= 1
  backwards = sorted(names, reverse=True) * 2
  assert instances.folds(backwards, count, seed) == found


def test_the_papers_division():
  names = [f'article {n}' for n in range(100)]
  for fold in instances.folds(names, 10):
    assert [len(fold.train), len(fold.validation), len(fold.test)] == [
      80,
      10,
      10,
    ]
  assert instances.folds(names, 10, 1) != instances.folds(names, 10, 0)


def test_folds_are_the_same_for_ever():
  # Of another division nothing that was measured could be measured again.
  found = instances.folds('abcdef', 3)
  assert [fold.test for fold in found] == [('c', 'f'), ('b', 'd'), ('a', 'e')]


def test_keys_must_be_there():
  assert instances.keys(ROWS, 'document') == ['d1', 'd1', 'd1', 'd2']
  with pytest.raises(RecordError, match='record 1 .*no segment'):
    instances.keys(ROWS, 'segment')
  with pytest.raises(ValueError, match='hypothesis.*document'):
    instances.keys(ROWS, 'hypothesis')
  with pytest.raises(ValueError, match='at least 3'):
    instances.folds('abc', 2)
