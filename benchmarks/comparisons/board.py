"""A board from its table of scores, beside a script with the usual packages.

Ranking with intervals of 1,000 resamples, ensemble with its leave-one-out
correlation, overrating of every metric. The script writes no pages; it fits one
of its mixed models, and that one's time is multiplied.
"""

import pathlib
import tempfile
import time

import numpy as np

TITLE = 'Board of 12 systems, 12 metrics'
UNIT = 'outputs'
OURS = {'here': 'ours', 'here, with all pages': 'site'}
PEERS = {'scipy, scikit-learn, statsmodels': 'peer'}
TOLERANCE = 1e-3
MEASURE = 'seconds'
_SYSTEMS, _METRICS, _RESAMPLES = 12, 12, 1000


def prepare(folder, size):
  """A table of random scores; the first two systems are human."""
  segments = 60 if size['quick'] else 400
  draw = np.random.default_rng(0)
  quality = draw.normal(size=(_SYSTEMS, 1))
  human = quality + draw.normal(size=(_SYSTEMS, segments))
  noise = np.linspace(0.8, 4, _METRICS)[:, None, None]
  scores = human + noise * draw.normal(size=(_METRICS, *human.shape))
  path = pathlib.Path(folder) / 'scores.tsv'
  with path.open('w', encoding='utf-8') as file:
    names = [f'm{n}' for n in range(_METRICS)]
    print('system', 'seg_id', 'human', *names, sep='\t', file=file)
    for i in range(_SYSTEMS):
      name = f'Human-{i}' if i < 2 else f'system-{i}'
      for n in range(segments):
        print(name, n, human[i, n], *scores[:, i, n], sep='\t', file=file)
  return {'items': human.size, 'table': str(path), **size}


def ours(job, pages=False):
  """`board init` and the analysis that `board rank` prints."""
  from t5score_jax.leaderboard import analysis, layouts
  from t5score_jax.leaderboard.store import Store

  def run():
    with tempfile.TemporaryDirectory() as folder:
      path = f'{folder}/board.db'
      layouts.read_and_import(path, job['table'], 'human')
      with Store(path) as store:
        if pages:
          from t5score_jax.leaderboard.web import page

          page.build(store, f'{folder}/site')
          return {}
        found = analysis.analyse(store)
    metrics = {m['name']: m for m in found['metrics']}
    each = [metrics[f'm{n}'] for n in range(_METRICS)]
    return {
      'scores': [m['correlation'] for m in each]
      + [found['ensemble']['leave_one_out'], each[0]['overrating']['beta']]
    }

  return run


def site(job):
  """`board init` and `board build`."""
  return ours(job, pages=True)


def peer(job):
  """What one writes with pandas, scipy, scikit-learn and statsmodels."""
  import pandas
  import scipy.stats
  from sklearn import linear_model
  from statsmodels.regression import mixed_linear_model

  names = [f'm{n}' for n in range(_METRICS)]

  clocks = time.perf_counter, time.process_time

  def run():
    start = [clock() for clock in clocks]
    table = pandas.read_csv(job['table'], sep='\t')
    human, x = table['human'].to_numpy(), table[names].to_numpy()
    correlations = [scipy.stats.pearsonr(column, human)[0] for column in x.T]
    _intervals(table['seg_id'].to_numpy(), human, x)
    z = (x - x.mean(0)) / x.std(0)
    penalties, _, paths = linear_model.lars_path(z, human, method='lasso')
    three = max(n for n, w in enumerate(paths.T) if np.count_nonzero(w) == 3)
    predicted = np.zeros(len(x))
    for system in table['system'].unique():
      out = (table['system'] == system).to_numpy()
      lasso = linear_model.Lasso(alpha=penalties[three])
      predicted[out] = lasso.fit(z[~out], human[~out]).predict(z[out])
    held_out = scipy.stats.pearsonr(predicted, human)[0]
    machine = ~table['system'].str.startswith('Human').to_numpy()
    design = np.column_stack([np.ones(len(x)), machine, human - human.mean()])
    y = (x[:, 0] - x[:, 0].mean()) / x[:, 0].std(ddof=1)
    middle = [clock() for clock in clocks]
    fit = mixed_linear_model.MixedLM(y, design, table['seg_id']).fit()
    times = [
      middle[n] - start[n] + _METRICS * (clock() - middle[n])
      for n, clock in enumerate(clocks)
    ]
    return {
      'scores': [*correlations, held_out, fit.fe_params[1]],
      'seconds': times[0],
      'cpu': times[1],
      'timed part': f'1 of {_METRICS} mixed models',
    }

  return run


def _intervals(segments, human, x):
  """Correlations of boards whose examples are drawn."""
  draw = np.random.default_rng(0)
  rows = np.argsort(segments, kind='stable').reshape(-1, _SYSTEMS)
  drawn = []
  for _ in range(_RESAMPLES):
    taken = rows[draw.integers(0, len(rows), len(rows))].ravel()
    drawn.append(np.corrcoef(x[taken].T, human[taken])[-1, :-1])
  return np.quantile(drawn, (0.025, 0.975), axis=0)
