"""All analyses of a board, as one JSON value.

Ranks the metrics, fits the ensemble, estimates how much each metric overrates
machines, and ranks the generators by the best metric. The command line prints
the value; `web/page.py` draws it. `renewal.py` stores it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from t5score_jax.leaderboard import data, ensemble, overrating, ranking
from t5score_jax.leaderboard.data import Data
from t5score_jax.leaderboard.entries import GIVEN, Generator, Metric
from t5score_jax.leaderboard.ranking import Rule
from t5score_jax.leaderboard.store import Store

#: The ensemble's name among metrics.
ENSEMBLE = 'ensemble'
#: The costs that entries may have.
COSTS = ('seconds', 'parameters')
#: The role of all human texts, on a board without any role set.
ROLE = 'default'


@dataclasses.dataclass(frozen=True)
class Request:
  """Settings of an analysis; the defaults are the paper's.

  Attributes:
    rule: The ranking rule of metrics.
    reference_set: The references; None for the board's.
    several: How a metric combines several references (M.3).
    human: Name of the ratings; None for the board's default ratings.
    resamples: Number of bootstrap resamples; 0 for no intervals.
  """

  rule: Rule = Rule()
  reference_set: str | None = None
  several: str = 'own'
  human: str | None = None
  resamples: int = ranking.RESAMPLES


@dataclasses.dataclass(frozen=True)
class _Fitted:
  """The ensemble, and what ranking it among the metrics needs."""

  value: ensemble.Ensemble
  fit: ensemble.Fit
  scores: np.ndarray  # [I, K]
  held_out: np.ndarray | None  # [I, K], NaN where not rated
  ablation: dict[str, float | None]


def analyse(
  store: Store, request: Request | None = None, version: int | None = None
) -> dict[str, Any]:
  """Analyses a board.

  Args:
    store: The board.
    request: The settings; None for the paper's defaults.
    version: The version number of the fitted ensemble; None to look up the
      stored version that equals it, or 0 if there is none.

  Returns:
    A JSON value: `board`, `metrics` (ranked), `ensemble` (None if none can be
    fitted; `notes` has the reason), `generators` (ranked), `overrating`
    (role -> metric -> fit), `references` (metric -> number of references ->
    correlation), `notes`.

  Raises:
    BoardError: The request names references or ratings that do not exist.
  """
  request = request or Request()
  board = store.board()
  table = data.load(
    store, request.reference_set, request.several, request.human
  )
  ratings = table.comparable()
  if not request.rule.outliers:
    ratings = ranking.without_outliers(ratings)
  notes: list[str] = []
  fitted = _fit(table, ratings, board.name, version or 0, notes)
  if fitted is not None and version is None:
    fitted = dataclasses.replace(fitted, value=_kept(store, fitted.value))
  metrics = _metrics(table, ratings, fitted, request)
  # Published ensembles have no rank: they never rank the generators.
  best = next((m['name'] for m in metrics if m['rank'] == 1), None)
  overrated = _overrating(store, table, fitted, request, notes)
  first = next(iter(overrated.values()), {})
  for entry in metrics:
    entry['overrating'] = first.get(entry['name'])
  return {
    'board': {
      'name': board.name,
      'task': board.task,
      'human': request.human or board.human,
      'references': table.reference_set,
      'labels': list(store.references()),
      'several': request.several,
      'examples': store.size(),
      'rated': int((~np.isnan(ratings)).sum()),
      'created': board.created,
      'revision': board.revision,
      'rule': dataclasses.asdict(request.rule),
    },
    'best': best,
    'metrics': metrics,
    'ensemble': None if fitted is None else _ensemble_entry(fitted),
    'generators': _generators(table, fitted, best, request),
    'overrating': overrated,
    'references': references_effect(store, table),
    'notes': notes,
  }


def _kept(store: Store, value: ensemble.Ensemble) -> ensemble.Ensemble:
  """The newest stored version that equals the value, or the value itself."""
  for version in reversed(store.versions()):
    there = ensemble.Ensemble.from_json(version.ensemble)
    if there.is_same(value):
      return there
  return value


def next_version(store: Store) -> int:
  """The number of the next version of the ensemble."""
  return int(
    store.rows('SELECT coalesce(max(version), 0) + 1 FROM version')[0][0]
  )


def _fit(
  table: Data, ratings: np.ndarray, name: str, version: int, notes: list[str]
) -> _Fitted | None:
  names = table.candidates()
  left_out = [
    m.name
    for m in table.metrics
    if m.kind != 'ensemble' and m.name not in names
  ]
  if left_out and names:
    notes.append(
      'excluded from the ensemble, because scores of rated outputs are missing'
      f' or constant: {", ".join(left_out)}'
    )
  try:
    if not names:
      raise ensemble.EnsembleError('no metric has scores of all rated outputs')
    stacked = np.stack([table.scores[n] for n in names])
    moments = ensemble.moments(stacked, ratings)
    fit = ensemble.fit(moments, names)
  except ensemble.EnsembleError as error:
    notes.append(f'no ensemble: {error}')
    return None
  members = fit.members()
  signatures = {m.name: m.signature for m in table.metrics if m.name in members}
  at = {n: names.index(n) for n in members}
  value = ensemble.Ensemble(
    board=name,
    version=version,
    reference_set=_named_set(table),
    penalty=fit.penalty,
    intercept=fit.intercept,
    weights={n: float(fit.weights[i]) for n, i in at.items()},
    standardised={n: float(fit.standardised[i]) for n, i in at.items()},
    inputs=ensemble.digest(signatures),
  )
  return _Fitted(
    value,
    fit,
    value.apply(table.scores),
    held_out_scores(fit, stacked, ratings),
    ensemble.ablation(moments, fit),
  )


def _named_set(table: Data) -> str:
  """The reference set, with the way of combining several references."""
  if table.several == 'own' or '+' not in table.reference_set:
    return table.reference_set
  return f'{table.reference_set}:{table.several}'


def held_out_scores(
  fit: ensemble.Fit, scores: np.ndarray, ratings: np.ndarray
) -> np.ndarray | None:
  """Scores each rated output by the ensemble fitted without its generator."""
  if fit.held_out is None:
    return None
  result = np.full(ratings.shape, np.nan)
  rated = np.flatnonzero(~np.isnan(ratings).all(axis=1))
  for i, weights, intercept in zip(rated, *fit.held_out, strict=True):
    used = weights != 0
    result[i] = intercept + weights[used] @ scores[used, i]
  return np.where(np.isnan(ratings), np.nan, result)


def _metrics(
  table: Data, ratings: np.ndarray, fitted: _Fitted | None, request: Request
) -> list[dict[str, Any]]:
  """Ranks the metrics and the ensemble; published ensembles have no rank."""
  rule, metrics, columns = request.rule, list(table.metrics), dict(table.scores)
  if fitted is not None and fitted.held_out is not None:
    own = _own_name(fitted.value.version, columns)
    metrics.append(Metric(own, 'fitted', signature=fitted.value.signature()))
    columns[own] = fitted.held_out
  values = {
    n: ranking.correlation(c, ratings, rule) for n, c in columns.items()
  }
  pearson = values
  if rule != Rule(outliers=rule.outliers):
    pearson = {n: ranking.correlation(c, ratings) for n, c in columns.items()}
  compared = [m.name for m in metrics if m.kind != 'ensemble']
  intervals = ranking.metric_intervals(
    {n: columns[n] for n in compared}, ratings, rule, request.resamples
  )
  strength = {
    n: abs(v) if v is not None and rule.direction == 'either' else v
    for n, v in values.items()
  }
  ranks = ranking.ranks({n: strength[n] for n in compared})
  known = {m.name: m for m in metrics}
  entries = []
  for name in ranking.ranks(strength):
    metric = known[name]
    missing = np.isnan(columns[name]).all(axis=1).sum()
    entries.append(
      {
        'name': name,
        'rank': ranks.get(name),
        'correlation': values[name],
        'pearson': pearson[name],
        'interval': intervals.get(name),
        'kind': metric.kind,
        'negated': metric.negated,
        **_described(metric),
        'signature': metric.signature,
        'missing': 0 if metric.kind == 'fitted' else int(missing),
      }
    )
  _mark_costs(entries, 'correlation')
  return entries


def _described(entry: Generator | Metric) -> dict[str, Any]:
  names = ('description', 'seconds', 'parameters', 'submitted')
  return {name: getattr(entry, name) for name in names}


def _own_name(version: int, taken: Any) -> str:
  """The name of the fitted ensemble, with its version if needed."""
  if ENSEMBLE not in taken:
    return ENSEMBLE
  return f'{ENSEMBLE} v{version}' if version else f'{ENSEMBLE} (not stored)'


def _mark_costs(entries: list[dict[str, Any]], value: str) -> None:
  """Marks the entries on the Pareto front of the value and each cost."""

  def column(name: str) -> np.ndarray:
    return np.array([e[name] for e in entries], dtype=np.float64)

  for cost in COSTS:
    front = ranking.pareto(column(value), column(cost))
    for entry, on in zip(entries, front.tolist(), strict=True):
      entry[f'pareto_{cost}'] = on


def _generators(
  table: Data, fitted: _Fitted | None, best: str | None, request: Request
) -> list[dict[str, Any]]:
  """Ranks the generators by the best metric."""
  columns = dict(table.scores)
  if fitted is not None:
    columns[_own_name(fitted.value.version, columns)] = fitted.scores
  means = {n: ranking.means(c) for n, c in columns.items()}
  human = ranking.means(table.human)
  ranked = columns.get(best or '', np.full(table.human.shape, np.nan))
  ranked = np.where(table.is_reference[:, None], np.nan, ranked)
  names = [g.name for g in table.generators]
  values = dict(zip(names, ranking.means(ranked), strict=True))
  intervals = ranking.generator_intervals(names, ranked, request.resamples)
  entries = []
  for name, rank in ranking.ranks(values).items():
    i = names.index(name)
    generator = table.generators[i]
    entries.append(
      {
        'name': name,
        'rank': rank,
        'score': values[name],
        'interval': intervals.get(name),
        'human': generator.human,
        'is_reference': bool(table.is_reference[i]),
        'rating': human[i],
        'scores': {n: m[i] for n, m in means.items()},
        **_described(generator),
        'has_outputs': generator.has_outputs,
      }
    )
  _mark_costs(entries, 'score')
  return entries


def _ensemble_entry(fitted: _Fitted) -> dict[str, Any]:
  value = fitted.value
  return {
    'version': value.version,
    'weights': dict(value.standardised),
    'raw': dict(value.weights),
    'intercept': value.intercept,
    'lambda': value.penalty,
    'leave_one_out': fitted.fit.leave_one_out,
    'ablation': fitted.ablation,
    'signature': value.signature(),
  }


def _roles(store: Store, table: Data) -> dict[str, tuple[list[str], str]]:
  """The roles set on the board, or one role of all human texts."""
  roles = store.roles()
  if roles:
    return roles
  humans = [
    g.name
    for g, copied in zip(table.generators, table.is_reference, strict=True)
    if g.human and not copied
  ]
  return {ROLE: (humans, table.reference_set)} if humans else {}


def _overrating(
  store: Store,
  table: Data,
  fitted: _Fitted | None,
  request: Request,
  notes: list[str],
) -> dict[str, dict[str, dict[str, Any]]]:
  """Fits the mixed-effects models: role -> metric -> fit (section 2.3)."""
  result: dict[str, dict[str, dict[str, Any]]] = {}
  for role, (humans, reference_set) in _roles(store, table).items():
    there = table
    if reference_set not in (table.reference_set, GIVEN):
      there = data.load(store, reference_set, request.several, request.human)
    included = np.array(
      [not g.human or g.name in humans for g in there.generators]
    )
    ratings = np.where(included[:, None], there.human, np.nan)
    machine = np.array([not g.human for g in there.generators])
    columns = dict(there.scores)
    if fitted is not None:
      own = _own_name(fitted.value.version, columns)
      columns[own] = fitted.value.apply(there.scores)
    fits = {}
    for name, scores in columns.items():
      try:
        fit = overrating.analyse(scores, ratings, machine)
      except overrating.OverratingError as error:
        notes.append(f'overrating of {name}, role {role}: {error}')
        continue
      fits[name] = {
        'beta': fit.beta,
        'ci90': fit.half_width,
        'significance': fit.significance,
        'human': fit.human,
        'rows': fit.rows,
      }
    result[role] = fits
  return result


def references_effect(store: Store, table: Data) -> dict[str, dict[str, float]]:
  """Correlation of each metric by the number of references (figure 3).

  Covers metrics with scores for each single reference. For each subset of n
  references, the maximum (or mean) score over the subset is correlated with
  the ratings; the correlations are averaged over the subsets. Generators whose
  texts are references are excluded.

  Returns:
    Metric -> number of references (a string) -> mean Pearson correlation.
  """
  labels = list(store.references())
  if len(labels) < 2:
    return {}
  several = 'mean' if table.several == 'mean' else 'max'
  copied = data.load(store, '+'.join(labels)).is_reference
  ratings = np.where(copied[:, None], np.nan, table.human)
  result: dict[str, dict[str, float]] = {}
  for metric in table.metrics:
    if not any(True for _ in store.scores(metric.id, labels[0])):
      continue
    columns = {
      label: data.metric_scores(store, metric, label) for label in labels
    }
    curve = {}
    for size in range(1, len(labels) + 1):
      values = [
        ranking.correlation(
          data.combine(np.stack([columns[label] for label in subset]), several),
          ratings,
        )
        for subset in data.subsets(labels, size)
      ]
      known = [value for value in values if value is not None]
      if known:
        curve[str(size)] = float(np.mean(known))
    result[metric.name] = curve
  return result
