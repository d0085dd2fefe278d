"""Meta-evaluation beside loops over scipy, as mt-metrics-eval does it.

Of 20 metrics, 15 systems and 2,000 segments: Kendall's tau of the systems of
each segment, averaged, and 1,000 bootstrap resamples of Pearson's r. The loop
makes a part of the resamples, and that part's time is multiplied;
`benchmarks/evaluation.py` measures more, mt-metrics-eval itself too.
"""

import time

import numpy as np

TITLE = 'Meta-evaluation, 20 metrics'
UNIT = 'resamples'
OURS = {'here': 'ours', 'scipy, looped': 'loop'}
PEERS = {}
TOLERANCE = 1e-6
MEASURE = 'seconds'


def prepare(folder, size):
  """How many segments, resamples, and resamples of the loop."""
  segments, part = (150, 2) if size['quick'] else (2000, 4)
  return {'items': 1000, 'segments': segments, 'part': part, **size}


def _scores(job):
  import evaluation

  human, metrics = evaluation.wmt24_scores(np.random.default_rng(2))
  kept = job['segments']
  return human[:, :kept], {k: v[:, :kept] for k, v in metrics.items()}


def ours(job):
  """The library."""
  from t5score_jax.evaluation import bootstrap, correlation

  human, metrics = _scores(job)

  def run():
    taus = [
      correlation.grouped(human, scores, 'kendall', 'item').value
      for scores in metrics.values()
    ]
    drawn = bootstrap.bootstrap_pearson(human, metrics, resamples=job['items'])
    return {'scores': [*taus, *np.ravel(drawn.values)]}

  return run


def loop(job):
  """Scipy's functions, segment by segment and resample by resample."""
  import scipy.stats

  human, metrics = _scores(job)

  def run():
    clocks = time.perf_counter, time.process_time
    start = [clock() for clock in clocks]
    taus = []
    for scores in metrics.values():
      each = [
        scipy.stats.kendalltau(h, s).statistic
        for h, s in zip(human.T, scores.T, strict=True)
        if np.ptp(h) and np.ptp(s)
      ]
      taus.append(float(np.mean(each)))
    whole = [
      scipy.stats.pearsonr(human.ravel(), scores.ravel()).statistic
      for scores in metrics.values()
    ]
    middle = [clock() for clock in clocks]
    draw = np.random.default_rng(0)
    for _ in range(job['part']):
      drawn = draw.integers(0, human.shape[1], human.shape[1])
      for scores in metrics.values():
        scipy.stats.pearsonr(human[:, drawn].ravel(), scores[:, drawn].ravel())
    times = [
      middle[n] - start[n] + (clock() - middle[n]) * job['items'] / job['part']
      for n, clock in enumerate(clocks)
    ]
    return {
      'scores': taus + whole,
      'seconds': times[0],
      'cpu': times[1],
      'timed part': f'{job["part"]} of {job["items"]} resamples',
    }

  return run
