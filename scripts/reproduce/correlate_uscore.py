r"""Correlates a UScore metric and its parts with human ratings: Figure 4.

    python scripts/reproduce/correlate_uscore.py ro-en/ \
        --mlqe mlqe-pe_da.tsv.gz --pair ro-en -o ro-en.json --plot ro-en.png
    python scripts/reproduce/correlate_uscore.py de-en/ \
        --wmt wmt15-17_da.tsv.gz --pair de-en -o de-en.json --plot de-en.png

The folder is written by `t5score uscore`. Pearson's r over segments (Belouadi
and Eger 2023, section 4) is reported for each of its parts, for the distance
without the map, for the cosine of the encoder before its rounds and, if the
folder has all parts, for UScore, UScore+ and UScore++. For WMT, which has
references, chrF and BERTScore of the same encoder are added. The distance
with the sentence's cosine is compared with each of them by a paired bootstrap
over segments. The plot varies the weights of pseudo references and language
model in steps of .1, as Figure 4 does; the distance has the remaining weight.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.checkpoints import uscore
from t5score_jax.data import files
from t5score_jax.data.records import Segment
from t5score_jax.evaluation import bootstrap, correlation
from t5score_jax.metrics import registry

_STEPS = 11
_ALL_PARTS = frozenset(('wmd', 'pseudo', 'lm', 'sentence'))
_SHARES = {
  # Without the parts that need a good model of the target language.
  'wmd, lm': uscore.Weights(wmd=0.9, pseudo=0, lm=0.1, word=1),
  'wmd, pseudo': uscore.Weights(wmd=5 / 9, pseudo=4 / 9, lm=0, word=1),
  'wmd, sentence': uscore.Weights(wmd=1, pseudo=0, lm=0, word=0.6),
}


def _rows(path: str, **dialect: Any) -> Iterator[dict[str, str]]:
  with gzip.open(path, 'rt', encoding='utf-8', newline='') as stream:
    yield from csv.DictReader(stream, delimiter='\t', **dialect)


def read_mlqe(
  path: str, pair: str, split: str
) -> tuple[list[Segment], np.ndarray]:
  """Reads the segments and ratings (mean z) of one pair and split."""
  rows = [
    row
    for row in _rows(path, quoting=csv.QUOTE_NONE)
    if row['lp'] == pair and row['split'] == split
  ]
  segments = [Segment(row['mt'], source=row['src']) for row in rows]
  return segments, np.array([float(row['z_mean']) for row in rows])


def read_wmt(
  path: str, pair: str, year: str
) -> tuple[list[Segment], np.ndarray]:
  """Reads the segments and ratings (DA, z) of one pair and year."""
  rows = [
    row for row in _rows(path) if row['lp'] == pair and row['year'] == year
  ]
  segments = [
    Segment(row['hyp'], source=row['src'], references=(row['ref'],))
    for row in rows
  ]
  return segments, np.array([float(row['da_z']) for row in rows])


def columns_of(
  folder: Path, segments: Sequence[Segment]
) -> dict[str, np.ndarray]:
  """The scores of each part, and of the baselines."""
  parts = uscore.load(folder)
  metric = registry.load(folder, weights='uniform')
  columns = {
    name: np.asarray(values, np.float64)
    for name, values in metric.score_segments(segments).components.items()
    if name != 'word'
  }
  others: dict[str, dict[str, Any]] = {
    'wmd, no map': {'metric': 'wmd', 'layer': parts.layer},
    'cosine, no rounds': {'metric': 'cosine'},
  }
  if segments[0].references:
    others['bertscore'] = {'metric': 'bertscore'}
    chrf = registry.load('chrf').score_segments(segments)
    columns['chrf'] = np.asarray(chrf.values, np.float64)
  for name, options in others.items():
    scores = registry.load(parts.encoder, **options).score_segments(segments)
    columns[name] = np.asarray(scores.values, np.float64)
  return columns


def combined(
  columns: Mapping[str, np.ndarray], weights: uscore.Weights
) -> tuple[np.ndarray, np.ndarray]:
  """The word-based score and the complete one, equations 3 and 6."""
  word = sum(
    weight * columns[name]
    for name in ('wmd', 'pseudo', 'lm')
    if (weight := getattr(weights, name))
  )
  if weights.word == 1:
    return word, word
  return word, weights.word * word + (1 - weights.word) * columns['sentence']


def mixtures(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The combinations of the folder's parts."""
  found: dict[str, np.ndarray] = {}
  if columns.keys() >= _ALL_PARTS:
    for name, weights in (
      ('UScore', 'paper'),
      ('UScore+', 'plus'),
      ('UScore++', 'uniform'),
    ):
      word, whole = combined(columns, uscore.WEIGHTS[weights])
      found |= {f'{name}, words': word, name: whole}
  for name, shares in _SHARES.items():
    if columns.keys() >= set(name.split(', ')):
      found[name] = combined(columns, shares)[1]
  return found


def compare(
  columns: Mapping[str, np.ndarray], ratings: np.ndarray
) -> dict[str, dict[str, float]]:
  """Compares distance and sentence together with each other column.

  Returns:
    By column: the difference in correlation, the ends of its 95% interval, and
    the one-sided p; see `bootstrap.Comparison`.
  """
  draws = bootstrap.bootstrap_pearson(
    ratings[None], {name: values[None] for name, values in columns.items()}
  )
  found = {}
  for name in draws.names:
    if name != 'wmd, sentence':
      result = draws.compare('wmd, sentence', name)
      found[name] = {
        'difference': round(result.difference, 4),
        'low': round(result.low, 4),
        'high': round(result.high, 4),
        'p': round(result.p_value, 4),
      }
  return found


def heat_map(
  columns: Mapping[str, np.ndarray], ratings: np.ndarray
) -> np.ndarray:
  """Pearson's r, [w_lm, w_pseudo]; NaN if their sum is above 1."""
  found = np.full((_STEPS, _STEPS), np.nan)
  shares = np.linspace(0, 1, _STEPS)
  for row, lm in enumerate(shares):
    for column, pseudo in enumerate(shares[: _STEPS - row]):
      values = (
        (1 - lm - pseudo) * columns['wmd']
        + pseudo * columns['pseudo']
        + lm * columns['lm']
      )
      found[row, column] = correlation.pearson(values, ratings)
  return found


def draw(found: np.ndarray, title: str, path: str) -> None:
  """Draws the heat map, with values in hundredths."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(6.4, 5.4), layout='constrained')
  axes = figure.add_subplot()
  image = axes.imshow(found, origin='lower', cmap='viridis')
  middle = np.nanmean([np.nanmin(found), np.nanmax(found)])
  for (row, column), value in np.ndenumerate(found):
    if np.isfinite(value):
      axes.text(
        column,
        row,
        f'{round(100 * value)}',
        ha='center',
        va='center',
        color='white' if value < middle else 'black',
        fontsize=8,
      )
  ticks = [f'{share:.1f}' for share in np.linspace(0, 1, _STEPS)]
  axes.set_xticks(range(_STEPS), ticks)
  axes.set_yticks(range(_STEPS), ticks)
  axes.set_xlabel('weight of pseudo references')
  axes.set_ylabel('weight of the language model')
  axes.set_title(title)
  figure.colorbar(image, label="Pearson's r")
  figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the measurement; returns the exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('folder', type=Path, help='a UScore metric')
  data = parser.add_mutually_exclusive_group(required=True)
  data.add_argument('--mlqe', metavar='FILE', help='mlqe-pe_da.tsv.gz')
  data.add_argument('--wmt', metavar='FILE', help='wmt15-17_da.tsv.gz')
  parser.add_argument('--pair', required=True, help='for example ro-en')
  parser.add_argument('--split', default='test20', help='of MLQE-PE')
  parser.add_argument('--year', default='2017', help='of WMT')
  parser.add_argument('-o', '--output', required=True, help='JSON')
  parser.add_argument('--plot', metavar='FILE', help='.png, .svg or .pdf')
  args = parser.parse_args(arguments)
  if args.mlqe:
    segments, ratings = read_mlqe(args.mlqe, args.pair, args.split)
  else:
    segments, ratings = read_wmt(args.wmt, args.pair, args.year)
  if not segments:
    parser.error(f'--pair {args.pair}: not in the file')
  columns = columns_of(args.folder, segments)
  columns |= mixtures(columns)
  found = {
    name: round(float(correlation.pearson(values, ratings)), 4)
    for name, values in columns.items()
  }
  whole = columns.keys() >= _ALL_PARTS
  if args.plot and not whole:
    parser.error(f'--plot: {args.folder} does not have all parts')
  heat = heat_map(columns, ratings) if whole else np.zeros((0, 0))
  versus = compare(columns, ratings) if 'wmd, sentence' in columns else {}
  with files.write_atomically(Path(args.output)) as out:
    json.dump(
      {
        'pair': args.pair,
        'segments': len(segments),
        'pearson': found,
        'wmd, sentence against': versus,
        'deviation': {
          name: round(float(np.std(values)), 5)
          for name, values in columns.items()
        },
        'heat_map': [
          [round(float(r), 4) if np.isfinite(r) else None for r in row]
          for row in heat
        ],
      },
      out,
      indent=2,
    )
    out.write('\n')
  for name, value in found.items():
    against = versus.get(name, {}).get('p')
    p = f'  p {against:.4f}' if against is not None else ''
    print(f'{name:<20}{value:8.4f}{p}')
  if args.plot:
    draw(heat, f'{args.pair}, {len(segments)} segments', args.plot)
  return 0


if __name__ == '__main__':
  sys.exit(main())
