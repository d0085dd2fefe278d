"""Stores the analyses of a board and renews them after changes.

A board stores its newest analyses (the snapshot) and every version of its
ensemble. `analysis.py` computes them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from t5score_jax.leaderboard import changes, ensemble
from t5score_jax.leaderboard.analysis import analyse, next_version
from t5score_jax.leaderboard.entries import BoardError
from t5score_jax.leaderboard.store import Store


def keep_version(store: Store) -> dict[str, Any] | None:
  """Analyses an imported board whose newest version fits its data.

  Returns:
    The value of `analyse`, which is stored; None if there is no version or the
    newest was fitted to other data: call `renew` then.
  """
  versions = store.versions()
  if not versions:
    return None
  value = analyse(store)
  newest, fitted = versions[-1].version, value['ensemble']
  if fitted is None or fitted['version'] != newest:
    return None
  changes.set_snapshot(store, store.board().revision, newest, value)
  return value


def renew(store: Store, cause: str) -> dict[str, Any]:
  """Analyses the board and stores the ensemble as a new version.

  Safe with concurrent writers: the analysis is repeated if the board has
  changed in the meantime.

  Args:
    store: The board.
    cause: The change that caused it, for the list of versions.

  Returns:
    The value of `analyse`.

  Raises:
    BoardError: The board changed ten times in a row.
  """
  for _ in range(10):
    revision = store.board().revision
    version = next_version(store)
    value = analyse(store, version=version)
    with store.transaction():
      if (store.board().revision, next_version(store)) != (revision, version):
        continue
      if value['ensemble'] is None:
        changes.set_snapshot(store, revision, None, value)
      else:
        entry = ensemble.parse_signature(value['ensemble']['signature'])
        kept = dataclasses.replace(
          entry, standardised=value['ensemble']['weights']
        )
        changes.add_version(
          store, version, revision, cause, entry.signature(), kept.to_json()
        )
        changes.set_snapshot(store, revision, version, value)
      return value
  raise BoardError(f'{store.path}: too many changes at once; try again')


def current(store: Store) -> dict[str, Any]:
  """The stored analyses, renewed first if they are outdated."""
  kept = changes.snapshot(store)
  if kept is not None and kept[0] == store.board().revision:
    return kept[1]
  return renew(store, 'renewed after an interrupted change')


def rank_document(
  value: dict[str, Any], intervals: bool = False, costs: bool = False
) -> dict[str, Any]:
  """Selects what `t5score board rank --format json` prints.

  Args:
    value: A value of `analyse`.
    intervals: Whether entries have intervals and ranks.
    costs: Whether entries have costs and membership of the Pareto fronts.

  Returns:
    `metrics` and `generators`, the best first, `ensemble` and `overrating`. If
    metrics are ranked by a statistic other than instance-level Pearson, they
    also have that statistic as `correlation`.
  """
  extra = ['interval', 'rank'] * intervals
  extra += [
    'seconds',
    'parameters',
    'pareto_seconds',
    'pareto_parameters',
  ] * costs
  rule = value['board']['rule']
  of_metrics = list(extra)
  if (rule['statistic'], rule['level']) != ('pearson', 'instance'):
    of_metrics.append('correlation')
  fitted = value['ensemble']
  roles = list(value['overrating'].values())
  return {
    'metrics': [
      {n: m[n] for n in ('name', 'pearson', *of_metrics)}
      for m in value['metrics']
      if m['kind'] not in ('fitted', 'ensemble')
    ],
    'generators': [
      {n: g[n] for n in ('name', 'rank', 'score', *extra)}
      for g in value['generators']
    ],
    'ensemble': fitted
    and {n: fitted[n] for n in ('weights', 'leave_one_out', 'signature')},
    'overrating': {
      name: {'beta': fit['beta'], 'ci90': fit['ci90']}
      for name, fit in (roles[0] if roles else {}).items()
    },
  }
