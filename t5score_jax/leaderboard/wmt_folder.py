"""Exports and imports boards in the folder layout of WMT's metrics tasks.

    sources/LP.txt                            inputs
    documents/LP.docs                         domain and document of each input
    references/LP.refA.txt                    references, by label
    system-outputs/LP/SYSTEM.txt              outputs
    human-scores/LP.NAME.seg.score            SYSTEM<tab>rating; None if missing
    metric-scores/LP/METRIC-refA.seg.score    SYSTEM<tab>score; `src` for a
                                              metric without references;
                                              several labels joined by `.`
    metric-scores/LP/METRIC-refA.sys.score    means

Each line is a segment. The layout has no ids: they become line numbers. It has
no descriptions, executables or versions either; `folders.py` keeps those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.data import files, numbers, tables
from t5score_jax.leaderboard import changes, ranking
from t5score_jax.leaderboard.entries import (
  GIVEN,
  BoardError,
  Generator,
  human_pattern,
  imported_metric,
)
from t5score_jax.leaderboard.store import Store


def write(store: Store, folder: Path, pair: str) -> None:
  """Writes a board into an existing, empty folder.

  Args:
    store: The board.
    folder: The folder.
    pair: The language pair, the first part of all names.

  Raises:
    BoardError: The pair contains characters that file names cannot have.
    files.RecordError: A text contains a line end.
  """
  if not re.fullmatch(r'[\w-]+', pair):
    raise BoardError(f'{pair!r} is not a language pair; set --pair')
  for name in ('sources', 'documents', 'references', 'human-scores'):
    (folder / name).mkdir()
  for name in ('system-outputs', 'metric-scores'):
    (folder / name / pair).mkdir(parents=True)
  sources, generators = store.sources(), store.generators()
  if sources is not None:
    files.write_lines(folder / 'sources' / f'{pair}.txt', sources)
  files.write_lines(
    folder / 'documents' / f'{pair}.docs',
    (f'all\t{key}' for key in store.ids()),
  )
  for label, texts in store.references().items():
    files.write_lines(folder / 'references' / f'{pair}.ref{label}.txt', texts)
  for generator in generators:
    outputs = store.outputs(generator.id)
    if outputs is not None:
      files.write_lines(
        folder / 'system-outputs' / pair / f'{generator.name}.txt', outputs
      )
  for name in store.rating_names():
    columns = dict(store.ratings(name))
    path = folder / 'human-scores' / f'{pair}.{name}.seg.score'
    files.write_lines(path, _lines(generators, columns, store.size()))
  for metric in store.metrics():
    sets = {s for m, _, s in store.scored() if m == metric.id}
    for reference_set in sorted(sets):
      columns = dict(store.scores(metric.id, reference_set))
      stem = f'{metric.name}-{_suffix(reference_set)}'
      path = folder / 'metric-scores' / pair / f'{stem}.seg.score'
      files.write_lines(path, _lines(generators, columns, store.size()))
      means = {g: ranking.means(x[None])[0] for g, x in columns.items()}
      files.write_lines(
        path.with_name(f'{stem}.sys.score'),
        (f'{g.name}\t{means.get(g.id)}' for g in generators),
      )


def _suffix(reference_set: str) -> str:
  if reference_set == GIVEN:
    return 'src'
  return '.'.join(f'ref{label}' for label in reference_set.split('+'))


def _lines(
  generators: Sequence[Generator], columns: dict[int, np.ndarray], count: int
) -> Iterator[str]:
  empty = np.full(count, np.nan)
  for generator in generators:
    for value in columns.get(generator.id, empty).tolist():
      yield f'{generator.name}\t{"None" if value != value else repr(value)}'


def read(
  store: Store,
  folder: Path,
  name: str,
  task: str,
  human: str | None,
  pair: str | None,
  humans: str,
  negate: Sequence[str] = (),
) -> None:
  """Fills a new board from a folder.

  Args:
    store: The new board.
    folder: The folder.
    name: The name of the board.
    task: The task of the generators.
    human: Name of the default ratings; None for the first by name.
    pair: The language pair; None if there is only one.
    humans: Regular expression for names of human systems.
    negate: Metrics where lower is better.

  Raises:
    BoardError: The pair is missing or ambiguous, a metric to negate is
      missing, or the regular expression is invalid.
    files.RecordError: The number of lines and of segments differ.
  """
  pattern = human_pattern(humans)
  pairs = sorted(p.name for p in (folder / 'system-outputs').iterdir())
  if pair is None and len(pairs) != 1:
    raise BoardError(f'set --pair to a language pair: {", ".join(pairs)}')
  pair = pair or pairs[0]
  if pair not in pairs:
    raise BoardError(f'no language pair {pair!r}; there are {", ".join(pairs)}')
  outputs = {
    path.name.removesuffix('.txt'): files.read_lines(path)
    for path in sorted((folder / 'system-outputs' / pair).glob('*.txt'))
  }
  if not outputs:
    raise BoardError(f'{folder}: no system-outputs/{pair}/SYSTEM.txt')
  count = len(next(iter(outputs.values())))
  sources = folder / 'sources' / f'{pair}.txt'
  references = {
    path.name.removeprefix(f'{pair}.').removesuffix('.txt'): path
    for path in sorted((folder / 'references').glob(f'{pair}.*.txt'))
  }
  with store.transaction():
    changes.initialise(
      store,
      name,
      task or pair,
      [str(n) for n in range(1, count + 1)],
      files.read_lines(sources) if sources.is_file() else None,
      {
        label.removeprefix('ref') or label: files.read_lines(path)
        for label, path in references.items()
      },
      human,
    )
    generators = {
      system: changes.add_generator(
        store,
        Generator(system, human=pattern.match(system) is not None),
        texts,
      )
      for system, texts in outputs.items()
    }
    for path in sorted((folder / 'human-scores').glob(f'{pair}.*.seg.score')):
      rating = path.name.removeprefix(f'{pair}.').removesuffix('.seg.score')
      changes.add_ratings(store, rating, _columns(path, generators, count))
    if human is not None:
      changes.set_human(store, human)
    _read_metrics(store, folder / 'metric-scores' / pair, generators, negate)
    known = [metric.name for metric in store.metrics()]
    for metric in negate:
      if metric not in known:
        raise BoardError(
          f'no metric {metric!r} to negate;' + tables.suggest(metric, known)
        )


def _read_metrics(
  store: Store, folder: Path, generators: dict[str, int], negate: Sequence[str]
) -> None:
  known: dict[str, int] = {}
  labels = store.references()
  for path in sorted(folder.glob('*.seg.score')):
    metric, _, suffix = path.name.removesuffix('.seg.score').rpartition('-')
    if not metric:
      raise BoardError(
        f'{path}: the file name must be METRIC-REFERENCES.seg.score'
      )
    reference_set = GIVEN
    if suffix != 'src':
      parts = [part.removeprefix('ref') or part for part in suffix.split('.')]
      # Scores with references that the board lacks are still comparable.
      reference_set = '+'.join(parts) if set(parts) <= set(labels) else GIVEN
    if metric not in known:
      known[metric] = changes.add_metric(
        store, imported_metric(metric, metric in negate)
      )
    sign = -1.0 if metric in negate else 1.0
    columns = _columns(path, generators, store.size())
    changes.set_scores(
      store,
      ((known[metric], key, sign * column) for key, column in columns),
      reference_set,
    )


def _columns(
  path: Path, generators: dict[str, int], count: int
) -> list[tuple[int, np.ndarray]]:
  """Reads SYSTEM<tab>number lines: (generator id, values [K]) per system."""
  cells: dict[str, list[float]] = {}
  for number, line in enumerate(files.read_lines(path), 1):
    system, _, cell = line.partition('\t')
    value = np.nan if cell == 'None' else numbers.parse(cell)
    if value is None:
      raise files.RecordError(
        f'{cell[:40]!r} is neither a finite number nor None',
        path=path,
        line=number,
      )
    cells.setdefault(system, []).append(value)
  result = []
  for system, values in cells.items():
    # Scores of references that are not systems are ignored, as WMT does.
    if system not in generators:
      continue
    if len(values) != count:
      raise files.RecordError(
        f'{len(values)} scores of {system!r} for {count} segments', path=path
      )
    column = np.array(values)
    if not np.isnan(column).all():
      result.append((generators[system], column))
  return result
