import pytest

from t5score_jax.crosslingual import filters


def test_sentences_are_dropped_by_reason():
  texts = [
    'Das Haus steht am Ende der Straße.',
    'Ja.',
    'The house stands at the end of the street.',
    'Das Haus steht am Ende der Straße.',
    ' '.join(['Wort'] * 31),
    'Der Hund schläft heute im Garten.',
  ]
  pytest.importorskip('py3langid')
  found = filters.sentences(texts, 'de')
  assert found.lines == [0, 5]
  assert found.dropped == {
    'too short': 1,
    'other language': 1,
    'duplicate': 1,
    'too long': 1,
  }
  assert filters.sentences(texts).lines == [0, 2, 5]


def test_characters_count_where_there_are_no_spaces():
  text = '我们今天 去公园。'
  assert filters.length(text, 'zh') == 8
  assert filters.length(text) == 2


def test_a_language_that_cannot_be_identified():
  pytest.importorskip('py3langid')
  with pytest.raises(ValueError, match="'xx'"):
    filters.sentences(['ein kurzer Satz'], 'xx')


def test_overlap_is_the_edit_distance():
  pytest.importorskip('rapidfuzz')
  assert filters.overlap('kitten', 'sitting') == pytest.approx(1 - 3 / 7)
  sources = ['Angela Merkel', 'the cat sat', 'abcd']
  targets = ['Angela Merkel', 'die Katze sass', 'abxy']
  # A similarity of exactly one half stays.
  assert filters.pairs(sources, targets) == [1, 2]
  assert filters.pairs(sources, targets, 1) == [0, 1, 2]
