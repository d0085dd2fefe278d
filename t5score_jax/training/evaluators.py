"""Evaluation on held-out data during training, configured by gin.

An evaluator has a `name` and a method `evaluate(params)`, which returns floats.
The training loop reports them and can select checkpoints by one of them. With
several processes, all of them call it with arrays sharded over all devices
(`processes.local_copy`); the evaluators here divide the work. Not here:
meta-evaluation with significance tests (`evaluation/`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from t5score_jax.checkpoints import bundle
from t5score_jax.data import humans, records, vocab
from t5score_jax.errors import T5ScoreError
from t5score_jax.evaluation import correlation, darr
from t5score_jax.inference import scoring
from t5score_jax.inputs import datasets, shares
from t5score_jax.metrics import t5score
from t5score_jax.nn import t5
from t5score_jax.runtime import processes
from t5score_jax.training import state as states

PyTree = Any


class EvaluatorError(T5ScoreError, ValueError):
  """Held-out data that an evaluator cannot use."""


class JudgmentEvaluator:
  """Agreement of T5Score with human ratings of held-out segments.

  Returns 'pearson', the correlation over all rated segments, and 'tau', the
  Kendall-like tau of DARR (T5Score, section 4.2). Tau is computed over pairs of
  outputs for one segment whose ratings differ by at least `min_gap`; without
  such pairs there is no 'tau'. Both are unweighted means over language pairs.
  """

  def __init__(
    self,
    segments: Sequence[records.Segment] | str | os.PathLike[str],
    config: t5.T5Config,
    vocabulary: vocab.Vocabulary,
    rating: str,
    name: str = 'judgments',
    direction: str = 'f',
    max_length: int = 256,
    min_gap: float = darr.MIN_GAP,
    limit: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = 'float32',
    lowercase: bool = False,
    num_partitions: int = 1,
  ):
    """Reads the segments.

    Args:
      segments: Records, or a TSV or JSONL file of them.
      config: The configuration of the network.
      vocabulary: The vocabulary of the network.
      rating: The name of the human rating; segments without it are ignored.
      name: The name of this evaluator in reports.
      direction: 'precision', 'recall', 'f', 'source' or 'ref_src', with the
        first reference.
      max_length: The maximum number of tokens per text, with `</s>`.
      min_gap: The smallest rating difference of a pair for 'tau'.
      limit: The number of segments, evenly spaced; None for all.
      batch_tokens: Tokens per batch on one device; see `scoring.Scorer`.
      dtype: The data type of computation, 'float32' or 'bfloat16'.
      lowercase: Whether to lower-case texts.
      num_partitions: Number of devices of one process that share a replica,
        for models too large for one device.

    Raises:
      EvaluatorError: No segment has the rating and the texts.
    """
    if direction not in t5score.DIRECTIONS:
      raise EvaluatorError(
        f'evaluator {name}: direction {direction!r}: use one of '
        f'{sorted(t5score.DIRECTIONS)}'
      )
    where = f'evaluator {name}'
    if isinstance(segments, str | os.PathLike):
      where += f' ({os.fspath(segments)})'
      segments = records.read_records(segments, ratings=(rating,))
    rated = [s for s in segments if rating in s.ratings]
    if limit is not None and limit < len(rated):
      chosen = np.linspace(0, len(rated) - 1, limit).astype(int)
      rated = [rated[i] for i in chosen]
    if not rated:
      raise EvaluatorError(f'{where}: no segment has the rating {rating!r}')
    self.name = name
    self._directions = t5score.DIRECTIONS[direction]
    self._pairs = [
      (_text(s, a, where, lowercase), _text(s, b, where, lowercase))
      for a, b in self._directions
      for s in rated
    ]
    self._ratings = np.asarray([s.ratings[rating] for s in rated], np.float64)
    pairs = np.asarray([s.language_pair or '' for s in rated])
    self._groups = [np.flatnonzero(pairs == p) for p in sorted(set(pairs))]
    self._ranked = [
      ranked
      for group in self._groups
      if len(ranked := _ranked(rated, self._ratings, group, min_gap))
    ]
    self._config = config
    self._vocabulary = vocabulary
    self._options: dict[str, Any] = {
      'max_length': max_length,
      'batch_tokens': batch_tokens,
      'dtype': dtype,
      'num_partitions': num_partitions,
      'spread': True,
    }
    self._scorer: scoring.Scorer | None = None

  def scores(self, params: PyTree) -> np.ndarray:
    """Scores of the rated segments, float [N], averaged over directions."""
    params = processes.local_copy(params)
    if self._scorer is None:
      model = bundle.Bundle(self._config, params, self._vocabulary)
      self._scorer = scoring.Scorer(model, **self._options)
    self._scorer.use_params(params)
    values = self._scorer.scores(self._pairs)
    return values.reshape(len(self._directions), -1).mean(axis=0)

  def evaluate(self, params: PyTree) -> dict[str, float]:
    """See the class."""
    scores = self.scores(params)
    numbers = {
      'pearson': float(
        np.mean(
          [
            correlation.pearson(self._ratings[g], scores[g])
            for g in self._groups
          ]
        )
      )
    }
    if self._ranked:
      numbers['tau'] = float(
        np.mean(
          [
            correlation.darr_tau(scores[pairs[:, 0]], scores[pairs[:, 1]])
            for pairs in self._ranked
          ]
        )
      )
    return numbers


class EvaluationLoss:
  """The model's loss and metrics on held-out batches, without dropout."""

  def __init__(
    self,
    model: states.Model,
    dataset: datasets.Dataset,
    name: str = 'held_out',
    num_batches: int = 20,
  ):
    """Sets up the evaluator.

    Args:
      model: The model with its loss.
      dataset: The held-out batches; the first ones are used every time.
      name: The name of this evaluator in reports.
      num_batches: The number of batches.
    """
    self.name = name
    self._dataset = dataset
    self._num_batches = num_batches

    def totals(params: PyTree, batch: Mapping[str, jax.Array]) -> states.Totals:
      loss, aux = model.loss_fn(params, batch, None)
      return {'loss': (loss, aux['weight']), **aux.get('metrics', {})}

    self._totals = jax.jit(totals)

  def evaluate(self, params: PyTree) -> dict[str, float]:
    """Returns means over all batches: 'loss' and the model's metrics."""
    sums: dict[str, np.ndarray] = {}
    batches = itertools.islice(self._dataset.batches(0), self._num_batches)
    placed = (beside(params, batch) for batch in batches)
    for totals in [self._totals(params, batch) for batch in placed]:
      for key, pair in jax.device_get(totals).items():
        sums[key] = sums.get(key, 0.0) + np.asarray(pair, np.float64)
    return {
      key: float(total / weight) if weight else 0.0
      for key, (total, weight) in sums.items()
    }


def beside(
  params: PyTree, batch: datasets.Batch
) -> Mapping[str, jax.Array | np.ndarray]:
  """Shards a batch over the devices of the parameters."""
  place = getattr(jax.tree.leaves(params)[0], 'sharding', None)
  if not isinstance(place, NamedSharding):
    return batch
  axis = 'data' if 'data' in place.mesh.axis_names else None
  return shares.spread(batch, NamedSharding(place.mesh, PartitionSpec(axis)))


def _text(
  segment: records.Segment, field: str, where: str, lowercase: bool
) -> str:
  if field == 'reference':
    text = segment.references[0] if segment.references else None
  else:
    text = getattr(segment, field)
  if text is None:
    raise EvaluatorError(
      f'{where}: segment {segment.segment!r} of system {segment.system!r} has '
      f'no {field}, which the direction needs'
    )
  return text.lower() if lowercase else text


def _ranked(
  segments: Sequence[records.Segment],
  ratings: np.ndarray,
  group: np.ndarray,
  min_gap: float,
) -> np.ndarray:
  """Indices of better and worse outputs of one segment, int [P, 2]."""
  rows: dict[tuple[str | None, str | None], int] = {}
  systems: dict[str, int] = {}
  places = []
  for index in group:
    segment = segments[index]
    if segment.segment is None or segment.system is None:
      continue
    if humans.is_human(segment.system):
      continue
    row = rows.setdefault((segment.document, segment.segment), len(rows))
    system = systems.setdefault(segment.system, len(systems))
    places.append((system, row, index))
  if not places:
    return np.zeros((0, 2), np.int64)
  # [S, N]: the ratings, NaN where absent, and their indices.
  grid = np.full((len(systems), len(rows)), np.nan)
  where = np.zeros(grid.shape, np.int64)
  for system, row, index in places:
    grid[system, row] = ratings[index]
    where[system, row] = index
  pairs = darr.pairs_from_ratings(grid, min_gap)
  return np.stack(
    [
      where[pairs.better, pairs.segments],
      where[pairs.worse, pairs.segments],
    ],
    axis=1,
  )
