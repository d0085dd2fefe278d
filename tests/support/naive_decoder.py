"""Greedy and beam search that recompute the whole prefix, one input at a time.

What generation is compared with. Slow and plain on purpose: lists of ids,
float64 sums, no arrays of beams.
"""

from collections.abc import Callable, Sequence

import numpy as np

# log p of each next token [vocab_size], given the output so far.
NextLogProbs = Callable[[Sequence[int]], np.ndarray]
EOS = 1


def greedy(log_probs: NextLogProbs, most: int) -> tuple[list[int], float]:
  """The most probable token at each step; ids and their log-probability."""
  ids, total = [], 0.0
  while len(ids) < most and (not ids or ids[-1] != EOS):
    scores = log_probs(ids)
    ids.append(int(np.argmax(scores)))
    total += float(scores[ids[-1]])
  return ids, total


def beam_search(
  log_probs: NextLogProbs, beams: int, most: int, penalty: float
) -> list[tuple[list[int], float]]:
  """The best outputs and their log-probabilities, best first."""
  going: list[tuple[list[int], float]] = [([], 0.0)]
  done: list[tuple[float, list[int], float]] = []
  for length in range(1, most + 1):
    candidates = [
      ([*ids, token], total + float(score))
      for ids, total in going
      for token, score in enumerate(log_probs(ids))
      if score > -1e8
    ]
    candidates.sort(key=lambda c: -c[1])
    candidates = candidates[: 2 * beams]
    for ids, total in candidates[:beams]:
      if ids[-1] == EOS or length == most:
        done.append((total / length**penalty, ids, total))
    done = sorted(done, key=lambda d: -d[0])[:beams]
    going = [c for c in candidates if c[0][-1] != EOS][:beams]
    if not going:
      break
    if len(done) == beams and going[0][1] / length**penalty <= done[-1][0]:
      break
  return [(ids, total) for _, ids, total in done]
