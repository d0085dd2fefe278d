r"""Times and checks word mover's distances and the mining of sentence pairs.

    python benchmarks/crosslingual.py distances ntrex.deu.txt.gz \
      ntrex.eng-US.txt.gz --work work -o distances.json
    python benchmarks/crosslingual.py mining multi30k.train.de.gz \
      multi30k.train.en.gz --work work -o mining.json

The files are aligned by line: that is the gold answer of mining. Encoded texts
are kept in --work, and the same command resumes.

`distances`: 1,000 pairs of translations and 1,000 random pairs. What is timed:
the library's exact distances of all pairs; a plain loop over POT's `dist` and
`emd2`; the same with both texts encoded pair by pair, and the metric from texts
to scores, on the first --encoded pairs; Sinkhorn's; and, with --peer, the word
mover's distance and ratio margin of the published program (an interpreter with
torch, pyemd and faiss-cpu, and a checkout of
github.com/potamides/unsupervised-metrics).

`mining`: encoding, search by faiss and by JAX, exact and approximate, on
growing parts of the corpora, memory, recall against brute force, precision,
recall and F1 of the pairs against the lines; mining by distance on smaller
parts, with the share of candidates that need no exact distance. Costs of
larger corpora are calculated from the slopes.

Programs run in turns; medians over --rounds are reported, in seconds of the
clock and of the processor: where cores are shared, only the latter compare.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mining_figures
import numpy as np
from measuring import Clock, Memory

from t5score_jax.commands._usage import positive

_PEER = pathlib.Path(__file__).with_name('unsupervised_metrics.py')


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description="Times word mover's distances and mining."
  )
  parts = result.add_subparsers(dest='part', required=True)
  for name in ('distances', 'mining'):
    part = parts.add_parser(name)
    part.add_argument('sources', help='one sentence per line')
    part.add_argument('targets', help='their translations, line by line')
    part.add_argument(
      '-m',
      '--model',
      default='e5-small',
      help='name or folder of an encoder (default: %(default)s)',
    )
    part.add_argument(
      '--work',
      type=pathlib.Path,
      required=True,
      help='folder of what is kept between calls',
    )
    part.add_argument(
      '-o',
      '--output',
      type=pathlib.Path,
      required=True,
      help='JSON file of the results',
    )
    part.add_argument(
      '--rounds',
      type=positive,
      default=3,
      help='turns, whose medians are reported (default: %(default)s)',
    )
    part.add_argument(
      '--peer',
      nargs=2,
      metavar=('PYTHON', 'FOLDER'),
      help="an interpreter and the published program's checkout",
    )
    if name == 'distances':
      part.add_argument(
        '--pairs',
        type=positive,
        default=1000,
        help='pairs whose distance is taken (default: %(default)s)',
      )
      part.add_argument(
        '--encoded', type=positive, default=100, help='pairs that are encoded'
      )
    else:
      part.add_argument(
        '--sizes',
        default='3625,7250,14500,29000',
        help='numbers of sentences, by cosine (default: %(default)s)',
      )
      part.add_argument(
        '--distance_sizes',
        default='500,1000,2000',
        help='numbers of sentences, by distance (default: %(default)s)',
      )
  return result


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  try:
    args.work.mkdir(parents=True, exist_ok=True)
    run = _distances if args.part == 'distances' else _mining
    results = run(args)
    args.output.write_text(json.dumps(results, indent=1) + '\n', 'utf-8')
  except (ValueError, OSError, ImportError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


def _read(args: argparse.Namespace) -> tuple[list[str], list[str]]:
  from t5score_jax.data import files

  sides = [
    [text.strip() for text in files.read_lines(path)]
    for path in (args.sources, args.targets)
  ]
  if len(sides[0]) != len(sides[1]):
    raise ValueError(
      f'{args.sources}: {len(sides[0])} lines, but {args.targets} has '
      f'{len(sides[1])}; give files that are aligned by line'
    )
  return sides[0], sides[1]


def _encoder(args: argparse.Namespace) -> Any:
  from t5score_jax.checkpoints import kinds
  from t5score_jax.checkpoints.formats.huggingface import encoders
  from t5score_jax.inference import encoding

  bundle = encoders.load_encoder(kinds.folder(args.model))
  return encoding.TextEncoder(bundle, [-1])


def _show(name: str, value: Any) -> None:
  print(f'{name}: {json.dumps(value)}', flush=True)


# Distances.


def _distances(args: argparse.Namespace) -> dict[str, Any]:
  from t5score_jax.crosslingual import corpus

  texts = [side[: args.pairs] for side in _read(args)]
  encoder = _encoder(args)
  x, y = (
    list(corpus.WordVectors(args.work, name, side, encoder))
    for name, side in zip(('pairs-x', 'pairs-y'), texts, strict=True)
  )
  order = np.random.default_rng(0).permutation(len(y))
  results: dict[str, Any] = {'pairs': len(x), 'model': args.model}
  for kind, other in (
    ('translations', y),
    ('random', [y[n] for n in order]),
  ):
    results[kind] = _transport(x, other, args)
    _show(kind, results[kind])
  count = min(args.encoded, len(x))
  results['encoded'] = _end_to_end(*texts, count, encoder, args)
  _show('encoded', results['encoded'])
  return results


def _transport(
  x: list[np.ndarray], y: list[np.ndarray], args: argparse.Namespace
) -> dict[str, Any]:
  """Times and errors of distances from vectors."""
  from t5score_jax.crosslingual import transport

  kept = [n for n in range(len(x)) if len(x[n]) and len(y[n])]
  x, y = [x[n] for n in kept], [y[n] for n in kept]
  clock = Clock()
  # Imports and compiles.
  transport.entropic(x, y), transport.distances(x[:1], y[:1])
  for _ in range(args.rounds):
    ours = clock('library', lambda: transport.distances(x, y))
    plain = clock('plain loop', lambda: _plain(x, y))
    entropic = clock('entropic', lambda: transport.entropic(x, y))
    if args.peer:
      arrays = {
        'words_x': np.concatenate(x),
        'words_y': np.concatenate(y),
        'sizes_x': [len(one) for one in x],
        'sizes_y': [len(one) for one in y],
      }
      published = _published(args, arrays)
      clock.add(
        'published',
        float(published['distances_seconds']),
        float(published['distances_cpu']),
      )
  bounds = np.array(
    [
      transport.relaxed(transport.cost(*pair))
      for pair in zip(x, y, strict=True)
    ]
  )
  found = {
    'pairs': len(x),
    'times': clock.medians(),
    'largest difference from POT': float(np.abs(ours - plain).max()),
    'entropic error': _spread(entropic - ours),
    'relaxed bound error': _spread(bounds - ours),
  }
  if args.peer:
    found['largest difference from the published program'] = float(
      np.abs(ours - published['distances']).max()
    )
  return found


def _plain(x: list[np.ndarray], y: list[np.ndarray]) -> np.ndarray:
  """POT in a loop, as its users write it."""
  from t5score_jax.crosslingual import transport

  ot = transport.optimal_transport()
  return np.array(
    [
      ot.emd2([], [], ot.dist(a.astype(np.float64), b.astype(np.float64)))
      for a, b in zip(x, y, strict=True)
    ]
  )


def _spread(errors: np.ndarray) -> dict[str, float]:
  return {
    'mean': float(errors.mean()),
    'least': float(errors.min()),
    'largest': float(errors.max()),
  }


def _end_to_end(
  sources: list[str],
  targets: list[str],
  count: int,
  encoder: Any,
  args: argparse.Namespace,
) -> dict[str, Any]:
  """The metric, and a loop that encodes and compares pair by pair."""
  from t5score_jax.crosslingual import words
  from t5score_jax.metrics import registry

  metric = registry.load_metric('wmd', model=args.model)

  def loop() -> np.ndarray:
    found = []
    for pair in zip(sources[:count], targets[:count], strict=True):
      vectors = {
        index: words.vectors(encoded, states[-1])
        for index, encoded, states in words.encode(encoder, pair)
      }
      found.append(_plain([vectors[0]], [vectors[1]])[0])
    return 1 - np.array(found)

  def whole() -> np.ndarray:
    found = metric.score(targets[:count], sources=sources[:count])
    return np.asarray(found.values)

  loop(), whole()  # Compile.
  clock = Clock()
  for _ in range(args.rounds):
    scores = clock('metric', whole)
    plain = clock('pair by pair', loop)
  return {
    'pairs': count,
    'times': clock.medians(),
    'largest difference': float(np.abs(scores - plain).max()),
  }


def _published(
  args: argparse.Namespace, arrays: dict[str, Any]
) -> dict[str, np.ndarray]:
  """What the published program makes of arrays."""
  python, folder = args.peer
  job, result = args.work / 'job.npz', args.work / 'result.npz'
  np.savez(job, **arrays)
  done = subprocess.run(
    [python, str(_PEER), folder, str(job), str(result)],
    capture_output=True,
    text=True,
  )
  if done.returncode:
    lines = done.stderr.strip().splitlines() or ['no message']
    raise ValueError(f'{python} {_PEER.name}: {lines[-1]}')
  with np.load(result) as found:
    return dict(found)


# Mining.


def _mining(args: argparse.Namespace) -> dict[str, Any]:
  texts = _read(args)
  encoder = _encoder(args)
  results: dict[str, Any] = {'model': args.model, 'lines': len(texts[0])}
  vectors = []
  with Memory() as memory:
    for name, side in zip(('source', 'target'), texts, strict=True):
      shards, took = _encoded(args.work, name, side, encoder)
      vectors.append(np.concatenate([part for _, part in shards]))
      results[f'encode {name}s'] = took
      _show(f'encode {name}s', results[f'encode {name}s'])
  results['encoding memory'] = memory.peak
  results['margin'] = []
  for size in map(int, args.sizes.split(',')):
    results['margin'].append(_margin(*(v[:size] for v in vectors), args))
    _show('margin', results['margin'][-1])
  results['distance'] = []
  for size in map(int, args.distance_sizes.split(',')):
    results['distance'].append(_by_distance(texts, size, encoder, args))
    _show('distance', results['distance'][-1])
  results['calculated'] = list(mining_figures.larger_corpora(results))
  for row in results['calculated']:
    _show('calculated', row)
  return results


def _encoded(
  work: pathlib.Path, name: str, texts: list[str], encoder: Any
) -> tuple[Iterator[tuple[int, np.ndarray]], dict[str, float]]:
  """Sentence vectors, and how long they took when they were encoded."""
  from t5score_jax.crosslingual import corpus

  start, cpu = time.perf_counter(), time.process_time()
  shards = corpus.SentenceVectors(work, name, texts, encoder).shards()
  took = {
    'seconds': time.perf_counter() - start,
    'cpu': time.process_time() - cpu,
    'tokens': sum(len(one.ids) for one in encoder.tokenize(texts)),
  }
  # Of a run that resumes, the first one knows.
  note = work / f'{name}-encoding.json'
  if not note.exists():
    note.write_text(json.dumps(took), 'utf-8')
  return shards, json.loads(note.read_text('utf-8'))


def _margin(
  x: np.ndarray, y: np.ndarray, args: argparse.Namespace
) -> dict[str, Any]:
  """Search and pairing at one size."""
  from t5score_jax.crosslingual import mining, neighbours

  k = mining.MARGIN_NEIGHBOURS
  clock = Clock()
  found: dict[str, Any] = {'size': len(x), 'memory': {}, 'recall': {}}
  rows: dict[str, np.ndarray] = {}
  for turn in range(args.rounds + 1):
    for backend in neighbours.BACKENDS[1:]:
      run = lambda b=backend: neighbours.nearest(x, y, k, b)  # noqa: E731
      if not turn:
        run()  # Compiles.
        continue
      with Memory() as memory:
        rows[backend] = clock(backend, run)[1]
      found['memory'][backend] = memory.peak - memory.start
  sample = np.random.default_rng(0).permutation(len(x))[:1000]
  best = np.argsort(-(x[sample].astype(np.float64) @ y.T), 1)[:, :k]
  for backend, index in rows.items():
    hits = (index[sample][:, :, None] == best[:, None]).any(2).mean()
    found['recall'][backend] = float(hits)
  with Memory() as memory:
    pairs = clock(
      'search in both directions, pairs', lambda: mining.by_margin(x, y)
    )
  found['memory']['pairs'] = memory.peak - memory.start
  found |= {
    'times': clock.medians(),
    'gold': mining_figures.against_gold(pairs, len(x)),
  }
  if args.peer:
    found['published'] = _peer_margin(x, y, pairs, args)
  return found


def _peer_margin(
  x: np.ndarray, y: np.ndarray, pairs: Any, args: argparse.Namespace
) -> dict[str, Any]:
  """The published ratio margin, which mixes cosines and squared distances."""
  from t5score_jax.crosslingual import mining, neighbours

  k = mining.MARGIN_NEIGHBOURS
  published = _published(args, {'x': x, 'y': y, 'k': k})
  forward, rows = neighbours.nearest(x, y, k)
  backward, _ = neighbours.nearest(y, x, k)

  def margins(around_target: np.ndarray) -> np.ndarray:
    around = (forward.mean(1)[:, None] + around_target[rows]) / 2
    return forward / around

  # Equation 5, and the published formula: |x - y|^2 = 2 - 2 cos. Their sort
  # takes the largest of the nearest distances first; the mean is the same.
  equation = margins(backward.mean(1))
  theirs = margins((2 - 2 * backward).mean(1))
  gold = np.arange(len(x))
  first = equation.argmax(1)
  return {
    'seconds': float(published['margins_seconds']),
    'cpu': float(published['margins_cpu']),
    'largest difference from its formula': float(
      np.abs(theirs.max(1) - published['margins']).max()
    ),
    'its scores less equation 5': _spread(
      published['margins'] - equation.max(1)
    ),
    'correlation with equation 5': float(
      np.corrcoef(published['margins'], equation.max(1))[0, 1]
    ),
    'its P@1': float(np.mean(published['matches'] == gold)),
    'P@1 of equation 5': float(np.mean(rows[gold, first] == gold)),
    'same match': float(np.mean(published['matches'] == rows[gold, first])),
  }


def _by_distance(
  texts: tuple[list[str], list[str]],
  size: int,
  encoder: Any,
  args: argparse.Namespace,
) -> dict[str, Any]:
  """Mining by word mover's distance at one size."""
  from t5score_jax.crosslingual import corpus, mining, transport

  x, y = (
    list(corpus.WordVectors(args.work, f'{size}-{n}', side[:size], encoder))
    for n, side in enumerate(texts)
  )
  counted = _Counted(transport.exact)
  transport.exact = counted
  try:
    clock = Clock()
    with Memory() as memory:
      pairs = clock('mining', lambda: mining.by_distance(x, y))
  finally:
    transport.exact = counted.function
  candidates = size * min(mining.DISTANCE_NEIGHBOURS, size)
  return {
    'size': size,
    'times': clock.medians(),
    'memory': memory.peak - memory.start,
    'pruned': 1 - counted.calls / candidates,
    'gold': mining_figures.against_gold(pairs, size),
  }


class _Counted:
  def __init__(self, function: Callable[..., float]):
    self.function, self.calls = function, 0

  def __call__(self, *args: Any) -> float:
    self.calls += 1
    return self.function(*args)


if __name__ == '__main__':
  sys.exit(main())
