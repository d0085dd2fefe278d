r"""Measures P@1 of sentence matching over rounds: UScore's Figure 3.

    python scripts/reproduce/measure_uscore.py matching mono/ \
        -m e5-small --layers 0,4,12 -o matching.json --plot matching.png
    python scripts/reproduce/measure_uscore.py contrast mono/ \
        -m e5-small --layer 4 --work rounds -o matching.json --plot matching.png

`mono/` holds multi30k.train.{de,en}.gz and ntrex.{deu,nep,sin,eng-US}.txt.gz,
aligned by line. Each source sentence of a test set is matched with one of the
targets: by the cosine of word centroids, by their ratio margin, and by the
word mover's distance among the 20 nearest centroids. P@1 is the share of
sentences whose match is their translation. A map is estimated in rounds as in
`t5score remap` (Belouadi and Eger 2023, section 4.2): mine by distance, align
the words of the best pairs, estimate; iteration 0 has no map.

`contrast` is the lower half of the figure: the first layers of the encoder are
trained in rounds as in `t5score contrast` (section 3.2), and sentences are
matched by the cosine of their vectors. Both add to the same results file, and
the plot shows the available results.

The halves on which maps and encoders are trained are not translations of each
other, and do not contain test sentences:

    de-en         Multi30k, German lines 1 to 2,000, English 14,501 to 16,500;
                  tested on NTREX, 1,997 lines
    ne-en, si-en  NTREX, lines 1 to 700 and English lines 701 to 1,400; tested
                  on lines 1,401 to 1,997
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_METHODS = ('umd', 'clp')
_CONTRAST = 'contrast'
_MEASURES = ('cosine', 'margin', 'distance')
# The paper's numbers of neighbours, by centroid and for the margin.
_NEAREST, _AROUND = 20, 5


@dataclasses.dataclass(frozen=True)
class Task:
  """The training halves and the test set of a language pair.

  Attributes:
    train: The files of both halves, and their lines.
    test: Files of both sides, and their lines.
  """

  train: tuple[str, str, slice, slice]
  test: tuple[str, str, slice]


def _within_ntrex(language: str) -> Task:
  files = f'ntrex.{language}.txt.gz', 'ntrex.eng-US.txt.gz'
  return Task(
    (*files, slice(0, 700), slice(700, 1400)), (*files, slice(1400, 1997))
  )


TASKS = {
  'de-en': Task(
    (
      'multi30k.train.de.gz',
      'multi30k.train.en.gz',
      slice(0, 2000),
      slice(14500, 16500),
    ),
    ('ntrex.deu.txt.gz', 'ntrex.eng-US.txt.gz', slice(0, 1997)),
  ),
  'ne-en': _within_ntrex('nep'),
  'si-en': _within_ntrex('sin'),
}


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description="Measures UScore's parts on data with gold answers."
  )
  parts = result.add_subparsers(dest='part', required=True)
  matching = parts.add_parser('matching', help='P@1 over rounds of remapping')
  contrast = parts.add_parser(
    'contrast', help='P@1 over rounds of contrastive training'
  )
  for part in (matching, contrast):
    part.add_argument('mono', type=Path, help='folder of the corpora')
    part.add_argument(
      '-m',
      '--model',
      default='e5-small',
      help='name or folder of an encoder (default: %(default)s)',
    )
    part.add_argument('--pairs', default=','.join(TASKS), help='de-en,...')
    part.add_argument(
      '-o',
      '--output',
      type=Path,
      required=True,
      help='JSON file of results, which grows with each call',
    )
    part.add_argument('--plot', type=Path, help='.png, .svg or .pdf')
  matching.add_argument('--layers', default='0,4,12', help='layers to compare')
  matching.add_argument(
    '--rounds',
    type=int,
    default=5,
    help='of mining and estimating (default: %(default)s)',
  )
  matching.add_argument(
    '--share',
    type=float,
    default=0.05,
    help='pairs that a map is estimated from, of the source sentences '
    '(default and paper: %(default)s); at least 100',
  )
  contrast.add_argument('--layer', type=int, help='keep the first N layers')
  contrast.add_argument(
    '--work',
    type=Path,
    required=True,
    help='folder of the encoders of all rounds',
  )
  for name, default in (
    ('rounds', 3),
    ('best', 300),
    ('batch-size', 64),
    ('max-length', 64),
    ('epochs', 3.0),
    ('learning-rate', 1e-4),
  ):
    contrast.add_argument(
      f'--{name}',
      type=type(default),
      default=default,
      help=f'see t5score contrast (default: {default})',
    )
  return result


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  try:
    (_matching if args.part == 'matching' else _contrast)(args)
  except (ValueError, OSError, ImportError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


def _matching(args: argparse.Namespace) -> None:
  from t5score_jax.checkpoints import kinds
  from t5score_jax.checkpoints.formats.huggingface import encoders
  from t5score_jax.crosslingual import alignment
  from t5score_jax.inference import encoding

  names = _names(args)
  bundle = encoders.load_encoder(kinds.folder(args.model))
  depth = bundle.config.num_layers
  layers = encoding.resolve_layers(
    [int(layer) for layer in args.layers.split(',')], depth
  )
  # Words are aligned by the middle layer, or by their own layer if it is lower.
  middle = alignment.default_layer(depth)
  encoder = encoding.TextEncoder(bundle, [*layers, middle])
  corpora = Corpora(args.mono, encoder)
  results = _results(args)
  done = {
    (row['pair'], row['layer']) for row in results if row['method'] != _CONTRAST
  }
  for name in names:
    for layer in layers:
      if (name, layer) in done:
        continue
      for row in _rounds(corpora, TASKS[name], layer, min(layer, middle), args):
        results.append({'pair': name, 'layer': layer, **row})
        _save(results, bundle.name, args)
  if args.plot:
    _plot(results, args.plot)


def _contrast(args: argparse.Namespace) -> None:
  from t5score_jax.crosslingual import filters
  from t5score_jax.fitting import contrastive

  results = _results(args)
  training = contrastive.Training(
    learning_rate=args.learning_rate,
    batch_size=args.batch_size,
    epochs=args.epochs,
    max_length=args.max_length,
  )
  for name in _names(args):
    if (name, _CONTRAST) in {(row['pair'], row['method']) for row in results}:
      continue
    task = TASKS[name]
    texts = Corpora(args.mono, None).texts
    halves = []
    for file, lines in zip(task.train[:2], task.train[2:], strict=True):
      half = texts(file, lines)
      # News has longer sentences than the paper mines.
      kept = filters.sentences(half, longest=60)
      halves.append([half[line] for line in kept.lines])
    args.work.mkdir(parents=True, exist_ok=True)
    done = contrastive.rounds(
      args.work / name,
      halves[0],
      halves[1],
      args.model,
      training,
      contrastive.Mining(args.rounds, args.best),
      layer=args.layer,
      held_out=(
        texts(task.test[0], task.test[2]),
        texts(task.test[1], task.test[2]),
      ),
      say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    for one in done:
      assert one.precision is not None
      results.append(
        {
          'pair': name,
          'layer': args.layer,
          'method': _CONTRAST,
          'round': one.number,
          'sentence_pairs': one.pairs,
          'cosine': one.precision[0],
          'cosine back': one.precision[1],
        }
      )
      _save(results, args.model, args)
  if args.plot:
    _plot(results, args.plot)


def _names(args: argparse.Namespace) -> list[str]:
  names: list[str] = args.pairs.split(',')
  if unknown := set(names) - set(TASKS):
    raise ValueError(f'--pairs {unknown.pop()}: use {", ".join(TASKS)}')
  return names


def _results(args: argparse.Namespace) -> list[dict[str, Any]]:
  """The rows of an earlier run, which this run continues."""
  if not args.output.exists():
    return []
  rows: list[dict[str, Any]] = json.loads(args.output.read_text('utf-8'))[
    'results'
  ]
  return rows


def _save(
  results: list[dict[str, Any]], model: str, args: argparse.Namespace
) -> None:
  """Prints the last row and writes all."""
  from t5score_jax.data import files

  print(json.dumps(results[-1]), flush=True)
  with files.write_atomically(args.output, 'w') as out:
    json.dump({'model': model, 'results': results}, out, indent=1)


class Corpora:
  """Vectors of the words of lines of files, each encoded once.

  Args:
    folder: Where the files are.
    encoder: Gives the states of its layers.
  """

  def __init__(self, folder: Path, encoder: Any):
    self._folder, self._encoder = folder, encoder
    self._texts: dict[str, list[str]] = {}
    self._words: dict[tuple[str, int, int], list[np.ndarray]] = {}

  def texts(self, name: str, lines: slice) -> list[str]:
    """Lines of a file."""
    from t5score_jax.data import files

    if name not in self._texts:
      found = files.read_lines(self._folder / name)
      self._texts[name] = [text.strip() for text in found]
    return self._texts[name][lines]

  def words(self, name: str, lines: slice, layer: int) -> list[np.ndarray]:
    """Unnormalized states of each line's words in a layer, [words, width]."""
    from t5score_jax.crosslingual import words

    key = name, lines.start, lines.stop
    if key not in self._words:
      texts = self.texts(name, lines)
      if not texts:
        raise ValueError(f'{name}: there is no line {lines.start + 1}')
      found = [np.zeros(0, np.float32)] * len(texts)
      for index, encoded, states in words.encode(self._encoder, texts):
        found[index] = states[:, words.places(encoded)]
      self._words[key] = found
    place = self._encoder.layers.index(layer)
    return [states[place] for states in self._words[key]]


def _rounds(
  corpora: Corpora,
  task: Task,
  layer: int,
  align_layer: int,
  args: argparse.Namespace,
) -> list[dict[str, Any]]:
  """P@1 before and after each round of both methods."""
  from t5score_jax.crosslingual import mining, remap, words

  def sides(layer: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    source, target, *lines = task.train
    return (
      corpora.words(source, lines[0], layer),
      corpora.words(target, lines[1], layer),
    )

  x, y = (list(map(words.unit, side)) for side in sides(layer))
  x_align, y_align = sides(align_layer)
  test = [
    list(map(words.unit, corpora.words(name, task.test[2], layer)))
    for name in task.test[:2]
  ]
  texts = (
    corpora.texts(task.train[0], task.train[2]),
    corpora.texts(task.train[1], task.train[3]),
  )
  results: list[dict[str, Any]] = [
    {'method': None, 'round': 0, **_precision(*test)}
  ]
  for method in _METHODS:
    chosen: remap.Map | None = None
    for number in range(1, args.rounds + 1):
      start = time.perf_counter()
      mapped = x if chosen is None else list(map(chosen, x))
      pairs = mining.by_distance(mapped, y, _NEAREST)
      pairs = _different(pairs, *texts)
      pairs = pairs.first(max(100, round(args.share * len(x))))
      if not len(pairs):
        raise ValueError('no pairs are mined: nothing to estimate a map from')
      aligned = _aligned(pairs, x, y, x_align, y_align)
      chosen = remap.estimate(*aligned, method)
      results.append(
        {
          'method': method,
          'round': number,
          'sentence_pairs': len(pairs),
          'word_pairs': chosen.pairs,
          **_precision(list(map(chosen, test[0])), test[1]),
          'seconds': round(time.perf_counter() - start, 1),
        }
      )
  return results


def _different(pairs: Any, sources: list[str], targets: list[str]) -> Any:
  """Drops pairs that are near copies."""
  from t5score_jax.crosslingual import filters

  return pairs.take(
    filters.pairs(
      [sources[n] for n in pairs.sources], [targets[n] for n in pairs.targets]
    )
  )


def _aligned(
  pairs: Any,
  x: list[np.ndarray],
  y: list[np.ndarray],
  x_align: list[np.ndarray],
  y_align: list[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
  """Unit vectors of aligned words, [pairs, width] for each side."""
  from t5score_jax.crosslingual import alignment

  left, right = [], []
  for source, target in zip(pairs.sources, pairs.targets, strict=True):
    places = alignment.align(x_align[source], y_align[target])
    left.append(x[source][places[:, 0]])
    right.append(y[target][places[:, 1]])
  return np.concatenate(left), np.concatenate(right)


def _precision(
  sources: list[np.ndarray], targets: list[np.ndarray]
) -> dict[str, float]:
  """P@1 by each measure; the match of source n is target n."""
  from t5score_jax.crosslingual import mining, neighbours, transport, words

  x_means, y_means = (
    np.stack([transport.centroid(one) for one in side])
    for side in (sources, targets)
  )
  x, y = (words.unit(side).astype(np.float32) for side in (x_means, y_means))
  forward, rows = neighbours.nearest(x, y, _AROUND)
  backward, _ = neighbours.nearest(y, x, _AROUND)
  margins = mining.ratio_margin(
    forward, forward.mean(1)[:, None], backward.mean(1)[rows]
  )
  candidates = mining.nearest_centroids(x_means, y_means, _NEAREST)

  def nearest(n: int) -> int:
    return mining.nearest_exactly(
      sources[n], [(int(c), targets[c]) for c in candidates[n]]
    )[0]

  found = {
    'cosine': rows[:, 0],
    'margin': rows[np.arange(len(rows)), margins.argmax(1)],
    'distance': np.array(
      list(transport.in_threads(nearest, range(len(sources))))
    ),
  }
  gold = np.arange(len(sources))
  return {name: float(np.mean(best == gold)) for name, best in found.items()}


def _plot(results: list[dict[str, Any]], path: Path) -> None:
  """P@1 over rounds: a column per language pair, a row per layer."""
  from matplotlib.figure import Figure

  remapped = [row for row in results if row['method'] != _CONTRAST]
  trained = [row for row in results if row['method'] == _CONTRAST]
  pairs = [name for name in TASKS if name in {row['pair'] for row in results}]
  layers = sorted({row['layer'] for row in remapped})
  lines = len(layers) + bool(trained)
  figure = Figure(
    figsize=(3.2 * len(pairs), 0.8 + 2.2 * lines), layout='constrained'
  )
  axes = figure.subplots(lines, len(pairs), squeeze=False)
  for column, pair in enumerate(pairs):
    for line, layer in enumerate(layers):
      here = [r for r in remapped if (r['pair'], r['layer']) == (pair, layer)]
      if here:
        axes[line, column].set_title(f'{pair}, layer {layer}, maps', fontsize=9)
        _draw_maps(axes[line, column], here)
    here = [row for row in trained if row['pair'] == pair]
    if here:
      axis = axes[-1, column]
      layer = here[0]['layer']
      depth = 'all layers' if layer is None else f'layers 1 to {layer}'
      axis.set_title(f'{pair}, {depth}, contrastive', fontsize=9)
      for place, (measure, label) in enumerate(
        (('cosine', 'source to target'), ('cosine back', 'back'))
      ):
        axis.plot(
          [row['round'] for row in here],
          [row[measure] for row in here],
          color=f'C{4 + place}',
          marker='.',
          label=label,
        )
      axis.legend(fontsize=7)
  for axis in axes.flat:
    axis.set_visible(axis.has_data())
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
  for axis in axes[-1]:
    axis.set_xlabel('round')
  for axis in axes[:, 0]:
    axis.set_ylabel('P@1')
  handles, labels = axes[0, 0].get_legend_handles_labels()
  figure.legend(handles, labels, loc='outside lower center', ncols=3)
  figure.savefig(path, dpi=110)


def _draw_maps(axis: Any, rows: list[dict[str, Any]]) -> None:
  for color, measure in enumerate(_MEASURES):
    for method, dashes in zip(_METHODS, ('-', '--'), strict=True):
      here = [row for row in rows if row['method'] in (None, method)]
      axis.plot(
        [row['round'] for row in here],
        [row[measure] for row in here],
        dashes,
        color=f'C{color}',
        marker='.',
        label=f'{measure}, {method.upper()}',
      )


if __name__ == '__main__':
  sys.exit(main())
