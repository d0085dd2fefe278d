"""Confidence-based pruning of candidates (Cheng and Vlachos 2023).

Algorithm 1 of "Faster Minimum Bayes Risk Decoding with Confidence-based
Pruning". After the first r pseudo-references, the expected utilities of the
remaining candidates are bootstrapped. Candidates that are at least as good as
the current best in hardly any resample are dropped, and r is doubled, until all
pseudo-references are used or one candidate remains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from t5score_jax.errors import OptionError
from t5score_jax.evaluation import bootstrap
from t5score_jax.metrics import _utilities as utilities


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings of the pruning.

  Attributes:
    confidence: A candidate is dropped if it ties or beats the best in at most
      1 - confidence of the resamples; the paper's alpha.
    first: Pseudo-references in the first round; each round doubles them.
    resamples: Bootstrap draws per round.
    seed: Random seed; each segment has its own draws, so its result does not
      depend on the others.
  """

  confidence: float = 0.99
  first: int = 8
  resamples: int = 500
  seed: int = 0

  def __post_init__(self) -> None:
    if not 0 <= self.confidence < 1:
      raise OptionError(
        f'confidence {self.confidence}: at least 0, and less than 1'
      )
    if self.first < 1 or self.resamples < 1:
      raise OptionError('pruning needs at least 1 sample and 1 resample')


@dataclasses.dataclass
class _State:
  """The state of one segment.

  Attributes:
    samples: The column of each pseudo-reference, in order, int [N].
    left: The remaining candidates, int [a].
    values: Utilities, [A, B]; NaN where unknown.
    used: Number of pseudo-references used so far.
  """

  samples: np.ndarray
  left: np.ndarray
  values: np.ndarray
  used: int = 0

  @property
  def utilities(self) -> np.ndarray:
    """Utilities of the remaining candidates and used samples, [a, used]."""
    return self.values[np.ix_(self.left, self.samples[: self.used])]


def expected(
  pairs: utilities.Utilities,
  samples: Sequence[np.ndarray],
  top: int,
  settings: Settings,
) -> list[np.ndarray]:
  """Expected utilities of the candidates that are never dropped.

  Args:
    pairs: Utilities of the groups.
    samples: For each group the column of each pseudo-reference, in sampling
      order, int [N].
    top: Number of candidates that are always kept.
    settings: The settings.

  Returns:
    For each group [A]: the mean over the pseudo-references used; -inf if the
    candidate was dropped.
  """
  states = [
    _State(
      columns,
      np.arange(len(group.candidates)),
      np.full((len(group.candidates), len(group.references)), np.nan),
    )
    for group, columns in zip(pairs.groups, samples, strict=True)
  ]
  active = states
  while active:
    for state in active:
      count = max(2 * state.used, settings.first)
      state.used = min(count, len(state.samples))
    _extend(pairs, states, active)
    active = [state for state in active if state.used < len(state.samples)]
    for state in active:
      state.left = state.left[_kept(state, top, settings)]
    active = [state for state in active if len(state.left) > top]
  return [_means(state) for state in states]


def _extend(
  pairs: utilities.Utilities, states: Sequence[_State], active: Sequence[_State]
) -> None:
  """Computes what is unknown for candidates that are left."""
  nothing = np.zeros(0, np.int64)
  rows, columns = [], []
  running = {id(state) for state in active}
  for state in states:
    unknown = nothing
    if id(state) in running:
      seen = np.unique(state.samples[: state.used])
      # A column is known for all candidates that are left, or for none.
      unknown = seen[np.isnan(state.values[state.left[0], seen])]
    rows.append(state.left if len(unknown) else nothing)
    columns.append(unknown)
  matrices = pairs.matrices(rows, columns)
  for state, row, column, matrix in zip(
    states, rows, columns, matrices, strict=True
  ):
    state.values[np.ix_(row, column)] = matrix


def _kept(state: _State, top: int, settings: Settings) -> np.ndarray:
  """Which remaining candidates stay, bool [a]."""
  matrix = state.utilities
  means = matrix.mean(axis=1)
  wins = np.zeros(len(means))
  best = int(np.argmax(means))
  for counts in bootstrap.segment_draws(
    state.used, settings.resamples, settings.seed + state.used, least=1
  ):
    # [b, used] x [used, a]
    sums = counts @ matrix.T
    wins += np.count_nonzero(sums >= sums[:, best, None], axis=0)
  kept = wins / settings.resamples > 1 - settings.confidence
  kept[np.argsort(-means, kind='stable')[:top]] = True
  return kept


def _means(state: _State) -> np.ndarray:
  means = np.full(len(state.values), -np.inf)
  means[state.left] = state.utilities.mean(axis=1)
  return means
