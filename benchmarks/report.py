"""BENCHMARKS.md and its picture, from the results of `bench.py`.

python benchmarks/report.py   writes them again from the committed results
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ahead_of_time
import numpy as np
from comparisons import ORDER

Result = Mapping[str, Any]

_COMMAND = 'make bench'
_PICTURE = 'benchmarks/results/ratios.svg'
# The share of padding in batches that is accepted.
_PADDING = 0.1
_MEASURES = {'seconds': 'time', 'memory': 'memory'}


def line(result: Result) -> str:
  """One line of a result: each ratio, and the largest difference."""
  ratios = ', '.join(
    f'{side} {ratio[result["measure"]]:.2f} times the '
    f'{_MEASURES[result["measure"]]}'
    for side, ratio in result['ratios'].items()
  )
  first = next(iter(result['sides'].values()))
  found = f'{result["title"]}: {_amount(first, result["measure"])} here'
  if ratios:
    found += f'; {ratios}'
  if result['differences']:
    largest = max(result['differences'].values())
    found += f'; largest difference {largest:.1g}'
  if 'padding' in first:
    found += f'; padding {first["padding"]:.1%}'
  return found


def tables(result: Result) -> list[str]:
  """What sides have measured beside their times, as Markdown."""
  lines = []
  for name, side in result['sides'].items():
    if table := side.get('table'):
      lines += [f'### {result["title"]}: {name}', '']
      lines += ['| ' + ' | '.join(table['columns']) + ' |']
      lines += ['|' + '---|' * len(table['columns'])]
      for row in table['rows']:
        lines.append('| ' + ' | '.join(map(str, row)) + ' |')
      lines.append('')
  return lines


def _amount(side: Mapping[str, Any], measure: str) -> str:
  if measure == 'memory':
    return _bytes(side['memory'])
  return _seconds(side['seconds'])


def _seconds(value: float) -> str:
  return f'{value:.3g} s' if value < 100 else f'{value:.0f} s'


def _share(value: float | None) -> str:
  return '' if value is None else f'{value:.1%}'


def _bytes(value: float) -> str:
  return f'{value / 1e9:.2f} GB'


def _rate(items: float, seconds: float, unit: str) -> str:
  rate = items / seconds
  for prefix, factor in (('G', 1e9), ('M', 1e6), ('k', 1e3)):
    if rate >= 10 * factor or (factor > 1e3 and rate >= factor):
      return f'{rate / factor:.1f} {prefix}{unit}/s'
  return f'{rate:.3g} {unit}/s'


def read(folder: pathlib.Path) -> list[dict[str, Any]]:
  """The results in a folder, in the order in which they are measured."""
  results = []
  for name in ORDER:
    path = folder / f'{name}.json'
    if path.exists():
      module = importlib.import_module(f'comparisons.{name}')
      goals = {
        key: getattr(module, key.upper(), {})
        for key in ('goals', 'within', 'short')
      }
      results.append({**json.loads(path.read_text('utf-8')), **goals})
  return results


def read_ahead(folder: pathlib.Path) -> list[dict[str, Any]]:
  """The reports of `ahead_of_time.py`, if it was run."""
  path = folder / ahead_of_time.FILE
  return json.loads(path.read_text('utf-8')) if path.exists() else []


def peak(results: Sequence[Result]) -> float:
  """The largest rate of matrix products that any side reached, FLOP/s; or 0."""
  return max(
    (
      result['items'] / side['fastest']
      for result in results
      if result['unit'] == 'FLOP'
      for side in result['sides'].values()
    ),
    default=0.0,
  )


def render(results: Sequence[Result], ahead: Sequence[Result] = ()) -> str:
  """BENCHMARKS.md.

  Args:
    results: From `read`.
    ahead: The reports of `ahead_of_time.py`.
  """
  one = results[0]
  machine = one['machine']
  texts = sorted({result['texts'] for result in results if result['texts']})
  loads = [result['machine']['load'] for result in results]
  most = peak(results)
  lines = [
    '# Benchmarks',
    '',
    f'`{_COMMAND}` measures this and writes it; nothing here is written by '
    'hand. Each work runs',
    'here and in what its users would take instead: same weights, same texts, '
    'same machine, in turns,',
    'each side in a process of its own. Times are medians of the warm runs; '
    'cold is from the start of a',
    'process to its first results, compilation included. A ratio is the '
    "other side's time (or memory)",
    'by ours: above 1, this library is ahead. Scores are equal within the '
    'difference that is shown, or',
    'the command fails.',
    '',
    f'![ratios]({_PICTURE})',
    '',
    '## Measured on',
    '',
    f'- {machine["processor"]}, {machine["cores"]} cores'
    + (f' ({", ".join(machine["features"])})' if machine['features'] else '')
    + f', {machine["memory"] / 2**30:.0f} GiB; {machine["system"]}; '
    f'platform {machine["platform"]}',
    f'- load of the machine as a work began: {min(loads):.1f} to '
    f'{max(loads):.1f}'
    + (
      '; it was shared, so that times are not those of an idle one, and '
      'ratios count'
      # A work that has just ended leaves a load of its own.
      if max(loads) > machine['cores'] + 1
      else ''
    ),
    f'- texts: {", ".join(texts)}',
    f'- Python {machine["python"]}; '
    + ', '.join(f'{k} {v}' for k, v in one['versions'].items()),
  ]
  if most:
    lines.append(
      f'- matrix peak, float32: {most / 1e9:.0f} GFLOP/s, the fastest product '
      'of any side'
    )
  lines += ['', '## Ratios', '', *_ratios(results)]
  lines += _missed(results)
  lines += ['', '## All sides', '', *_sides(results, most), '']
  for result in results:
    lines += tables(result)
  if ahead:
    lines += ['## For TPUs, compiled ahead of time', '']
    lines += ['By `benchmarks/ahead_of_time.py`; nothing is measured on a TPU.']
    lines += ['', *ahead_of_time.table(ahead), '']
  lines += ['## What is measured', '']
  lines += [f'- **{r["title"]}**: {r["about"]}' for r in results]
  lines.append('')
  return '\n'.join(lines)


def _ratios(results: Sequence[Result]) -> list[str]:
  lines = [
    '| work | beside | ratio | goal | by processor seconds | memory '
    '| difference |',
    '|---|---|---|---|---|---|---|',
  ]
  for result in results:
    for side, ratio in result['ratios'].items():
      named = f'**{ratio[result["measure"]]:.2f}**'
      if result['measure'] == 'memory':
        named += ' (memory)'
      difference = result['differences'].get(side)
      lines.append(
        f'| {result["title"]} | {side} | {named} '
        f'| {_goal(result, side) or ""} | {ratio["cpu"]:.2f} '
        f'| {ratio["memory"]:.2f} '
        f'| {"" if difference is None else f"{difference:.0e}"} |'
      )
  return lines


def _goal(result: Result, side: str) -> float:
  """The ratio that is wanted; 0 for none."""
  return result.get('goals', {}).get(side, 0)


def _missed(results: Sequence[Result]) -> list[str]:
  """Goals that are not reached, why, and what to try."""
  lines = []
  for result in results:
    less = [
      f'{side} {ratio[result["measure"]]:.2f} of {_goal(result, side)}'
      for side, ratio in result['ratios'].items()
      if ratio[result['measure']] < _goal(result, side)
    ]
    less += [
      f'{name} {_seconds(side["seconds"])} of {result["within"][name]} s'
      for name, side in result['sides'].items()
      if side['seconds'] > result.get('within', {}).get(name, np.inf)
    ]
    less += [
      f'{name} {side["padding"]:.0%} padding of {_PADDING:.0%}'
      for name, side in result['sides'].items()
      if side.get('padding', 0) > _PADDING
    ]
    if less:
      lines.append(
        f'- **{result["title"]}** ({", ".join(less)}): {result["short"]}'
      )
  return ['', '## Goals that are missed', '', *lines] if lines else []


def _sides(results: Sequence[Result], most: float) -> list[str]:
  lines = [
    '| work | side | median (range; runs) | rate | cold | peak memory '
    '| share of matrix peak | padding |',
    '|---|---|---|---|---|---|---|---|',
  ]
  for result in results:
    for name, side in result['sides'].items():
      if part := side.get('timed part'):
        name += f' (timed: {part})'
      flops = side.get('flops') or result['flops']
      share = ''
      if flops and most:
        share = f'{flops / side["seconds"] / most:.0%}'
      spread = f'{side["fastest"]:.3g} to {side["slowest"]:.3g}; '
      spread += str(side['runs'])
      lines.append(
        f'| {result["title"]} | {name} | {_seconds(side["seconds"])} '
        f'({spread}) '
        f'| {_rate(result["items"], side["seconds"], result["unit"])} '
        f'| {_seconds(side["cold"])} | {_bytes(side["memory"])} | {share} '
        f'| {_share(side.get("padding"))} |'
      )
  return lines


def write(folder: pathlib.Path, place: pathlib.Path) -> None:
  """Writes the page and the picture.

  Args:
    folder: Has the results; takes the picture.
    place: Takes the page.
  """
  results = read(folder)
  if not results:
    return
  (folder / 'ratios.svg').write_text(picture(results), 'utf-8')
  page = render(results, read_ahead(folder))
  (place / 'BENCHMARKS.md').write_text(page, 'utf-8')


def picture(results: Sequence[Result]) -> str:
  """A bar a ratio on a logarithmic axis, SVG; the line is where both equal."""
  import math

  bars = [
    (f'{result["title"]} | {side}', ratio[result['measure']])
    for result in results
    if result['unit'] != 'FLOP'
    for side, ratio in result['ratios'].items()
  ]
  most = max([10.0, *(value for _, value in bars)])
  decades = math.ceil(math.log10(most))
  left, width, row = 430, 420, 24
  zero = left + 60

  def place(value: float) -> float:
    return zero + width * math.log10(max(value, 0.3)) / decades

  height = row * (len(bars) + 2)
  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 130}" '
    f'height="{height}" font-family="sans-serif" font-size="12">',
    '<rect width="100%" height="100%" fill="white"/>',
  ]
  for n, (name, value) in enumerate(bars):
    top = row * n + 8
    start, end = sorted((place(1), place(value)))
    colour = '#2a7' if value >= 1 else '#c63'
    parts += [
      f'<text x="{left - 10}" y="{top + 13}" text-anchor="end">'
      f'{_escaped(name)}</text>',
      f'<rect x="{start:.1f}" y="{top}" width="{end - start:.1f}" '
      f'height="16" fill="{colour}"/>',
      f'<text x="{max(end, zero) + 6:.1f}" y="{top + 13}">{value:.1f}</text>',
    ]
  bottom = row * len(bars) + 10
  for tick in range(decades + 1):
    x = place(10**tick)
    parts += [
      f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{bottom}" stroke="#999"/>',
      f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">'
      f'{10**tick:,}</text>',
    ]
  parts += [
    f'<text x="{zero + width / 2}" y="{bottom + 32}" text-anchor="middle">'
    "the other side's time or memory by ours</text>",
    '</svg>',
  ]
  return '\n'.join(parts) + '\n'


def _escaped(text: str) -> str:
  return text.replace('&', '&amp;').replace('<', '&lt;')


if __name__ == '__main__':
  here = pathlib.Path(__file__).parent
  write(here / 'results', here.parent)
  sys.exit(0)
