"""Reports as text: aligned table, JSON, LaTeX, Markdown.

Formats numbers that `agreement` has measured; measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from t5score_jax.evaluation.agreement import Cell, Report

FORMATS = ('table', 'json', 'latex', 'markdown')

# A comparison below this is called significant (T5Score section 4.2).
LEVEL = 0.05


def render(report: Report, style: str = 'table', digits: int = 4) -> str:
  """The report as text, without a final newline.

  Args:
    report: What to show.
    style: A name in `FORMATS`.
    digits: Decimals of a correlation (JSON always carries all of them).

  Raises:
    ValueError: An unknown style.
  """
  if style == 'json':
    return json.dumps(as_json(report), indent=2, ensure_ascii=False)
  if style not in FORMATS:
    raise ValueError(
      f'unknown format {style!r}; there are {", ".join(FORMATS)}'
    )
  blocks = [lay_out(_main_rows(report, digits), style)]
  details = _detail_rows(report, digits)
  if len(details) > 1:
    blocks.append(lay_out(details, style))
  if report.question.baseline is not None:
    blocks.append(
      f'+ / -: significantly better / worse than {report.question.baseline} '
      f'(paired bootstrap, {report.question.resamples} resamples, seed '
      f'{report.question.seed}, one-sided p < {LEVEL})'
    )
  blocks.extend(f'Note: {note}' for note in report.notes)
  return '\n\n'.join(blocks[: -len(report.notes) or None]) + ''.join(
    ('\n\n' if not i else '\n') + block
    for i, block in enumerate(blocks[len(blocks) - len(report.notes) :])
  )


def as_json(report: Report) -> dict[str, object]:
  """The report as JSON values: what was asked, notes, one object a number."""
  question = report.question
  return {
    'level': question.level,
    'statistic': question.statistic,
    'group': question.group,
    'ties': question.ties,
    'min_gap': question.min_gap,
    'pairs': question.pairs.path if question.pairs else None,
    'exclude_systems': question.exclude,
    'top_k': question.top_k,
    'resamples': question.resamples,
    'unit': question.unit,
    'seed': question.seed,
    'baseline': question.baseline,
    'notes': list(report.notes),
    'results': [
      _cell_json(report.cells[metric, column])
      for metric in report.metrics
      for column in report.columns
    ],
  }


def _cell_json(cell: Cell) -> dict[str, object]:
  found: dict[str, object] = {
    'metric': cell.metric,
    'language_pair': cell.language_pair,
    'value': cell.value,
    'count': cell.count,
  }
  if cell.low is not None:
    found['interval'] = [cell.low, cell.high]
  if cell.comparison is not None:
    found['versus'] = {
      'baseline': cell.comparison.second,
      'difference': cell.comparison.difference,
      'interval': [cell.comparison.low, cell.comparison.high],
      'p_value': cell.comparison.p_value,
    }
  return found


def _mark(cell: Cell) -> str:
  if cell.comparison is None:
    return ''
  if cell.comparison.p_value < LEVEL:
    return '+'
  # The same draws, read the other way round.
  return '-' if cell.comparison.p_value > 1 - LEVEL else ''


def _main_rows(report: Report, digits: int) -> list[list[str]]:
  head = ['metric', *(column or 'all' for column in report.columns)]
  rows = [
    [
      metric,
      *(
        f'{report.cells[metric, c].value:.{digits}f}'
        + _mark(report.cells[metric, c])
        for c in report.columns
      ),
    ]
    for metric in report.metrics
  ]
  counts = [
    'n',
    *(str(report.cells[report.metrics[0], c].count) for c in report.columns),
  ]
  return [head, *rows, counts]


def _detail_rows(report: Report, digits: int) -> list[list[str]]:
  head = ['metric', 'on', 'value', '95% interval']
  baseline = report.question.baseline
  if baseline is not None:
    head += [f'minus {baseline}', '95% interval', 'p']
  rows = [head]
  for column in report.columns:
    for metric in report.metrics:
      cell = report.cells[metric, column]
      if cell.low is None:
        continue
      row = [
        metric,
        column or 'all',
        f'{cell.value:.{digits}f}',
        f'[{cell.low:.{digits}f}, {cell.high:.{digits}f}]',
      ]
      if baseline is not None:
        versus = cell.comparison
        row += (
          ['', '', '']
          if versus is None
          else [
            f'{versus.difference:+.{digits}f}',
            f'[{versus.low:+.{digits}f}, {versus.high:+.{digits}f}]',
            f'{versus.p_value:.3g}',
          ]
        )
      rows.append(row)
  return rows


def lay_out(rows: Sequence[Sequence[str]], style: str) -> str:
  """Rows of cells, the first one the header, as aligned text.

  The first column is aligned left, the others right.

  Raises:
    ValueError: An unknown style.
  """
  widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]

  def aligned(row: Sequence[str]) -> list[str]:
    return [
      cell.rjust(width) if k else cell.ljust(width)
      for k, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]

  if style == 'table':
    return '\n'.join('  '.join(aligned(row)).rstrip() for row in rows)
  if style == 'markdown':
    rule = ['-' * widths[0], *('-' * (w - 1) + ':' for w in widths[1:])]
    escaped = [[cell.replace('|', '\\|') for cell in row] for row in rows]
    cells = [aligned(escaped[0]), rule, *map(aligned, escaped[1:])]
    return '\n'.join('| ' + ' | '.join(row) + ' |' for row in cells)
  if style == 'latex':
    special = {c: '\\' + c for c in '&%$#_{}'}
    special.update({'~': r'\textasciitilde{}', '^': r'\textasciicircum{}'})
    special['\\'] = r'\textbackslash{}'
    lines = [
      ' & '.join(''.join(special.get(c, c) for c in cell) for cell in row)
      + r' \\'
      for row in rows
    ]
    return '\n'.join(
      [
        r'\begin{tabular}{l' + 'r' * (len(widths) - 1) + '}',
        r'\toprule',
        lines[0],
        r'\midrule',
        *lines[1:],
        r'\bottomrule',
        r'\end{tabular}',
      ]
    )
  raise ValueError(f'unknown format {style!r}; there are {", ".join(FORMATS)}')
