"""Reads the folder layout of mt-metrics-eval as score tables.

    TESTSET/{sources,documents,references,system-outputs,human-scores,
             metric-scores}
    human-scores/LP.NAME.{seg,sys}.score     SYSTEM SCORE, None where missing
    metric-scores/LP/NAME-REF.{seg,sys}.score

A segment file has a block of lines for each system, with one line for each
source segment, in order. Texts are counted, not read.
"""

from __future__ import annotations

import math
import os
import pathlib

import numpy as np

from t5score_jax.data import files, numbers
from t5score_jax.errors import InputError
from t5score_jax.evaluation.scores import KEYS, ScoreTable

LEVELS = ('seg', 'sys')


def is_folder(path: str | os.PathLike[str]) -> bool:
  """Whether a path is a test set in this layout."""
  folder = pathlib.Path(path)
  return (folder / 'human-scores').is_dir() and (
    folder / 'system-outputs'
  ).is_dir()


def language_pairs(path: str | os.PathLike[str]) -> list[str]:
  """The language pairs of a test set."""
  outputs = pathlib.Path(path) / 'system-outputs'
  return sorted(entry.name for entry in outputs.iterdir() if entry.is_dir())


def score_files(
  path: str | os.PathLike[str], language_pair: str, level: str
) -> tuple[dict[str, pathlib.Path], dict[str, pathlib.Path]]:
  """The human and metric score files of one language pair, by name.

  Raises:
    files.RecordError: The test set has no such language pair.
    InputError: A level that is not in `LEVELS`.
  """
  if level not in LEVELS:
    raise InputError(f'unknown level {level!r}; {" or ".join(LEVELS)}')
  folder = pathlib.Path(path)
  if language_pair not in language_pairs(folder):
    raise files.RecordError(
      f'no language pair {language_pair!r}; there are '
      + ', '.join(language_pairs(folder)),
      path=folder,
    )
  ending = f'.{level}.score'
  humans = {
    entry.name[len(language_pair) + 1 : -len(ending)]: entry
    for entry in sorted(
      (folder / 'human-scores').glob(f'{language_pair}.*{ending}')
    )
  }
  metrics = {
    entry.name[: -len(ending)]: entry
    for entry in sorted(
      (folder / 'metric-scores' / language_pair).glob(f'*{ending}')
    )
  }
  return humans, metrics


def find(name: str, available: dict[str, pathlib.Path]) -> str:
  """The full name of a metric: NAME-REF, or NAME if that is unambiguous.

  Raises:
    InputError: There is none, or several.
  """
  if name in available:
    return name
  close = [full for full in available if full.rpartition('-')[0] == name]
  if len(close) == 1:
    return close[0]
  raise InputError(
    f'no scores {name!r}; there are {", ".join(available) or "none"}'
    if not close
    else f'{name!r} may be {", ".join(close)}: say which'
  )


def read_folder(
  path: str | os.PathLike[str],
  language_pair: str,
  wanted: dict[str, pathlib.Path],
  level: str = 'seg',
  *,
  may_miss: bool = False,
) -> list[ScoreTable]:
  """Reads score files of one language pair.

  Args:
    path: The folder of the test set.
    language_pair: Such as 'en-de'.
    wanted: Score files by the names to give to their columns, from
      `score_files`.
    level: 'seg' or 'sys'.
    may_miss: Whether None marks a missing score (files of human scores);
      otherwise it is an error.

  Returns:
    A table for each file; segments are called '1', '2', ...; '' for systems.

  Raises:
    files.RecordError: A malformed line, a system without outputs, or a block of
      the wrong length.
  """
  folder = pathlib.Path(path)
  outputs = folder / 'system-outputs' / language_pair
  systems = {
    entry.name.rpartition('.')[0]
    for entry in outputs.iterdir()
    if entry.suffix in ('.txt', '.jsonl')
  }
  segments = 1
  if level == 'seg':
    segments = _count_segments(folder, language_pair)
  return [
    _read_scores(file, name, language_pair, systems, segments, level, may_miss)
    for name, file in wanted.items()
  ]


def _count_segments(folder: pathlib.Path, language_pair: str) -> int:
  for ending in ('txt', 'jsonl'):
    source = folder / 'sources' / f'{language_pair}.{ending}'
    if source.exists():
      with files.open_text(source) as lines:
        return sum(1 for _ in lines)
  raise files.RecordError(
    f'no sources/{language_pair}.txt, which says how many segments there are',
    path=folder,
  )


def _read_scores(
  file: pathlib.Path,
  name: str,
  language_pair: str,
  systems: set[str],
  segments: int,
  level: str,
  may_miss: bool,
) -> ScoreTable:
  path = os.fspath(file)
  rows, lines, values = [], [], []
  seen: dict[str, int] = {}
  with files.open_text(path) as stream:
    for number, line in enumerate(stream, 1):
      fields = line.split()
      if len(fields) != 2 or fields[0] not in systems:
        problem = (
          f'no output of the system {fields[0]!r} is in system-outputs'
          if len(fields) == 2
          else f'{len(fields)} fields; a line has SYSTEM SCORE'
        )
        raise files.RecordError(problem, path=path, line=number)
      system, text = fields
      seen[system] = seen.get(system, 0) + 1
      rows.append(
        (language_pair, system, str(seen[system]) if level == 'seg' else '')
      )
      lines.append(number)
      values.append(_score(text, may_miss, path, number))
  for system, count in seen.items():
    if count != segments:
      raise files.RecordError(
        f'{count} scores of {system!r}, which has {segments} segments',
        path=path,
      )
  if not rows:
    raise files.RecordError('the file has no scores', path=path)
  return ScoreTable(
    path, KEYS, rows, np.array(lines), {name: np.array(values, np.float64)}
  )


def _score(text: str, may_miss: bool, path: str, line: int) -> float:
  if may_miss and text == 'None':
    return math.nan
  return numbers.read(text, path=path, line=line, field='SCORE')
