"""Precision of sentence matching: are translations nearest neighbours?

The measure of UScore's Figure 3 (Belouadi and Eger 2023, section 4.1, parallel
sentence matching) on two aligned lists of sentences. Not here: the search
(`crosslingual/neighbours.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from t5score_jax.crosslingual import neighbours
from t5score_jax.errors import InputError


def precision(
  queries: np.ndarray,
  base: np.ndarray,
  texts: Sequence[str],
  n: int = 1,
  backend: str = 'auto',
) -> float:
  """P@n: the share of queries whose translation is among the n nearest.

  Args:
    queries: Unit vectors, float32 [count, width].
    base: Unit vectors of their translations, in the same order.
    texts: The texts of `base`. A text equal to the translation counts as
      correct, since ranks among equal texts are undefined.
    n: Number of neighbours.
    backend: See `neighbours.nearest`.

  Returns:
    The precision, in [0, 1].

  Raises:
    InputError: There are no sentences, or the lists differ in length.
  """
  if not len(queries) or not len(queries) == len(base) == len(texts):
    raise InputError(
      f'matching of {len(queries)} sentences with {len(base)}: give two '
      'aligned lists of at least one'
    )
  _, rows = neighbours.nearest(queries, base, n, backend)
  hits = [
    any(texts[row] == text for row in found)
    for found, text in zip(rows, texts, strict=True)
  ]
  return float(np.mean(hits))
