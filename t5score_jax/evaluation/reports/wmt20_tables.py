"""T5Score's tables on WMT20 as text, marked as in the paper.

Formats what `wmt20` has measured; measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from t5score_jax.evaluation import clusters
from t5score_jax.evaluation.reports import tables
from t5score_jax.evaluation.reports.wmt20 import Block, Settings


def render_blocks(
  blocks: Sequence[Block],
  settings: Settings,
  notes: Sequence[str],
  style: str = 'text',
  digits: int = 1,
) -> str:
  """T5Score's tables: values times 100, with the best of each column in bold.

  As in the paper, the highest value is bold and the highest of the unsupervised
  metrics is underlined (LaTeX; Markdown has only bold).

  Raises:
    InputError: An unknown style.
  """
  tables.check_style(style)
  if style == 'json':
    return tables.to_json(_blocks_json(blocks, settings, notes))
  shown = []
  for block in blocks:
    rows = [['metric', *block.columns]]
    rows += [
      [
        m,
        *(_shown(block, m, c, settings, style, digits) for c in block.columns),
      ]
      for m in block.metrics
    ]
    shown += [block.title, tables.lay_out(rows, style)]
  legend = 'Times 100.'
  if settings.resamples:
    legend += (
      f' {clusters.BEST_OF_ALL}: not significantly outperformed by any other '
      f'metric of this table; {clusters.BEST_UNSUPERVISED}: by any other '
      f'unsupervised one ({", ".join(settings.unsupervised)}); paired '
      f'bootstrap over segments, {settings.resamples} resamples, seed '
      f'{settings.seed}, p < {clusters.LEVEL}.'
    )
  return tables.assemble([*shown, legend], notes, style)


def _blocks_json(
  blocks: Sequence[Block], settings: Settings, notes: Sequence[str]
) -> dict[str, object]:
  return {
    'resamples': settings.resamples,
    'seed': settings.seed,
    'unsupervised': list(settings.unsupervised),
    'notes': list(notes),
    'tables': [
      {
        'title': block.title,
        'results': [
          {
            'metric': metric,
            'column': column,
            'value': block.values[metric, column],
            'mark': block.marks.get((metric, column), ''),
          }
          for metric in block.metrics
          for column in block.columns
          if (metric, column) in block.values
        ],
      }
      for block in blocks
    ],
  }


def _shown(
  block: Block,
  metric: str,
  column: str,
  settings: Settings,
  style: str,
  digits: int,
) -> str:
  value = block.values.get((metric, column))
  if value is None:
    return '-'
  # + 0.0 turns -0.0 into 0.0.
  text = f'{round(100 * value, digits) + 0.0:.{digits}f}'

  def best(names: Sequence[str]) -> bool:
    there = [block.values.get((name, column)) for name in names]
    return value == max(v for v in there if v is not None)

  free = [m for m in block.metrics if m in settings.unsupervised]
  mark = block.marks.get((metric, column), '')
  if style == 'latex' and metric in free and best(free):
    text = f'\\underline{{{text}}}'
  if best(block.metrics):
    text = {'latex': f'\\textbf{{{text}}}', 'markdown': f'**{text}**'}.get(
      style, text
    )
  return text + mark
