"""Summarises rated records in words, and warns of likely mistakes.

For the checks before a training run (`t5score split`). `data/records.py`
reports errors of single rows. Plain Python.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from t5score_jax.data import judgments
from t5score_jax.data.humans import is_human
from t5score_jax.data.records import Segment


def summarize(segments: Sequence[Segment], ratings: Sequence[str]) -> list[str]:
  """Counts records, their texts and their ratings.

  Args:
    segments: The records, at least one.
    ratings: Names of the ratings.

  Returns:
    A line for the texts and one for each rating.
  """
  counts = [f'{len(segments):,} records']
  for name in ('language_pair', 'system', 'document', 'segment'):
    ids = {getattr(s, name) for s in segments} - {None}
    if ids:
      counts.append(f'{len(ids):,} {name.replace("_", " ")}s')
  sizes = [len(s.references) for s in segments]
  span = f'{min(sizes)}' + (
    f' to {max(sizes)}' if min(sizes) < max(sizes) else ''
  )
  sources = sum(s.source is not None for s in segments)
  counts += [
    f'{span} reference{"" if span == "1" else "s"} each',
    f'{sources:,} with a source',
  ]
  lines = [', '.join(counts)]
  for name in ratings:
    # A negative zero, as from penalties, becomes positive.
    values = [s.ratings[name] + 0.0 for s in segments if name in s.ratings]
    mean = sum(values) / len(values) if values else 0.0
    lines.append(
      f'{name}: {len(values):,} rated, {min(values):g} to {max(values):g}, '
      f'mean {mean:.4g}'
      if values
      else f'{name}: none is rated'
    )
  return lines


def pairs_line(segments: Sequence[Segment], rating: str) -> str:
  """States how many pairs T5Score could be trained on, and the alternatives."""
  for shared in judgments.SHARED:
    groups, _ = judgments.groups(segments, rating, shared=shared)
    pairs = sum(len(judgments.pairs(group.ratings)) for group in groups)
    if pairs:
      return (
        f'{rating}: {pairs:,} pairs of hypotheses with the same {shared} and '
        f'different ratings, in {len(groups):,} groups: T5Score can be trained '
        'on them (t5score fit)'
      )
  return (
    f'{rating}: no two hypotheses with the same reference or source and '
    'different ratings: fit a regressor (t5score fit --gin_file), which needs '
    'no pairs'
  )


def warnings(segments: Sequence[Segment], ratings: Sequence[str]) -> list[str]:
  """Warnings about valid records that are likely mistakes; empty if none."""
  found = []
  ids = collections.Counter(
    (s.language_pair, s.system, s.document, s.segment, s.hypothesis)
    for s in segments
    if s.segment is not None
  )
  if twice := sum(n - 1 for n in ids.values()):
    found.append(
      f'{twice:,} records repeat system, segment and hypothesis of another: '
      'judgments by several annotators? `t5score correlate` needs one each'
    )
  counts = {
    'have an empty hypothesis': sum(not s.hypothesis.strip() for s in segments),
    'have an empty first reference': sum(
      bool(s.references) and not s.references[0].strip() for s in segments
    ),
    'have a hypothesis equal to a reference': sum(
      s.hypothesis in s.references for s in segments
    ),
    'are of human translators (systems Human*, ref*), which training on '
    'pairs and `t5score correlate` leave out': sum(
      is_human(s.system) for s in segments
    ),
  }
  found += [f'{n:,} records {what}' for what, n in counts.items() if n]
  for name in ratings:
    values = {s.ratings[name] for s in segments if name in s.ratings}
    if len(values) == 1:
      found.append(f'all values of {name} are equal: nothing can be learned')
  return found
