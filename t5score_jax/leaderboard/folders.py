"""Exports a board as a folder of plain files, and imports such folders.

The layout follows the original Billboards:

    board.json              descriptions of board, generators and metrics
    inputs.jsonl            id, source, references by label
    outputs/NAME.jsonl      ids and hypotheses of one generator
    ratings.tsv.gz          human ratings: system, seg_id, a column per name
    scores/SET.tsv.gz       scores with one set of references, in the layout of
                            the original tables: system, seg_id, ratings,
                            metrics
    programs/NAME           executables
    versions.jsonl          every version of the ensemble

Names are percent-encoded where necessary. `wmt_folder.py` has WMT's layout,
`layouts.py` single tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from t5score_jax.data import files, folders
from t5score_jax.leaderboard import (
  changes,
  ensemble,
  layouts,
  renewal,
  score_table,
  wmt_folder,
)
from t5score_jax.leaderboard.entries import (
  BoardError,
  Generator,
  Metric,
  check_free,
)
from t5score_jax.leaderboard.outputs import read_outputs
from t5score_jax.leaderboard.store import Store

_FORMAT = 't5score board 1'


def file_name(name: str) -> str:
  """Converts a name to a file name; percent-encoded where necessary."""
  quoted = urllib.parse.quote(name, safe=' +()[],')
  return '%2E' + quoted[1:] if quoted.startswith('.') else quoted


def export(
  store: Store,
  folder: str | os.PathLike[str],
  layout: str = 'billboard',
  pair: str | None = None,
) -> None:
  """Writes a board into a new folder.

  Args:
    store: The board.
    folder: The folder, which must not exist. It appears when complete.
    layout: 'billboard' or 'wmt'.
    pair: WMT's language pair; None for the board's name.

  Raises:
    BoardError: The folder exists, or a text does not fit WMT's format.
    OSError: A file cannot be written.
  """
  with new_folder(folder) as partial:
    if layout == 'wmt':
      wmt_folder.write(store, partial, pair or store.board().name)
    else:
      _write(store, partial)


@contextlib.contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
  """Yields a folder that gets its name if the block succeeds.

  Raises:
    BoardError: The name exists already, or its parent folder does not.
  """
  check_free(folder)
  with folders.new_folder(folder) as partial:
    yield partial


def _write(store: Store, folder: Path) -> None:
  board, ids = store.board(), store.ids()
  generators, metrics = store.generators(), store.metrics()
  for name in ('outputs', 'scores', 'programs'):
    (folder / name).mkdir()
  document = {
    'format': _FORMAT,
    'name': board.name,
    'task': board.task,
    'human': board.human,
    'references': list(store.references()),
    'roles': {
      name: {'generators': humans, 'references': references}
      for name, (humans, references) in store.roles().items()
    },
    'generators': [_entry(g, ('id', 'has_outputs')) for g in generators],
    'metrics': [_entry(m, ('id',)) for m in metrics],
  }
  files.write_lines(
    folder / 'board.json',
    json.dumps(document, indent=2, ensure_ascii=False).split('\n'),
  )
  _write_inputs(store, folder / 'inputs.jsonl', ids)
  for generator in generators:
    texts = store.outputs(generator.id)
    if texts is not None:
      _write_jsonl(
        folder / 'outputs' / f'{file_name(generator.name)}.jsonl',
        (
          {'id': key, 'hypothesis': text}
          for key, text in zip(ids, texts, strict=True)
        ),
      )
  for metric in metrics:
    program = store.program(metric.id)
    if program is not None:
      (folder / 'programs' / file_name(metric.name)).write_bytes(program)
  _write_numbers(store, folder, ids, generators, metrics)
  _write_jsonl(
    folder / 'versions.jsonl', (v.to_json() for v in store.versions())
  )


def _entry(value: Any, without: Sequence[str]) -> dict[str, Any]:
  return {n: v for n, v in vars(value).items() if n not in without}


def _write_jsonl(path: Path, rows: Iterator[Mapping[str, Any]]) -> None:
  files.write_lines(path, (json.dumps(row, ensure_ascii=False) for row in rows))


def _write_inputs(store: Store, path: Path, ids: Sequence[str]) -> None:
  sources, references = store.sources(), store.references()
  _write_jsonl(
    path,
    (
      {
        'id': key,
        'source': None if sources is None else sources[n],
        'references': {label: x[n] for label, x in references.items()},
      }
      for n, key in enumerate(ids)
    ),
  )


def _write_numbers(
  store: Store,
  folder: Path,
  ids: Sequence[str],
  generators: Sequence[Generator],
  metrics: Sequence[Metric],
) -> None:
  ratings = {name: dict(store.ratings(name)) for name in store.rating_names()}
  write_table(folder / 'ratings.tsv.gz', ids, generators, ratings)
  for reference_set in sorted({s for _, _, s in store.scored()}):
    columns = {
      m.name: scores
      for m in metrics
      if (scores := dict(store.scores(m.id, reference_set)))
    }
    humans = {n: c for n, c in ratings.items() if n not in columns}
    write_table(
      folder / 'scores' / f'{file_name(reference_set)}.tsv.gz',
      ids,
      generators,
      {**humans, **columns},
    )


def write_table(
  path: str | os.PathLike[str],
  ids: Sequence[str],
  generators: Sequence[Generator],
  columns: Mapping[str, Mapping[int, np.ndarray]],
) -> None:
  """Writes a table of columns; `score_table.read` reads it.

  Args:
    path: The file; `.gz` is compressed.
    ids: The ids of the K inputs.
    generators: The generators, in order.
    columns: Name -> generator id -> values [K]; NaN is an empty cell.
  """
  with files.write_atomically(path) as out:
    out.write('\t'.join(['system', 'seg_id', *columns]) + '\n')
    empty = [''] * len(ids)
    for generator in generators:
      cells = [
        [
          '' if value != value else repr(value)
          for value in column[generator.id].tolist()
        ]
        if generator.id in column
        else empty
        for column in columns.values()
      ]
      for key, *row in zip(ids, *cells, strict=True):
        out.write('\t'.join([generator.name, key, *row]) + '\n')


def import_folder(
  path: str | os.PathLike[str],
  folder: str | os.PathLike[str],
  name: str | None = None,
  task: str = '',
  human: str | None = None,
  pair: str | None = None,
  humans: str = layouts.HUMAN_PATTERN,
  negate: Sequence[str] = (),
) -> None:
  """Creates a board from a folder; the layout is detected.

  Args:
    path: The file of the board, which must not exist.
    folder: A folder written by `export`, or one in WMT's layout.
    name: The name of the board; None for the one in the folder.
    task: The task of the generators (WMT's layout).
    human: Name of the default ratings; None for the folder's.
    pair: The language pair (WMT's layout); None if there is only one.
    humans: Regular expression for names of human systems (WMT's layout).
    negate: Metrics where lower is better (WMT's layout).

  Raises:
    BoardError: The folder has neither layout, or its contents are invalid;
      also `files.RecordError`.
  """
  source = Path(folder)
  with layouts.new_board(path) as store:
    if (source / 'board.json').is_file():
      _read(store, source, name, human)
    elif (source / 'system-outputs').is_dir():
      wmt_folder.read(
        store,
        source,
        name or Path(path).stem,
        task,
        human,
        pair,
        humans,
        negate,
      )
    else:
      raise BoardError(
        f'{folder} is not an exported board: it has neither board.json nor'
        ' system-outputs/'
      )
    if renewal.keep_version(store) is None:
      renewal.renew(store, f'imported from the folder {source.name}')


class _Input(msgspec.Struct):
  id: str
  source: str | None
  references: dict[str, str]


class _Role(msgspec.Struct):
  generators: list[str]
  references: str


class _Document(msgspec.Struct):
  format: Literal['t5score board 1']
  name: str
  task: str
  human: str | None
  references: list[str]
  roles: dict[str, _Role]
  generators: list[Generator]
  metrics: list[Metric]


class _Version(msgspec.Struct):
  ensemble: ensemble.Ensemble
  cause: str
  created: str


@contextlib.contextmanager
def _named(path: Path) -> Iterator[bytes]:
  """Yields the bytes of a file; errors of JSON and types name the file."""
  try:
    yield path.read_bytes()
  except (msgspec.DecodeError, KeyError) as error:
    raise files.RecordError(str(error), path=path) from error


def _read(
  store: Store, folder: Path, name: str | None, human: str | None
) -> None:
  with _named(folder / 'board.json') as data:
    document = msgspec.json.decode(data, type=_Document)
  with _named(folder / 'inputs.jsonl') as data:
    inputs = msgspec.json.Decoder(_Input).decode_lines(data)
    references = {
      label: [row.references[label] for row in inputs]
      for label in document.references
    }
  ids = [row.id for row in inputs]
  sources = [row.source for row in inputs if row.source is not None]
  with store.transaction():
    changes.initialise(
      store,
      name or document.name,
      document.task,
      ids,
      sources or None,
      references,
      human or document.human,
    )
    generators = {}
    for generator in document.generators:
      path = folder / 'outputs' / f'{file_name(generator.name)}.jsonl'
      texts = None
      if path.is_file():
        texts = read_outputs(path, ids, max_bytes=sys.maxsize)
      key = changes.add_generator(store, generator, texts)
      generators[generator.name] = key
    metrics = {}
    for metric in document.metrics:
      program = folder / 'programs' / file_name(metric.name)
      # Folders are not trusted: their programs are always isolated.
      settings = {n: x for n, x in metric.settings.items() if n != 'isolation'}
      metrics[metric.name] = changes.add_metric(
        store,
        dataclasses.replace(metric, settings=settings),
        program.read_bytes() if program.is_file() else None,
      )
    _read_numbers(store, folder, ids, generators, metrics)
    for role, entry in document.roles.items():
      changes.set_role(store, role, entry.generators, entry.references)
    with _named(folder / 'versions.jsonl') as data:
      for v in msgspec.json.Decoder(_Version).decode_lines(data):
        changes.add_version(store, v.ensemble, 0, v.cause, v.created)


def _read_numbers(
  store: Store,
  folder: Path,
  ids: Sequence[str],
  generators: Mapping[str, int],
  metrics: Mapping[str, int],
) -> None:
  for path in sorted((folder / 'scores').glob('*.tsv.gz')):
    reference_set = urllib.parse.unquote(path.name.removesuffix('.tsv.gz'))
    for column, systems in _columns(path, ids):
      if column in metrics:
        changes.set_scores(
          store,
          ((metrics[column], generators[s], x) for s, x in systems),
          reference_set,
        )
  ratings = folder / 'ratings.tsv.gz'
  if ratings.is_file() and len(files.read_lines(ratings)[0].split('\t')) > 2:
    for column, systems in _columns(ratings, ids):
      changes.add_ratings(
        store, column, ((generators[s], x) for s, x in systems)
      )


def _columns(
  path: Path, ids: Sequence[str]
) -> Iterator[tuple[str, list[tuple[str, np.ndarray]]]]:
  """Yields each column with its systems, in the order of the board."""
  table = score_table.read(path, 'system', 'seg_id', [])
  if set(table.ids) != set(ids):
    raise files.RecordError('ids differ from those of the inputs', path=path)
  order = [table.ids.index(key) for key in ids] if table.ids != ids else None
  for name, values in table.columns.items():
    if order is not None:
      values = values[:, order]
    yield (
      name,
      [
        (system, row)
        for system, row in zip(table.systems, values, strict=True)
        if not np.isnan(row).all()
      ],
    )
