"""Chooses among candidates by expected utility, or by a metric alone.

Minimum Bayes risk decoding (Kumar and Byrne 2004; Eikema and Aziz 2020) chooses
the candidate h that maximises the mean of u(h, r) over pseudo-references r.
These are samples from a model, by default the candidates. Methods:

    mbr        the mean over all pseudo-references
    pruned     likewise, without candidates unlikely to win (`mbr/pruning`)
    aggregate  the utility against the mean of the pseudo-references, as arrays
               (DeNero et al. 2009; Vamvas and Sennrich 2024)
    rerank     the score of a metric that reads no references

Equal texts are scored once. Not here: utilities (`metrics/_utilities.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.mbr import pruning
from t5score_jax.mbr.candidates import Item
from t5score_jax.metrics import _utilities as utilities
from t5score_jax.metrics import base

METHODS = ('mbr', 'pruned', 'aggregate', 'rerank')


@dataclasses.dataclass(frozen=True)
class Options:
  """How candidates are chosen.

  Attributes:
    method: A name in `METHODS`.
    top: Number of candidates to return; fewer if there are fewer distinct ones.
    weights: What an item's numbers are; a name in `candidates.WEIGHTS`.
    exclude_self: Whether a candidate is excluded from its own
      pseudo-references, as in comet-mbr; an equal text that was sampled again
      still counts.
    pruning: The settings of method 'pruned'.
  """

  method: str = 'mbr'
  top: int = 1
  weights: str = 'uniform'
  exclude_self: bool = False
  pruning: pruning.Settings = dataclasses.field(
    default_factory=pruning.Settings
  )

  def __post_init__(self) -> None:
    base.check_choice('method', self.method, METHODS)
    if self.exclude_self and self.method != 'mbr':
      raise OptionError(f'exclude_self is for method mbr, not {self.method}')
    if self.weights != 'uniform' and self.method in ('pruned', 'rerank'):
      raise OptionError(f'weights are not for method {self.method}')


@dataclasses.dataclass(frozen=True)
class Choice:
  """A chosen candidate.

  Attributes:
    text: The candidate.
    score: Its expected utility or score.
    index: Its first position among the candidates, from 0.
  """

  text: str
  score: float
  index: int


@dataclasses.dataclass(frozen=True)
class _Problem:
  """An item with distinct texts.

  Attributes:
    group: The distinct candidates and pseudo-references.
    first: The first position of each candidate, int [A].
    samples: The index of each pseudo-reference in `group.references`, int [N].
    weights: The weight of each pseudo-reference, [N], summing to 1.
  """

  group: utilities.Group
  first: np.ndarray
  samples: np.ndarray
  weights: np.ndarray

  def summed(self) -> np.ndarray:
    """The weights of the distinct pseudo-references, [B]."""
    count = len(self.group.references)
    return np.bincount(self.samples, self.weights, count)


def check(metric: base.Metric, options: Options) -> None:
  """Checks that a metric suits a method.

  Raises:
    OptionError: It reads references but must not, or must but does not.
  """
  if options.method == 'rerank' and metric.reads_references:
    raise OptionError(
      f'method rerank needs a metric that reads no references; {metric.name} '
      'reads them'
    )
  if options.method != 'rerank' and not metric.reads_references:
    raise OptionError(
      f'{metric.name} reads no references here: choose with --method rerank'
    )


def decode(
  metric: base.Metric, items: Sequence[Item], options: Options
) -> tuple[list[list[Choice]], int]:
  """Chooses candidates for every item.

  Args:
    metric: The utility.
    items: The items.
    options: The method and its settings.

  Returns:
    For each item its best candidates, the best first, earlier ones first if
    scores are equal; and the number of truncated texts.

  Raises:
    InputError: An item lacks a text that the metric needs.
    OptionError: The metric and the method do not fit.
  """
  check(metric, options)
  problems = [_problem(item, options) for item in items]
  if options.method == 'rerank':
    expected, cut = _rerank(metric, problems)
    return _ranked(problems, expected, options.top), cut
  pairs = metric.utilities([problem.group for problem in problems])
  every = [np.arange(len(p.group.candidates)) for p in problems]
  if options.method == 'aggregate':
    expected = pairs.aggregated(every, [p.summed() for p in problems])
  elif options.method == 'pruned':
    expected = pruning.expected(
      pairs, [p.samples for p in problems], options.top, options.pruning
    )
  else:
    matrices = pairs.matrices(
      every, [np.arange(len(p.group.references)) for p in problems]
    )
    expected = [
      _expected(problem, matrix, options.exclude_self)
      for problem, matrix in zip(problems, matrices, strict=True)
    ]
  return _ranked(problems, expected, options.top), pairs.cut


def _problem(item: Item, options: Options) -> _Problem:
  candidates = {text: n for n, text in reversed([*enumerate(item.candidates)])}
  texts = sorted(candidates, key=lambda text: candidates[text])
  pseudo = item.references or item.candidates
  if options.exclude_self and item.references:
    raise OptionError(
      'exclude_self is for candidates that are the pseudo-references'
    )
  distinct = {text: n for n, text in enumerate(dict.fromkeys(pseudo))}
  weights = np.full(len(pseudo), 1.0)
  if item.numbers:
    weights = np.asarray(item.numbers, np.float64)
    if options.weights == 'log_probs':
      weights = np.exp(weights - weights.max())
  return _Problem(
    utilities.Group(
      tuple(texts), tuple(distinct), item.source, item.shown.get('segment')
    ),
    np.array([candidates[text] for text in texts]),
    np.array([distinct[text] for text in pseudo]),
    weights / weights.sum(),
  )


def _expected(
  problem: _Problem, matrix: np.ndarray, exclude_self: bool
) -> np.ndarray:
  """The expected utility of each candidate, [A]."""
  expected = matrix @ problem.summed()
  if not exclude_self:
    return np.asarray(expected)
  # Candidates and pseudo-references are the same distinct texts, in order.
  own = problem.weights[problem.first]
  rest = 1.0 - own
  alone = rest <= 0
  left = (expected - own * np.diagonal(matrix)) / np.where(alone, 1.0, rest)
  return np.where(alone, np.diagonal(matrix), left)


def _rerank(
  metric: base.Metric, problems: Sequence[_Problem]
) -> tuple[list[np.ndarray], int]:
  segments = [
    Segment(text, source=p.group.source, segment=p.group.name)
    for p in problems
    for text in p.group.candidates
  ]
  scores = metric.score_segments(segments)
  ends = np.cumsum([len(p.group.candidates) for p in problems])
  values = np.asarray(scores.values, np.float64)
  return np.split(values, ends[:-1]), scores.truncated


def _ranked(
  problems: Sequence[_Problem], expected: Sequence[np.ndarray], top: int
) -> list[list[Choice]]:
  """The best candidates; pruned ones have the score -inf."""
  ranked = []
  for problem, values in zip(problems, expected, strict=True):
    order = np.argsort(-values, kind='stable')[:top]
    ranked.append(
      [
        Choice(
          problem.group.candidates[n], float(values[n]), int(problem.first[n])
        )
        for n in order
        if np.isfinite(values[n])
      ]
    )
  return ranked
