"""T5Score's default model on as many pairs as WMT20 zh-en has, 36,000.

Eighteen systems of 2,000 segments, both directions. A twentieth of made-up
texts is scored and its time multiplied, which is too much: few pairs are worth
few programs, and a third of the decoded tokens is padding (of all pairs, a
ninth). With `--data` all pairs are scored.
"""

import time

import texts

from comparisons import t5_scoring

TITLE = 'T5Score, t5score-tiny, 36,000 pairs'
UNIT = 'pairs'
OURS = {'here': 'ours'}
PEERS = {}
TOLERANCE = 0.0
MEASURE = 'seconds'
WITHIN = {'here': 100}
SHORT = (
  'the products of real texts alone are 17 TFLOP (10.6 of made-up ones, which '
  'have fewer pieces), which take 100 s at 170 GFLOP/s; next: int8 products, '
  'and frugalscore-tiny where a fast metric is wanted'
)
ROUNDS = 1
_SYSTEMS, _SEGMENTS, _PART = 18, 2000, 20


def prepare(folder, size):
  """Hypotheses and references."""
  from t5score_jax.checkpoints import loading

  part = 1 if size['data'] else _PART
  part *= 10 if size['quick'] else 1
  model = loading.load_model('t5score-tiny')
  found = texts.wmt(_SEGMENTS // part, _SYSTEMS, size['data'], people=True)
  hypotheses, references = found.pairs()
  return {
    'items': _SYSTEMS * _SEGMENTS,
    'texts': found.origin,
    'hypotheses': hypotheses,
    'references': references,
    'part': part,
    'flops': part
    * t5_scoring.flops(model.config, model.vocabulary, hypotheses, references),
    **size,
  }


def ours(job):
  """The metric."""
  from t5score_jax.metrics import registry

  metric = registry.load_metric('t5score', model='t5score-tiny')
  clocks = time.perf_counter, time.process_time

  def run():
    start = [clock() for clock in clocks]
    metric.score(job['hypotheses'], job['references'])
    times = [clock() - then for clock, then in zip(clocks, start, strict=True)]
    result = {'seconds': times[0] * job['part'], 'cpu': times[1] * job['part']}
    if job['part'] > 1:
      count = len(job['hypotheses'])
      result['timed part'] = f'{count:,} of {job["items"]:,} pairs'
    return result

  return run
