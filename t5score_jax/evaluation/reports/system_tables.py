"""Comparisons of systems as text: values, and each one against its baseline.

Formats what `paired_tests` has measured; measures nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from t5score_jax.evaluation.paired_tests import Comparison
from t5score_jax.evaluation.reports import tables


def render_systems(
  comparisons: Mapping[str, Comparison],
  settings: Mapping[str, object],
  notes: Sequence[str],
  style: str = 'text',
  digits: int = 4,
) -> str:
  """Comparisons of systems, by language pair.

  Args:
    comparisons: By language pair, '' where there is none.
    settings: Numbers of draws, seed and the rule `bootstrap_p`, to be printed
      with the results.
    notes: Sentences to add.
    style: A name in `tables.FORMATS`.
    digits: Decimals of scores.

  Raises:
    InputError: An unknown style.
  """
  tables.check_style(style)
  if style == 'json':
    return tables.to_json(
      {
        **settings,
        'notes': list(notes),
        'results': [
          {'language_pair': pair, **_comparison_json(comparison)}
          for pair, comparison in comparisons.items()
        ],
      }
    )
  blocks = []
  for pair, comparison in comparisons.items():
    head = [pair] if pair else []
    blocks += [*head, tables.lay_out(_value_rows(comparison, digits), style)]
    blocks.append(tables.lay_out(_comparison_rows(comparison, digits), style))
  rule = settings['bootstrap_p']
  draws = ', '.join(
    f'{value} {name}'
    for name, value in settings.items()
    if name != 'bootstrap_p'
  )
  blocks.append(
    f'p: two-sided, bootstrap {rule}. wins, ties: share of resamples; '
    f'better, worse: segments. Draws: {draws}.'
  )
  return tables.assemble(blocks, notes, style)


def _value_rows(comparison: Comparison, digits: int) -> list[list[str]]:
  rows = [['system', 'value', '95% interval', 'segments']]
  for name, value, (low, high) in zip(
    comparison.systems, comparison.values, comparison.intervals, strict=True
  ):
    interval = f'[{low:.{digits}f}, {high:.{digits}f}]'
    rows.append(
      [name, f'{value:.{digits}f}', interval, str(comparison.segments)]
    )
  return rows


def _comparison_rows(comparison: Comparison, digits: int) -> list[list[str]]:
  randomised = any(row.randomisation_p is not None for row in comparison.rows)
  rows = [['system', 'minus', 'difference', '95% interval', 'p bootstrap']]
  rows[0] += ['p randomisation'] if randomised else []
  rows[0] += ['wins', 'ties', 'better', 'worse']
  for row in comparison.rows:
    cells = [
      row.first,
      row.second,
      f'{row.difference:+.{digits}f}',
      f'[{row.low:+.{digits}f}, {row.high:+.{digits}f}]',
      '-' if row.bootstrap_p is None else f'{row.bootstrap_p:.4f}',
    ]
    if row.randomisation_p is not None:
      cells.append(f'{row.randomisation_p:.4f}')
    won, _, tied = row.wins
    cells += [f'{won:.1%}', f'{tied:.1%}', *map(str, row.segments[:2])]
    rows.append(cells)
  return rows


def _comparison_json(comparison: Comparison) -> dict[str, object]:
  return {
    'segments': comparison.segments,
    'systems': [
      {'system': name, 'value': value, 'interval': interval}
      for name, value, interval in zip(
        comparison.systems,
        comparison.values.tolist(),
        comparison.intervals.tolist(),
        strict=True,
      )
    ],
    'comparisons': [dataclasses.asdict(row) for row in comparison.rows],
  }
