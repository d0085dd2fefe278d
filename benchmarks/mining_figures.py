"""Figures of mined pairs: their quality, and the costs of larger corpora."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def against_gold(pairs: Any, size: int) -> dict[str, float]:
  """Precision, recall and F1 of all pairs, and at the best threshold.

  Line n of the sources and line n of the targets are a pair.

  Args:
    pairs: What mining found, the best first.
    size: Number of lines.
  """
  hits = np.cumsum(pairs.sources == pairs.targets)
  counts = np.arange(1, len(pairs) + 1)
  f1 = 2 * hits / (counts + size)
  best = int(f1.argmax())
  return {
    'pairs': len(pairs),
    'precision': float(hits[-1] / len(pairs)),
    'recall': float(hits[-1] / size),
    'f1': float(f1[-1]),
    'best f1': float(f1[best]),
    'best threshold': float(pairs.scores[best]),
    'precision of the best 5%': float(
      hits[max(0, size // 20 - 1)] / max(1, size // 20)
    ),
  }


def larger_corpora(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
  """Costs of larger corpora, from the slopes: linear, and n^2 for search."""
  largest = results['margin'][-1]
  n = largest['size']
  encode = sum(
    results[f'encode {side}s']['cpu'] / results['lines']
    for side in ('source', 'target')
  )
  distance = results['distance'][-1]
  for size in (29_000, 100_000, 1_000_000, 4_000_000):
    scale = (size / n) ** 2
    yield {
      'size': size,
      'encode both, CPU hours': encode * size / 3600,
      **{
        f'{backend} in both directions, CPU hours': 2
        * largest['times'][backend]['cpu']
        * scale
        / 3600
        for backend in ('faiss', 'jax', 'approximate')
      },
      'distance without its search, CPU hours': distance['times']['mining'][
        'cpu'
      ]
      / distance['size']
      * size
      / 3600,
    }
