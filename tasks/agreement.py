"""Agreement of a model's scores with ratings, for SeqIO's evaluations.

The metric of tasks of judgments. `t5x.eval`, or any program that runs
`seqio.Evaluator` with a model's `score_batch`, reports it. Not for
meta-evaluation: that is `t5score correlate`, with the statistics of the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio


class Agreement(seqio.metrics.CollectingMetric):
  """Counts correctly ranked pairs of different ratings within an example.

  Reads one score per hypothesis: [examples, 2] of pairs, [examples, n] of
  groups, n at least the size of the largest group. Returns

      pair_accuracy   the share of pairs whose better hypothesis scores
                      higher; a tie of scores counts as wrong
      tau             Kendall's tau over the same pairs, 2 pair_accuracy - 1
      pairs           the number of pairs
  """

  model_output_type = seqio.metrics.ModelOutputType.SCORE

  def actual_compute(
    self,
    task_dataset_as_numpy: Iterable[Mapping[str, Any]],
    task_output_features: Mapping[str, seqio.Feature],
    target_field_name: str = 'targets',
    cached_targets: Sequence[np.ndarray] | None = None,
  ) -> tuple[dict[str, float], dict[str, Any]]:
    """SeqIO's method: returns the numbers, ratings and scores.

    Args:
      task_dataset_as_numpy: The task's examples, with `ratings`.
      task_output_features: Not used.
      target_field_name: Not used.
      cached_targets: What an earlier call returned as 'targets'.

    Raises:
      ValueError: There are fewer scores than ratings.
    """
    del task_output_features, target_field_name
    ratings = cached_targets or [
      np.asarray(example['ratings']) for example in task_dataset_as_numpy
    ]
    scores = np.asarray(self.values['model_output'])
    return count(ratings, scores), {'targets': ratings, 'score': scores}


def count(
  ratings: Sequence[np.ndarray], scores: Sequence[np.ndarray] | np.ndarray
) -> dict[str, float]:
  """Counts pairs in the right order; see `Agreement`.

  >>> count([np.array([1.0, 0.0, 0.0])], [np.array([-1.0, -2.0, -1.0])])
  {'pair_accuracy': 0.5, 'tau': 0.0, 'pairs': 2.0}

  Args:
    ratings: [n] for each example; larger is better.
    scores: [at least n] for each example.

  Returns:
    The numbers by name; without any pair, accuracy and tau are NaN.

  Raises:
    ValueError: The numbers of examples differ, or an example has fewer scores
      than ratings.
  """
  if len(ratings) != len(scores):
    raise ValueError(f'{len(ratings)} examples, but {len(scores)} have scores')
  right, pairs = 0, 0
  for rated, scored in zip(ratings, scores, strict=True):
    rated, scored = np.asarray(rated), np.asarray(scored)
    if scored.ndim != 1 or len(scored) < len(rated):
      raise ValueError(
        f'scores of shape {scored.shape} for {len(rated)} ratings; the model '
        'must give one score a hypothesis (PairT5XModel, GroupT5XModel)'
      )
    scored = scored[: len(rated)]
    better = rated[:, None] > rated[None, :]
    pairs += int(better.sum())
    right += int((better & (scored[:, None] > scored[None, :])).sum())
  accuracy = right / pairs if pairs else float('nan')
  return {
    'pair_accuracy': accuracy,
    'tau': 2.0 * accuracy - 1.0,
    'pairs': float(pairs),
  }
