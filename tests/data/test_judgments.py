"""Choosing groups and pairs from judgments."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5score_jax.data import judgments
from t5score_jax.data.records import Segment


def _segment(hypothesis, z=None, **fields):
  values = {
    'source': 'quelle',
    'references': ('first', 'second'),
    'system': 'alpha',
    'language_pair': 'de-en',
    'segment': '1',
    'ratings': {} if z is None else {'z': z},
    **fields,
  }
  return Segment(hypothesis=hypothesis, **values)


def test_groups_share_language_pair_document_segment_and_text():
  segments = [
    _segment('a', 0.5),
    _segment('b', 0.1, segment='2'),
    _segment('c', -0.5),
    _segment('d', 0.2, segment='2'),
    _segment('e', 0.3, language_pair='de-fr'),
    _segment('f', 0.4, language_pair='de-fr', document='news'),
  ]
  groups, selection = judgments.groups(segments, 'z')
  assert [group.hypotheses for group in groups] == [('a', 'c'), ('b', 'd')]
  assert groups[0] == judgments.Group(
    'first', ('a', 'c'), (0.5, -0.5), ('alpha',) * 2, 'de-en', None, '1'
  )
  assert (selection.segments, selection.used, selection.groups) == (6, 4, 2)
  assert selection.without_pair == 2


def test_source_is_shared_where_it_is_asked_for():
  segments = [
    _segment('a', 0.5, references=('one',)),
    _segment('b', 0.1, references=('other',)),
  ]
  assert judgments.groups(segments, 'z')[0] == []
  (group,), _ = judgments.groups(segments, 'z', shared='source')
  assert group.shared == 'quelle'
  with pytest.raises(ValueError, match="shared must be one of .*'target'"):
    judgments.groups(segments, 'z', shared='target')


def test_what_is_left_out_is_counted():
  segments = [
    _segment('a', 0.5),
    _segment('b', 0.1),
    _segment('human', 0.9, system='Human-A.0'),
    _segment('reference', 0.9, system='ref-B'),
    _segment('unrated'),
    _segment('not a number', math.nan),
    _segment('alone', 0.1, segment='2'),
    _segment('tied', 0.1, segment='3'),
    _segment('tied too', 0.1, segment='3'),
    _segment('no reference', 0.1, references=()),
  ]
  groups, selection = judgments.groups(segments, 'z')
  assert [group.hypotheses for group in groups] == [('a', 'b')]
  assert str(selection) == (
    '10 segments: 2 used in 1 groups; left out: 2 by humans, 2 unrated,'
    ' 1 without the shared text, 3 in groups without a pair'
  )
  everyone, _ = judgments.groups(segments, 'z', leave_out=None)
  assert everyone[0].hypotheses == ('a', 'b', 'human', 'reference')
  single, _ = judgments.groups(segments, 'z', min_size=1)
  assert [len(group.hypotheses) for group in single] == [2, 1, 2]


def test_identical_hypotheses_become_one_with_the_mean_rating():
  segments = [_segment('a', 0.5), _segment('b', 0.0), _segment('a', 1.0)]
  (group,), selection = judgments.groups(segments, 'z', merge_identical=True)
  assert (group.hypotheses, group.ratings) == (('a', 'b'), (0.75, 0.0))
  assert (selection.merged, selection.used) == (1, 2)


def test_a_misspelt_rating_is_named():
  segments = [_segment('a', 0.5), _segment('b', system='Human')]
  with pytest.raises(ValueError, match="no segment has a rating 'Z'.*: z"):
    judgments.groups(segments, 'Z')


@given(
  st.lists(st.integers(-4, 4).map(lambda n: n / 2), max_size=8),
  st.sampled_from([0.0, 0.5, 1.0]),
)
def test_pairs_are_all_with_a_gap(ratings, min_gap):
  expected = [
    [i, j]
    for i, better in enumerate(ratings)
    for j, worse in enumerate(ratings)
    if better - worse > min_gap
  ]
  made = judgments.pairs(ratings, min_gap)
  assert made.tolist() == expected
  assert made.dtype == np.int32


def test_a_negative_gap_is_refused():
  with pytest.raises(ValueError, match='min_gap is -1'):
    judgments.pairs([0.0, 1.0], -1)
