"""Creates boards from a table of scores or from inputs.

Everything is checked before the board's file appears under its name. Folders
are read by `folders.py`; `submissions.py` adds to existing boards.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.data import files, humans, tables
from t5score_jax.leaderboard import (
  analysis,
  changes,
  ensemble,
  renewal,
  score_table,
)
from t5score_jax.leaderboard.entries import (
  GIVEN,
  BoardError,
  Generator,
  check_free,
  human_pattern,
  imported_metric,
)
from t5score_jax.leaderboard.score_table import ScoreTable
from t5score_jax.leaderboard.store import Store

#: Default regular expression for names of human systems: WMT's and 'human'.
HUMAN_PATTERN = rf'human|{humans.HUMAN_SYSTEMS}'
# Largest error of a recovered affine function, in standard deviations.
_AFFINE = 1e-9


@contextlib.contextmanager
def new_board(path: str | os.PathLike[str]) -> Iterator[Store]:
  """Yields a new board whose file gets its name if the block succeeds.

  Args:
    path: The file of the board.

  Yields:
    The open, empty board; call `changes.initialise` first.

  Raises:
    BoardError: The file exists already.
  """
  check_free(path)
  path = Path(path)
  partial = path.with_name(f'.{path.name}.{secrets.token_hex(4)}.part')
  try:
    with Store(partial, create=True) as store:
      # No journal: an incomplete file is deleted.
      store.connection.execute('PRAGMA journal_mode = OFF')
      store.connection.execute('PRAGMA synchronous = OFF')
      yield store
    with open(partial, 'rb') as written:
      os.fsync(written.fileno())
    _take_name(partial, path)
  except FileExistsError as error:
    raise BoardError(f'{path} exists already; choose another name') from error
  finally:
    with contextlib.suppress(FileNotFoundError):
      partial.unlink()


def _take_name(partial: Path, path: Path) -> None:
  """Renames a file unless the new name is taken."""
  try:
    # link, unlike rename, never overwrites a file.
    os.link(partial, path)
  except FileExistsError:
    raise
  except OSError:  # a file system without links
    if path.exists():
      raise FileExistsError(path) from None
    os.rename(partial, path)


def import_inputs(
  path: str | os.PathLike[str],
  inputs: str | os.PathLike[str],
  name: str,
  task: str = '',
  references: Mapping[str, str] | None = None,
) -> None:
  """Creates a board without generators and metrics from its inputs.

  Args:
    path: The file of the board, which must not exist.
    inputs: TSV or JSONL with one input per row: the id in `id`, `seg_id` or
      `segment` (rows are numbered if there is none), the text in `source` or
      `src`.
    name: The name of the board.
    task: The task of the generators.
    references: Label -> column. By default, the column `reference` is A; in
      JSONL, the texts of a list `references` are A, B, ...

  Raises:
    BoardError: The board cannot be created.
    files.RecordError: The file is malformed.
  """
  with files.open_text(inputs) as lines:
    table = tables.read_table(lines, os.fspath(inputs))
    rows = list(table.rows)
  if not rows:
    raise files.RecordError('no rows', path=inputs)
  first = rows[0][1]
  key = next((c for c in ('id', 'seg_id', 'segment') if c in first), None)
  origin = next((c for c in ('source', 'src') if c in first), None)
  wanted: dict[str, tuple[str, int | None]] = {
    label: (column, None) for label, column in (references or {}).items()
  }
  if not wanted and 'reference' in first:
    wanted = {'A': ('reference', None)}
  elif not wanted and isinstance(first.get('references'), list):
    wanted = {
      string.ascii_uppercase[n % 26] * (n // 26 + 1): ('references', n)
      for n in range(len(first['references']))
    }

  def texts(column: str, at: int | None = None) -> list[str]:
    result = []
    for line, row in rows:
      value = row.get(column)
      if at is not None:
        value = value[at] if isinstance(value, list) and at < len(value) else 0
      if not isinstance(value, str):
        raise files.RecordError(
          'not a text' + ('' if at is None else f' for reference {at + 1}'),
          path=inputs,
          line=line,
          field=column,
        )
      result.append(value)
    return result

  if key:
    ids = [str(row.get(key, '')) for _, row in rows]
  else:
    ids = [str(n) for n in range(1, len(rows) + 1)]
  with new_board(path) as store:
    changes.initialise(
      store,
      name,
      task,
      ids,
      texts(origin) if origin else None,
      {label: texts(*place) for label, place in wanted.items()},
    )


def import_table(
  store: Store,
  table: ScoreTable,
  name: str,
  task: str,
  human: str,
  negate: Sequence[str] = (),
  humans: str = HUMAN_PATTERN,
  published: str = analysis.ENSEMBLE,
) -> None:
  """Fills a new board from a table of scores.

  A published ensemble is compared like a metric but never combined again. If
  it is an affine function of other columns, that function becomes version 1 of
  the board's ensemble.

  Args:
    store: The new board.
    table: The table.
    name: The name of the board.
    task: The task of the generators.
    human: The column of human ratings.
    negate: Columns where lower is better; they are negated (M.1).
    humans: Regular expression matched at the start of names of human systems.
    published: The column of the published ensemble, if any.

  Raises:
    BoardError: A column is missing or a name is invalid.
  """
  for column in [human, *negate]:
    changes.check_known(column, list(table.columns), 'column')
  if human in negate:
    raise BoardError(
      f'{human!r} holds the human ratings, which cannot be negated'
    )
  ratings = table.columns[human]
  if np.isnan(ratings).all():
    raise BoardError(f'column {human!r} is empty')
  names = [c for c in table.columns if c != human]
  pattern = human_pattern(humans)
  with store.transaction():
    changes.initialise(store, name, task, table.ids, human=human)
    generators = [
      changes.add_generator(
        store, Generator(s, human=pattern.match(s) is not None)
      )
      for s in table.systems
    ]

    def given(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
      for generator, row in zip(generators, values, strict=True):
        if not np.isnan(row).all():
          yield generator, row

    for column in names:
      sign = -1.0 if column in negate else 1.0
      kind = 'ensemble' if column == published else 'column'
      metric = changes.add_metric(
        store, imported_metric(column, column in negate, kind)
      )
      changes.set_scores(
        store,
        (
          (metric, generator, sign * scores)
          for generator, scores in given(table.columns[column])
        ),
        GIVEN,
      )
    changes.add_ratings(store, human, given(ratings))
    if published in names:
      _keep_published(store, table, name, published, human, negate)


def _keep_published(
  store: Store,
  table: ScoreTable,
  board: str,
  published: str,
  human: str,
  negate: Sequence[str],
) -> None:
  """Stores the published ensemble as version 1 if its function is recovered."""
  names = [
    n
    for n, c in table.columns.items()
    if n not in (human, published) and not np.isnan(c).any()
  ]
  column = table.columns[published]
  if not names or np.isnan(column).any():
    return
  scores = np.stack(
    [table.columns[n].ravel() * (-1 if n in negate else 1) for n in names]
  )
  function = affine(column.ravel(), scores)
  if function is None:
    return
  intercept, values = function
  weights = {n: float(w) for n, w in zip(names, values, strict=True) if w}
  signatures = {m.name: m.signature for m in store.metrics()}
  value = ensemble.Ensemble(
    board=board,
    version=1,
    reference_set=GIVEN,
    penalty=None,
    intercept=intercept,
    weights=weights,
    standardised={
      n: w * float(scores[names.index(n)].std()) for n, w in weights.items()
    },
    inputs=ensemble.digest({n: signatures[n] for n in weights}),
  )
  cause = f'published, as the column {published!r}'
  changes.add_version(store, value, store.board().revision, cause)


def affine(
  column: np.ndarray, scores: np.ndarray
) -> tuple[float, np.ndarray] | None:
  """Recovers the affine function of a few metrics that equals a column.

  Args:
    column: Published scores of an ensemble, [N].
    scores: Finite scores of the metrics, [M, N].

  Returns:
    Intercept and sparse weights [M], or None if the column is not an affine
    function of the metrics.
  """
  mean, deviation = scores.mean(axis=1), scores.std(axis=1)
  if not (deviation > 0).all() or not column.std() > 0:
    return None
  z = (scores - mean[:, None]) / deviation[:, None]
  kept = np.arange(len(scores))
  for _ in range(2):  # all metrics, then only those with weights
    design = np.vstack([np.ones(z.shape[1]), z[kept]]).T
    solution = np.linalg.lstsq(design, column, rcond=None)[0]
    error = np.abs(design @ solution - column).max()
    if not error <= _AFFINE * column.std():
      return None
    big = np.abs(solution[1:]) > 1e-7 * column.std()
    kept, values = kept[big], solution[1:][big]
  weights = np.zeros(len(scores))
  weights[kept] = values / deviation[kept]
  return float(solution[0] - weights @ mean), weights


def read_and_import(
  path: str | os.PathLike[str],
  scores: str | os.PathLike[str],
  human: str,
  name: str | None = None,
  task: str = '',
  system: str | None = None,
  segment: str | None = None,
  ignore: Sequence[str] = (),
  negate: Sequence[str] = (),
  humans: str = HUMAN_PATTERN,
) -> None:
  """Creates a board from a table: `t5score board init BOARD.db --scores FILE`.

  Args:
    path: The file of the board, which must not exist.
    scores: The table (`score_table.read`).
    human: The column of human ratings.
    name: The name of the board; None for the stem of the file name.
    task: The task of the generators.
    system: The column of systems.
    segment: The column of examples.
    ignore: Columns to ignore, besides `score_table.IGNORED`.
    negate: Columns where lower is better.
    humans: Regular expression for names of human systems.

  Raises:
    BoardError: The board cannot be created.
    files.RecordError: The table is malformed.
  """
  with new_board(path) as store:
    table = score_table.read(
      scores, system, segment, [*score_table.IGNORED, *ignore]
    )
    import_table(
      store, table, name or Path(path).stem, task, human, negate, humans
    )
    del table
    renewal.renew(store, f'imported from {Path(scores).name}')
