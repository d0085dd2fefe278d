"""The metric that tasks of judgments carry, through SeqIO's own evaluator."""

import numpy as np
import pytest

seqio = pytest.importorskip('seqio')

from t5score_jax.inputs import feature_converters  # noqa: E402
from t5score_jax.tasks import agreement, made_up  # noqa: E402


def test_counts_pairs_of_unlike_ratings():
  ratings = [np.array([1.0, 0.0]), np.array([0.5, 2.0, 2.0]), np.array([1.0])]
  # Right; right and a tie, in a row longer than the group; nothing to rank.
  scores = [np.array([-1, -2]), np.array([-3, -2, -3, 0]), np.array([-9])]
  found = agreement.count(ratings, scores)
  assert found == {
    'pair_accuracy': pytest.approx(2 / 3),
    'tau': pytest.approx(1 / 3),
    'pairs': 3.0,
  }


def test_without_pairs_there_is_no_accuracy():
  found = agreement.count([np.array([1.0, 1.0])], [np.array([-1.0, -2.0])])
  assert found['pairs'] == 0
  assert np.isnan(found['pair_accuracy']) and np.isnan(found['tau'])


@pytest.mark.parametrize(
  ('scores', 'message'),
  [
    (np.zeros((2, 2)), 'examples'),
    (np.zeros((1, 2)), '3 ratings'),
    (np.zeros(1), 'one score a hypothesis'),
  ],
)
def test_refuses_scores_of_another_shape(scores, message):
  with pytest.raises(ValueError, match=message):
    agreement.count([np.array([1.0, 2.0, 3.0])], scores)


_KINDS = {
  'made_up_pairs': (feature_converters.PairFeatureConverter, None, 12),
  'made_up_groups': (
    feature_converters.GroupFeatureConverter,
    {'ratings': 4},
    6,
  ),
}


@pytest.mark.parametrize(
  'task',
  ['made_up_groups', pytest.param('made_up_pairs', marks=pytest.mark.slow)],
)
def test_seqio_evaluates_scores(task):
  converter, lengths, pairs = _KINDS[task]
  evaluator = seqio.Evaluator(
    mixture_or_task_name=task,
    feature_converter=converter(),
    eval_split='validation',
    sequence_length={'inputs': 48, 'targets': 48, **(lengths or {})},
  )

  for sign in (1.0, -1.0):

    def score(dataset, sign=sign):
      return [
        (int(index), (sign * batch['ratings']).tolist())
        for index, batch in dataset.as_numpy_iterator()
      ]

    metrics, _ = evaluator.evaluate(compute_metrics=True, score_fn=score)
    found = metrics.result()[task]
    assert found['pairs'] == pairs * len(made_up.meanings('validation'))
    assert found['pair_accuracy'] == (1.0 if sign > 0 else 0.0)
    assert found['tau'] == sign
