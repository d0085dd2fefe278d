"""Errors in hypotheses: files, and tags of tokens."""

import json

import pytest

from t5score_jax.data import error_spans, files

LABELS = ('minor', 'major')


def test_errors_become_tags_of_the_tokens_that_they_touch():
  offsets = [(0, 0), (0, 3), (4, 6), (6, 9), (10, 11), (0, 0)]

  def tags(*errors):
    return error_spans.tags(offsets, errors, LABELS)

  assert tags() == [0] * 6
  assert tags((5, 7, 'major')) == [0, 0, 2, 2, 0, 0]
  # Nothing lies between the first and the second word, and in an empty span.
  assert tags((3, 4, 'minor'), (8, 8, 'minor')) == [0, 0, 0, 0, 0, 0]
  assert tags((0, 11, 'minor'), (10, 11, 'major')) == [0, 1, 1, 1, 2, 0]


def test_files_of_errors(tmp_path):
  path = tmp_path / 'errors.jsonl'

  def write(*rows):
    path.write_text('\n'.join(map(json.dumps, rows)))

  one = {'start': 0, 'end': 3, 'severity': 'major', 'confidence': 0.5}
  two = {'start': 4, 'end': 5, 'severity': 'minor'}
  write(
    {'hypothesis': 'the cat', 'errors': [one], 'system': 'A'},
    {'hypothesis': 'a dog', 'errors': []},
    {'hypothesis': 'the cat', 'errors': [two]},
  )
  assert error_spans.read(path, LABELS) == {
    'the cat': [(0, 3, 'major'), (4, 5, 'minor')],
    'a dog': [],
  }
  for row, words in (
    ({'hypothesis': 'a', 'errors': [one]}, '0 to 3 is not in a text of 1'),
    ({'hypothesis': 'the', 'errors': [{**one, 'severity': 'bad'}]}, "'bad'"),
    ({'hypothesis': 'the'}, "a list 'errors'"),
    ([], 'line 1'),
  ):
    write(row)
    with pytest.raises(files.RecordError, match=words):
      error_spans.read(path, LABELS)
