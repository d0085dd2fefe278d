"""Reports as text: aligned table, JSON, LaTeX, Markdown.

Formats the results of `agreement`; measures nothing. `wmt20_tables` and
`system_tables` format those of `wmt20` and `paired_tests`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from t5score_jax.errors import InputError
from t5score_jax.evaluation import clusters
from t5score_jax.evaluation.clusters import LEVEL

# `t5score score` lays out its summary with this module and measures nothing.
if TYPE_CHECKING:
  from t5score_jax.evaluation.agreement import Cell, Curve, Report

# The units that a permutation swaps, as named in reports.
SWAPPED = {
  'both': 'single segment scores (PERM-BOTH)',
  'systems': "systems' segment scores (PERM-SYS)",
  'segments': 'whole segments (PERM-INPUT)',
  'system-scores': "systems' scores (as in mt-metrics-eval)",
}
FORMATS = ('text', 'json', 'latex', 'markdown')


def counted(report: Report, column: str) -> str:
  """The unit of a column's counts: 'entries', 'systems', ..."""
  config = report.config
  if column.startswith('Avg') or column == 'Pooled':
    return 'language pairs'
  if config.level == 'system':
    return 'systems'
  if config.statistic in ('darr', 'calibrated-accuracy'):
    return 'pairs'
  return {'none': 'entries', 'item': 'items', 'system': 'systems'}[config.group]


def check_style(style: str) -> None:
  """Raises InputError where a style is not in `FORMATS`."""
  if style not in FORMATS:
    raise InputError(
      f'unknown format {style!r}; there are {", ".join(FORMATS)}'
    )


def to_json(value: object) -> str:
  """A value as the text of a JSON file."""
  return json.dumps(value, indent=2, ensure_ascii=False)


def render(
  report: Report,
  style: str = 'text',
  digits: int = 4,
  notes: Sequence[str] = (),
) -> str:
  """The report as text, without a final newline.

  Args:
    report: What to show.
    style: A name in `FORMATS`.
    digits: Decimals of a correlation (JSON always has full precision).
    notes: Sentences to add to the report's own.

  Raises:
    InputError: An unknown style.
  """
  check_style(style)
  notes = [*notes, *report.notes]
  if style == 'json':
    return to_json({**as_json(report), 'notes': notes})
  blocks = [lay_out(_main_rows(report, digits), style)]
  details = _detail_rows(report, digits)
  if len(details) > 1:
    blocks.append(lay_out(details, style))
  if report.config.baseline is not None:
    blocks.append(
      f'+ / -: significantly better / worse than {report.config.baseline} '
      f'(paired bootstrap, {report.config.resamples} resamples, seed '
      f'{report.config.seed}, one-sided p < {LEVEL})'
    )
  blocks.extend(_explain_test(report))
  return assemble(blocks, notes, style)


def assemble(blocks: Sequence[str], notes: Sequence[str], style: str) -> str:
  """Joins paragraphs, and the notes as one paragraph.

  In LaTeX everything but the tables is a comment, so that the output can be
  pasted as it is.
  """
  paragraph = '\n'.join(f'Note: {note}' for note in notes)
  blocks = [*blocks, *([paragraph] if paragraph else [])]
  if style == 'latex':
    blocks = [
      block
      if block.startswith('\\begin')
      else '\n'.join(f'% {line}' for line in block.splitlines())
      for block in blocks
    ]
  return '\n\n'.join(blocks)


def _explain_test(report: Report) -> list[str]:
  config = report.config
  if not report.p_values:
    return []
  how = f'paired bootstrap, {config.resamples} resamples'
  if config.test == 'permutation':
    how = f'permutation of {SWAPPED[config.swap]}, {config.permutations} swaps'
    if config.statistic == 'calibrated-accuracy':
      how = f'permutation of pairs, {config.permutations} swaps'
    elif config.early_stop:
      how += ', or fewer where decided early'
  lines = [
    f'(n): rank of the significance cluster ({how}, seed {config.seed}, '
    f'one-sided p <= {LEVEL})'
  ]
  if config.unsupervised is not None:
    lines.append(
      f'{clusters.BEST_OF_ALL}: not significantly outperformed by any other '
      f'metric; {clusters.BEST_UNSUPERVISED}: by any other unsupervised metric '
      f'({", ".join(config.unsupervised)}); p < {LEVEL}'
    )
  return lines


def render_curve(
  curve: Curve,
  style: str = 'text',
  digits: int = 4,
  notes: Sequence[str] = (),
) -> str:
  """One row per metric, one column per number of best systems.

  A line above the numbers states what they are over: the mean over language
  pairs, or the only language pair.
  """
  check_style(style)
  all_notes = list(
    dict.fromkeys([*notes, *(n for r in curve.reports for n in r.notes)])
  )
  if style == 'json':
    return to_json(
      {
        'notes': all_notes,
        'top_k': [
          {'k': k, **as_json(report)}
          for k, report in zip(curve.top_k, curve.reports, strict=True)
        ],
      }
    )
  head = ['metric', *(f'top {k}' for k in curve.top_k)]
  rows = [
    [metric, *(f'{v:.{digits}f}' for v in curve.values(metric))]
    for metric in curve.metrics
  ]
  column, first = curve.column, curve.metrics[0]
  cells = [report.cells[first, column] for report in curve.reports]
  rows.append(['n', *(str(cell.count) for cell in cells)])
  blocks = [lay_out([head, *rows], style)]
  if column:
    over = f'{column}: mean over language pairs (n of them)'
    mean = any(len(report.columns) > 1 for report in curve.reports)
    blocks.insert(0, over if mean else column)
  return assemble(blocks, all_notes, style)


def render_values(
  title: str,
  columns: Sequence[str],
  names: Sequence[str],
  values: Sequence[Sequence[float]],
  notes: Sequence[str],
  style: str = 'text',
  digits: int = 4,
) -> str:
  """A table of numbers: a title, one row per metric, notes.

  Raises:
    InputError: An unknown style.
  """
  check_style(style)
  if style == 'json':
    return to_json(
      {
        'title': title,
        'notes': list(notes),
        'results': [
          {'metric': name, **dict(zip(columns, row, strict=True))}
          for name, row in zip(names, values, strict=True)
        ],
      }
    )
  rows = [['metric', *columns]]
  rows += [
    [name, *(f'{v:.{digits}f}' for v in row)]
    for name, row in zip(names, values, strict=True)
  ]
  return assemble([title, lay_out(rows, style)], notes, style)


def as_json(report: Report) -> dict[str, object]:
  """The report as JSON values: configuration, notes, one object per number."""
  config = report.config
  return {
    'level': config.level,
    'statistic': config.statistic,
    'group': config.group,
    'constant_groups': config.constant,
    'ties': config.ties,
    'min_gap': config.min_gap,
    'pairs': config.pairs.path if config.pairs else None,
    'exclude_systems': config.exclude,
    'exclude_outliers': config.outliers,
    'top_k': config.top_k,
    'resamples': config.resamples,
    'unit': config.unit,
    'test': config.test,
    'permutations': config.permutations,
    'swap': config.swap,
    'early_stop': config.early_stop,
    'unsupervised': config.unsupervised,
    'seed': config.seed,
    'baseline': config.baseline,
    'p_values': {
      column: {
        name: dict(zip(report.metrics, row, strict=False))
        for name, row in zip(report.metrics, matrix.tolist(), strict=False)
      }
      for column, matrix in report.p_values.items()
    },
    'notes': list(report.notes),
    'results': [
      _cell_json(report.cells[metric, column])
      for metric in report.metrics
      for column in report.columns
    ],
  }


def _cell_json(cell: Cell) -> dict[str, object]:
  values: dict[str, object] = {
    'metric': cell.metric,
    'language_pair': cell.language_pair,
    'value': cell.value,
    'count': cell.count,
  }
  if cell.low is not None:
    values['interval'] = [cell.low, cell.high]
  if cell.rank is not None:
    values['rank'] = cell.rank
  if cell.mark:
    values['mark'] = cell.mark
  if cell.spread is not None:
    values['standard_deviation'] = cell.spread
  if cell.comparison is not None:
    values['versus'] = {
      'baseline': cell.comparison.second,
      'difference': cell.comparison.difference,
      'interval': [cell.comparison.low, cell.comparison.high],
      'p_value': cell.comparison.p_value,
    }
  return values


def _mark(cell: Cell, digits: int) -> str:
  text = cell.mark
  if cell.spread is not None:
    text += f' ± {cell.spread:.{digits}f}'
  if cell.rank is not None:
    text += f' ({cell.rank})'
  return _versus(cell) + text


def _versus(cell: Cell) -> str:
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
        + _mark(report.cells[metric, c], digits)
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
  baseline = report.config.baseline
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


def lay_out(
  rows: Sequence[Sequence[str]], style: str, left: Collection[int] = (0,)
) -> str:
  """Rows of cells, the first one the header, as aligned text.

  Args:
    rows: The rows, of equal length.
    style: A name in `FORMATS`.
    left: The columns of 'text' that are aligned left, the others right.

  Raises:
    InputError: An unknown style.
  """
  widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]

  def aligned(row: Sequence[str]) -> list[str]:
    return [
      cell.ljust(width) if k in left else cell.rjust(width)
      for k, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]

  if style == 'text':
    return '\n'.join('  '.join(aligned(row)).rstrip() for row in rows)
  if style == 'markdown':
    rule = ['-' * widths[0], *('-' * (w - 1) + ':' for w in widths[1:])]
    escaped = [[cell.replace('|', '\\|') for cell in row] for row in rows]
    cells = [aligned(escaped[0]), rule, *map(aligned, escaped[1:])]
    return '\n'.join('| ' + ' | '.join(row) + ' |' for row in cells)
  if style == 'latex':
    lines = [' & '.join(map(_escape_latex, row)) + r' \\' for row in rows]
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
  raise InputError(f'unknown format {style!r}; there are {", ".join(FORMATS)}')


_LATEX = {c: '\\' + c for c in '&%$#_{}'} | {
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '\\': r'\textbackslash{}',
  '±': r'$\pm$',
  clusters.BEST_OF_ALL: r'$^\ddagger$',
  clusters.BEST_UNSUPERVISED: r'$^\dagger$',
}


def _escape_latex(cell: str) -> str:
  # Cells that `reports/wmt20_tables.py` has marked up stay as they are.
  match = re.fullmatch(
    r'((?:\\(?:textbf|underline)\{)*)(-?[0-9.]+)(\}*)(\D*)', cell
  )
  if match and match[1]:
    return match[1] + match[2] + match[3] + _escape_latex(match[4])
  return ''.join(_LATEX.get(c, c) for c in cell)
