"""Permutation tests between metrics for tau, accuracies and others.

Each test swaps two metrics' standardised scores as in `permutation`. The tau
over ranked pairs and pairwise accuracy are sums, so one matrix product computes
all swaps of all pairs of metrics. Soft pairwise accuracy takes one product per
swap for all metrics. Any other function is called twice per swap and pair of
metrics.
"""

from __future__ import annotations

import concurrent.futures
import os
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation, soft_accuracy
from t5score_jax.evaluation.darr import RankedPairs
from t5score_jax.evaluation.permutation import (
  BLOCK,
  PairCounts,
  PermutationResult,
  Swaps,
  standard_scores,
)

# Signs are drawn in chunks of about this many numbers, to bound the memory.
_CHUNK_NUMBERS = 1 << 23
# NumPy releases the global interpreter lock on arrays of this size.
_THREADS = min(os.cpu_count() or 1, 8)


def permute_correct_pairs(
  correct: dict[str, np.ndarray],
  weights: np.ndarray,
  *,
  resamples: int = 1000,
  seed: int = 12345,
) -> PermutationResult:
  """Swaps two metrics' results on pairs of translations (WMT24's 'pairs').

  For tie-calibrated accuracy: each metric keeps its threshold, which is not
  refitted for every swap. The statistic is the weighted share of pairs that a
  metric orders correctly.

  Args:
    correct: Which pairs each metric orders correctly, bool [P] by metric; see
      `tie_calibration.correct_pairs`.
    weights: The weight of each pair, [P], above 0.
    resamples: How many swaps.
    seed: Of the swaps.

  Raises:
    InputError: One metric only, no pair, weights that are not above 0, no
      resample.
  """
  if len(correct) < 2:
    raise InputError('a permutation test needs two metrics')
  if resamples < 1:
    raise InputError(f'the number of resamples must be 1 or more: {resamples}')
  right = np.stack(list(correct.values())).astype(np.float32)
  if not right.shape[1] or not np.all(weights > 0):
    raise InputError('there must be pairs, and their weights above 0')
  # In units of the largest weight: where all count the same, the sums are
  # whole numbers, which float32 holds exactly.
  unit = float(np.max(weights))
  shares = (weights / unit).astype(np.float32)
  columns = np.ascontiguousarray((right * shares).T)
  total = float(np.sum(weights))
  values = (right @ weights.astype(np.float64)) / total
  slack = min(1e-6 * total / unit, 0.25) * unit / total
  counts = PairCounts(values, slack=slack)
  everything = np.arange(len(counts.first))
  for signs in random_signs(len(weights), resamples, seed):
    sums = (signs @ columns) * (unit / total)
    counts.add(everything, sums[:, counts.first] - sums[:, counts.second])
  return counts.result(tuple(correct), seed)


def random_signs(width: int, rows: int, seed: int) -> Iterator[np.ndarray]:
  """Yields float32 [r, width] of -1 and 1, each drawn from a single bit."""
  generator = np.random.default_rng(seed)
  step = max(1, _CHUNK_NUMBERS // width)
  for start in range(0, rows, step):
    count = min(step, rows - start)
    packed = np.frombuffer(
      generator.bytes(count * ((width + 7) // 8)), np.uint8
    )
    bits = np.unpackbits(packed.reshape(count, -1), axis=1, count=width)
    signs = bits.astype(np.float32)
    signs *= 2
    signs -= 1
    yield signs


def permute_darr(
  pairs: RankedPairs,
  metrics: dict[str, np.ndarray],
  *,
  ties: str = 'discordant',
  unit: str = 'both',
  resamples: int = 1000,
  seed: int = 12345,
) -> PermutationResult:
  """Tests `correlation.darr_tau`.

  With s and t the signs (1 kept, -1 swapped) of a pair's better and worse
  translation, the difference that the pair makes is
  s (A + C) / 2 + t (A - C) / 2, where A compares the two metrics' own
  results and C those of mixed scores: again a sum over entries.

  Args:
    pairs: P ranked pairs.
    metrics: Scores [S, N] by metric, finite wherever a pair needs them.
    ties: 'discordant' or 'neutral' (under 'excluded' the number of pairs
      changes with the swap: use `permute_any`).
    unit: What is swapped together, a name in `permutation.UNITS`.
    resamples: How many swaps.
    seed: Of the swaps.

  Raises:
    InputError: No pair, missing scores, one metric, another rule.
  """
  if ties not in ('discordant', 'neutral'):
    raise InputError(f"ties must be 'discordant' or 'neutral', not {ties!r}")
  if not len(pairs):
    raise InputError('there are no ranked pairs to test')
  shape = next(iter(metrics.values())).shape
  needed = pairs.entries(shape)
  scores = standard_scores(
    {n: np.where(needed, m, np.nan) for n, m in metrics.items()}, needed
  )
  better = scores[:, pairs.better, pairs.segments]
  worse = scores[:, pairs.worse, pairs.segments]
  tie = correlation.TIE_RULES[ties][0]

  def result(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(one == other, tie, np.sign(one - other))

  own = result(better, worse)
  all_swaps = Swaps(shape, unit, resamples, seed)
  counts = PairCounts(own.mean(axis=1), exact=all_swaps.exact)
  # [pairs of metrics, S * N]
  coefficients = np.empty((len(counts.first), needed.size))
  at = np.ravel_multi_index(
    (np.stack([pairs.better, pairs.worse]), np.stack([pairs.segments] * 2)),
    shape,
  )
  for row, (i, j) in enumerate(zip(counts.first, counts.second, strict=True)):
    a = own[i] - own[j]
    c = result(better[i], worse[j]) - result(better[j], worse[i])
    coefficients[row] = np.bincount(
      at.ravel(), np.concatenate([a + c, a - c]) / 2, needed.size
    )
  columns = np.ascontiguousarray(coefficients.T)
  everything = np.arange(len(counts.first))
  for bits in all_swaps:
    signs = bits.reshape(len(bits), -1) * 2 - 1
    counts.add(everything, (signs @ columns) / len(pairs))
  return counts.result(tuple(metrics), seed)


def permute_any(
  needed: np.ndarray,
  metrics: dict[str, np.ndarray],
  function: Callable[[np.ndarray], float],
  *,
  unit: str = 'both',
  resamples: int = 1000,
  seed: int = 12345,
  early_stop: bool = True,
) -> PermutationResult:
  """Tests any statistic of one metric's scores, slowly.

  Args:
    needed: Entries that the statistic looks at, bool [S, N].
    metrics: Scores [S, N] by metric, finite wherever `needed`.
    function: Standardised scores [S, N] (0 where not needed) -> the statistic.
    unit: What is swapped together, a name in `permutation.UNITS`.
    resamples: How many swaps at most.
    seed: Of the swaps.
    early_stop: Whether to stop where a pair is decided, see
      `permutation.PairCounts`.

  Raises:
    InputError: Missing scores, one metric only.
  """
  scores = standard_scores(
    {n: np.where(needed, m, np.nan) for n, m in metrics.items()}, needed
  )
  all_swaps = Swaps(needed.shape, unit, resamples, seed)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', correlation.ConstantInputWarning)
    values = np.array([function(one) for one in scores])
    counts = PairCounts(values, early_stop, exact=all_swaps.exact)
    for done, bits in enumerate(_one_by_one(all_swaps)):
      for pair in np.flatnonzero(counts.going):
        a, b = scores[counts.first[pair]], scores[counts.second[pair]]
        difference = function(np.where(bits, a, b)) - function(
          np.where(bits, b, a)
        )
        counts.add(np.array([pair]), np.array([[difference]]))
      if (done + 1) % BLOCK == 0:
        counts.end_block()
      if not counts.going.any():
        break
  return counts.result(tuple(metrics), seed)


def _one_by_one(all_swaps: Swaps) -> Iterator[np.ndarray]:
  for bits in all_swaps:
    yield from bits.astype(bool)


def permute_soft_accuracy(
  human: np.ndarray,
  metrics: dict[str, np.ndarray],
  *,
  unit: str = 'both',
  resamples: int = 1000,
  seed: int = 12345,
  permutations: int = soft_accuracy.PERMUTATIONS,
  early_stop: bool = True,
) -> PermutationResult:
  """Tests soft pairwise accuracy of systems.

  Every swap needs new p-values of the metrics; the human p-values stay. They
  depend on sums that are linear in the swapped scores, so that a swap costs
  one matrix product for all metrics rather than one per pair.

  Args:
    human: Human scores [S, N], NaN where not rated.
    metrics: Scores [S, N] by metric, finite wherever `human` is rated.
    unit: What is swapped together, a name in `permutation.UNITS`.
    resamples: How many swaps at most.
    seed: Of the swaps, and of the permutations within p-values.
    permutations: Of each p-value.
    early_stop: Whether to stop where a pair is decided, see
      `permutation.PairCounts`.

  Raises:
    InputError: As `soft_accuracy.soft_pairwise_accuracy`, or one metric only.
  """
  human = np.asarray(human, np.float64)
  rated = ~np.isnan(human)
  values = soft_accuracy.soft_accuracies(
    human, metrics, permutations=permutations, seed=seed
  )
  scores = standard_scores(
    {n: np.where(rated, m, np.nan) for n, m in metrics.items()}, rated
  ).astype(np.float32)
  swapped = _SwappedAccuracy(human, scores, permutations, seed)
  counts = PairCounts(np.array(list(values.values())), early_stop)
  # Sampled: single precision may fail to count the data among all swaps.
  drawn = Swaps(human.shape, unit, resamples, seed, sampled=True)
  for done, bits in enumerate(_one_by_one(drawn)):
    pairs = np.flatnonzero(counts.going)
    if not pairs.size:
      break
    differences = swapped.differences(
      bits, counts.first[pairs], counts.second[pairs]
    )
    counts.add(pairs, differences[None])
    if (done + 1) % BLOCK == 0:
      counts.end_block()
  return counts.result(tuple(metrics), seed)


class _SwappedAccuracy:
  # Soft pairwise accuracy of swapped scores. With T the random signs [K, N] of
  # the p-values' permutations and x = b + r (a - b), the null differences
  # T x are T b + T (r a) - T (r b), and these of two systems are subtracted.
  # If systems were rated on different segments, T is applied to the differences
  # of pairs of systems instead.

  def __init__(
    self, human: np.ndarray, scores: np.ndarray, permutations: int, seed: int
  ):
    self._pairs = soft_accuracy.system_pairs(human)
    self._gold = soft_accuracy.p_values(
      self._pairs.contrasts(human), permutations, seed
    ).astype(np.float32)
    self._scores = scores
    self._permutations = permutations
    # Zeros make each row a whole number of 8 bytes, for `row_counts`.
    self._width = permutations + -permutations % 8
    signs = np.concatenate(
      [
        *soft_accuracy.sign_draws(human.shape[1], permutations, seed),
        np.zeros((self._width - permutations, human.shape[1])),
        # The observed difference is one more column, whose signs are all 1.
        np.ones((1, human.shape[1])),
      ]
    )
    self._signs = np.ascontiguousarray(signs.T, np.float32)
    self._base = self._sums(scores)
    size = np.abs(scores).sum(axis=(1, 2)).max() * 2 / len(human)
    self._slack = np.float32(1e-6 * size)
    self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS)

  def _sums(self, scores: np.ndarray) -> np.ndarray:
    # [M, S, N] -> [M, S, K + 1]; or [M, Q, K + 1] where ratings are uneven.
    pairs = self._pairs
    if pairs.even:
      rows = np.where(pairs.common[0], scores, np.float32(0))
    else:
      rows = np.stack([pairs.contrasts(one) for one in scores])
    flat = rows.reshape(-1, rows.shape[-1]).astype(np.float32, copy=False)
    return (flat @ self._signs).reshape(*rows.shape[:2], -1)

  def differences(
    self, bits: np.ndarray, first: np.ndarray, second: np.ndarray
  ) -> np.ndarray:
    """Differences of the two metrics' statistic under one swap, [pairs]."""
    used = np.unique(np.concatenate([first, second]))
    sums = self._sums(self._scores[used] * bits)
    kept = dict(zip(used.tolist(), sums, strict=True))

    def compare(part: list[tuple[int, int]]) -> list[float]:
      shape = (len(self._gold), self._width)
      buffers = np.empty(shape, np.float32), np.empty(shape, bool)
      differences = []
      for i, j in part:
        moved = kept[i] - kept[j]
        differences.append(
          self._accuracy(self._base[j] + moved, *buffers)
          - self._accuracy(self._base[i] - moved, *buffers)
        )
      return differences

    todo = list(zip(first.tolist(), second.tolist(), strict=True))
    size = -(-len(todo) // _THREADS)
    chunks = [todo[k : k + size] for k in range(0, len(todo), size)]
    return np.array(
      [x for part in self._pool.map(compare, chunks) for x in part]
    )

  def _accuracy(
    self, sums: np.ndarray, null: np.ndarray, at_least: np.ndarray
  ) -> float:
    # Of the sums [S or Q, K + 1] of one metric's scores; the buffers are
    # [Q, K].
    drawn, seen = sums[:, :-1], sums[:, -1]
    top, bottom = drawn.max(axis=1), drawn.min(axis=1)
    if self._pairs.even:
      first, second = self._pairs.first, self._pairs.second
      seen = seen[first] - seen[second]
      top, bottom = top[first] - bottom[second], bottom[first] - top[second]
    seen = seen - self._slack
    # Systems far apart are decided by the extremes of their sums: no or every
    # permutation gives at least the observed difference.
    counts = np.where(seen <= bottom, self._permutations, 0)
    rest = np.flatnonzero((seen > bottom) & (seen <= top))
    null, at_least = null[: len(rest)], at_least[: len(rest)]
    if self._pairs.even:
      np.subtract(drawn[first[rest]], drawn[second[rest]], out=null)
    else:
      np.take(drawn, rest, axis=0, out=null, mode='clip')
    np.greater_equal(null, seen[rest, None], out=at_least)
    at_least[:, self._permutations :] = False
    counts[rest] = row_counts(at_least)
    p_values = counts / self._permutations
    return 1.0 - float(np.abs(self._gold - p_values).mean())


def row_counts(flags: np.ndarray) -> np.ndarray:
  """Counts the true values of each row, [Q, K] -> [Q]; 8 divides K.

  Adds eight bytes at a time as one number; 255 additions fit without a carry.
  """
  words = flags.view(np.uint64)
  total = np.zeros(len(flags), np.int64)
  for start in range(0, words.shape[1], 255):
    lanes = words[:, start : start + 255].sum(axis=1)
    total += lanes[:, None].view(np.uint8).sum(axis=1, dtype=np.int64)
  return total
