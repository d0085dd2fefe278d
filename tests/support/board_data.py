"""Boards that tests make, and where the original Billboards' tables are."""

import functools
import pathlib
import shutil
import tempfile

import numpy as np
import pytest

DATA = pathlib.Path(__file__).resolve().parents[3] / 'shared' / 'data'
CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
BOARDS = ('wmt20-zh-en', 'wmt20-en-de', 'cnndm', 'mscoco')

needs_boards = pytest.mark.skipif(
  not (DATA / 'billboard_cnndm.tsv.gz').is_file(),
  reason='needs the Billboards in ../shared/data, which are not here',
)


def board_file(name: str) -> pathlib.Path:
  return DATA / f'billboard_{name}.tsv.gz'


@functools.cache
def made_up(generators: int = 5, examples: int = 40, seed: int = 0):
  """Scores of made-up generators: (systems, ids, name -> [I, K])."""
  rng = np.random.default_rng(seed)
  shape = (generators, examples)
  quality = rng.normal(size=(generators, 1)) + rng.normal(size=shape)
  columns = {'human': quality + 0.3 * rng.normal(size=shape)}
  for n, noise in enumerate((0.5, 0.8, 1.2, 2.0, 4.0)):
    columns[f'm{n}'] = (n + 1) * quality + 5 * noise * rng.normal(size=shape)
  # The last generator is not rated; the first is a person.
  columns['human'][-1] = np.nan
  systems = ['Human-X', *(f'system {n}' for n in range(1, generators))]
  return systems, [f'e{n}' for n in range(examples)], columns


def write_table(path: pathlib.Path, systems, ids, columns) -> pathlib.Path:
  lines = ['\t'.join(['system', 'seg_id', *columns])]
  for i, system in enumerate(systems):
    for k, key in enumerate(ids):
      cells = [
        '' if np.isnan(c[i, k]) else repr(float(c[i, k]))
        for c in columns.values()
      ]
      lines.append('\t'.join([system, key, *cells]))
  path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
  return path


@functools.cache
def _small_board() -> bytes:
  from t5score_jax.leaderboard import layouts

  with tempfile.TemporaryDirectory() as folder:
    table = write_table(pathlib.Path(folder, 'table.tsv'), *made_up())
    path = pathlib.Path(folder, 'small.db')
    layouts.read_and_import(path, table, 'human', task='made up')
    return path.read_bytes()


def small_board(folder: pathlib.Path) -> pathlib.Path:
  """The file of a new board, as `made_up` has it."""
  path = folder / 'small.db'
  path.write_bytes(_small_board())
  return path
