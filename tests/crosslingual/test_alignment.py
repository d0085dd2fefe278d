import numpy as np

from t5score_jax.crosslingual import alignment


def test_both_directions_must_exceed_the_threshold():
  generator = np.random.default_rng(0)
  sources, targets = (
    generator.normal(size=(3, 5)),
    generator.normal(size=(4, 5)),
  )
  products = sources @ targets.T
  rows = np.exp(products) / np.exp(products).sum(1, keepdims=True)
  columns = np.exp(products) / np.exp(products).sum(0, keepdims=True)
  for threshold in (1e-3, 0.2, 0.5):
    expected = [
      (i, j)
      for i in range(3)
      for j in range(4)
      if min(rows[i, j], columns[i, j]) > threshold
    ]
    found = alignment.align(sources, targets, threshold)
    assert [tuple(pair) for pair in found] == expected


def test_equal_words_are_aligned_in_any_order():
  words = 10 * np.eye(4)
  order = [2, 0, 3, 1]
  found = alignment.align(words, words[order])
  assert sorted(map(tuple, found)) == sorted((order[j], j) for j in range(4))


def test_nothing_to_align():
  assert alignment.align(np.zeros((0, 5)), np.ones((2, 5))).shape == (0, 2)


def test_the_layer_is_that_of_the_paper():
  assert alignment.default_layer(12) == 8
  assert alignment.default_layer(1) == 1
