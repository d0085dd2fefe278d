"""Stores the analyses of a board and renews them after changes.

A board stores its newest analyses (the snapshot) and every version of its
ensemble. `analysis.py` computes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5score_jax.leaderboard import changes, ensemble
from t5score_jax.leaderboard.analysis import COSTS, analyse, next_version
from t5score_jax.leaderboard.entries import BoardError
from t5score_jax.leaderboard.store import Store

#: Boards with less than this get a warning.
LEAST_EXAMPLES, LEAST_GENERATORS = 100, 5


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
      fitted = value['ensemble']
      if fitted is not None:
        kept = dataclasses.replace(
          ensemble.parse_signature(fitted['signature']),
          standardised=fitted['weights'],
        )
        changes.add_version(store, kept, revision, cause)
      changes.set_snapshot(store, revision, fitted and version, value)
      return value
  raise BoardError(f'{store.path}: too many changes at once; try again')


def current(store: Store) -> dict[str, Any]:
  """The stored analyses, renewed first if they are outdated."""
  kept = store.snapshot()
  if kept is not None and kept[0] == store.board().revision:
    return kept[1]
  return renew(store, 'renewed after an interrupted change')


def placed(entries: Sequence[Mapping[str, Any]], name: str) -> str:
  """The rank of an entry in words; entries without a rank do not count.

  >>> placed([{'name': 'a', 'rank': 1}, {'name': 'b', 'rank': None}], 'a')
  'rank 1 of 1'
  """
  ranks = {entry['name']: entry['rank'] for entry in entries}
  rank, ranked = ranks[name], [r for r in ranks.values() if r is not None]
  if rank is None:
    return 'on the board; not ranked, because scores or ratings are missing'
  tied = f' (shared by {ranked.count(rank)})' if ranked.count(rank) > 1 else ''
  return f'rank {rank} of {len(ranked)}{tied}'


def warnings(value: Mapping[str, Any]) -> list[str]:
  """Warns of a board that is too small for stable ranks."""
  rated = sum(g['rating'] is not None for g in value['generators'])
  counts = [
    f'{count} {what} ({least} or more are better)'
    for count, least, what in (
      (value['board']['examples'], LEAST_EXAMPLES, 'examples'),
      (rated, LEAST_GENERATORS, 'rated generators'),
    )
    if count < least
  ]
  if not counts:
    return []
  return [
    f'a small board, {" and ".join(counts)}: another sample may well change'
    ' the ranks, the correlations and the ensemble'
  ]


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
    f'{front}{cost}' for front in ('', 'pareto_') for cost in COSTS
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
