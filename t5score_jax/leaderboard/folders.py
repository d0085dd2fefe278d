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
import json
import os
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.data import files, folders, tables
from t5score_jax.leaderboard import (
  changes,
  ensemble,
  layouts,
  renewal,
  score_table,
  wmt_folder,
)
from t5score_jax.leaderboard.entries import BoardError, Generator, Metric
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
  target = Path(os.path.abspath(folder))
  if target.exists():
    raise BoardError(f'{folder} exists already; choose another name')
  if not target.parent.is_dir():
    raise BoardError(f'folder {target.parent} does not exist; create it first')
  with folders.new_folder(target) as partial:
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
    folder / 'versions.jsonl',
    (
      {
        'version': v.version,
        'created': v.created,
        'cause': v.cause,
        'signature': v.signature,
        'ensemble': dict(v.ensemble),
      }
      for v in store.versions()
    ),
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


def _read(
  store: Store, folder: Path, name: str | None, human: str | None
) -> None:
  try:
    document = json.loads('\n'.join(files.read_lines(folder / 'board.json')))
    if document.get('format') != _FORMAT:
      raise ValueError(f'format {document.get("format")!r}, not {_FORMAT!r}')
    with store.transaction():
      _fill(store, folder, document, name, human)
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    if isinstance(error, (BoardError, files.RecordError)):
      raise
    raise BoardError(f'{folder / "board.json"}: {error!r}') from error


def _fill(
  store: Store,
  folder: Path,
  document: Mapping[str, Any],
  name: str | None,
  human: str | None,
) -> None:
  with files.open_text(folder / 'inputs.jsonl') as lines:
    table = tables.read_table(lines, str(folder / 'inputs.jsonl'), 'jsonl')
    rows = [row for _, row in table.rows]
  ids = [row['id'] for row in rows]
  changes.initialise(
    store,
    name or document['name'],
    document['task'],
    ids,
    None if rows[0]['source'] is None else [row['source'] for row in rows],
    {
      label: [row['references'][label] for row in rows]
      for label in document['references']
    },
    human or document['human'],
  )
  generators = {}
  for entry in document['generators']:
    generator = Generator(**entry)
    path = folder / 'outputs' / f'{file_name(generator.name)}.jsonl'
    texts = None
    if path.is_file():
      with files.open_text(path) as lines:
        by_id = {
          row['id']: row['hypothesis']
          for _, row in tables.read_table(lines, str(path), 'jsonl').rows
        }
      texts = [by_id[key] for key in ids]
    generators[generator.name] = changes.add_generator(store, generator, texts)
  metrics = {}
  for entry in document['metrics']:
    program = folder / 'programs' / file_name(entry['name'])
    # Folders are not trusted: their programs are always isolated.
    settings = {**entry['settings']}
    settings.pop('isolation', None)
    metrics[entry['name']] = changes.add_metric(
      store,
      Metric(**{**entry, 'settings': settings}),
      program.read_bytes() if program.is_file() else None,
    )
  _fill_numbers(store, folder, ids, generators, metrics)
  for role, entry in document['roles'].items():
    changes.set_role(store, role, entry['generators'], entry['references'])
  with files.open_text(folder / 'versions.jsonl') as lines:
    for line in lines:
      entry = json.loads(line)
      value = ensemble.Ensemble.from_json(entry['ensemble'])
      changes.add_version(
        store,
        entry['version'],
        0,
        entry['cause'],
        value.signature(),
        value.to_json(),
        entry['created'],
      )


def _fill_numbers(
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
