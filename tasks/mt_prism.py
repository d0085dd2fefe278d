"""MT-prism (Thompson and Post 2020): translations among 39 languages.

The corpus is a collection of public corpora (WikiMatrix, Global Voices,
EuroParl, SETimes, United Nations; Qin et al. 2022, T5Score, appendix A.9.2).
Two layouts are in use. Both are read, anywhere under the folder, also with
`.gz`:

    WikiMatrix.XX-YY.tsv       margin score, text in XX, text in YY, tabs, no
                               header; any NAME
    NAME.XX-YY.XX and .YY      two files of parallel lines (Moses, OPUS)

WikiMatrix pairs need a margin score of at least 1.04, the threshold that its
authors recommend (`minimum_margin`). Pairs of parallel files with an empty line
on one side are left out, and counted in the log; files of unequal length are an
error.

For each language pair the tasks `mt_prism_XX_YY` (XX -> YY) and
`mt_prism_XX_YY_both` (see `parallel`), and the mixtures
`mt_prism` and `mt_prism_both`, sampled by p^0.5. With `T5SCORE_DATA` set,
importing this module registers `T5SCORE_DATA/mt_prism` (`environment`).
"""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
import re
from collections.abc import Iterator

from absl import logging

from t5score_jax.data import files, numbers
from t5score_jax.data.files import RecordError
from t5score_jax.tasks import columns, environment, parallel
from t5score_jax.tasks.vocabularies import seqio_vocabulary

MINIMUM_MARGIN = 1.04
_SCORED = re.compile(r'.*\.(?P<one>[a-z]{2,3})-(?P<two>[a-z]{2,3})\.tsv(\.gz)?')
_PARALLEL = re.compile(
  r'(?P<stem>.*\.(?P<one>[a-z]{2,3})-(?P<two>[a-z]{2,3}))\.(?P=one)'
  r'(?P<gz>\.gz)?'
)


def read(
  path: str, minimum_margin: float = MINIMUM_MARGIN
) -> Iterator[parallel.TextPair]:
  """Reads one file of scored pairs, or a file of lines with its other side.

  Args:
    path: `NAME.XX-YY.tsv`, or `NAME.XX-YY.XX` with `.YY` beside it.
    minimum_margin: The minimum margin score of a scored pair.

  Yields:
    `inputs` and `targets`: the text in XX and the text in YY.

  Raises:
    RecordError: A line does not have three columns, a score is not a number,
      or two parallel files differ in length.
    OSError: A file can't be read.
  """
  if _SCORED.fullmatch(path):
    return _read_scored(path, minimum_margin)
  return _read_parallel(path)


def _read_scored(
  path: str, minimum_margin: float
) -> Iterator[parallel.TextPair]:
  names = {'score': 0, 'inputs': 1, 'targets': 2}
  for line, row in columns.read_headerless(path, names, 3):
    score = numbers.read(row['score'], path=path, line=line, field='score')
    if score >= minimum_margin:
      yield parallel.text_pair(row, path, line)


def _other_side(path: str) -> str:
  match = _PARALLEL.fullmatch(path)
  assert match is not None
  return f'{match["stem"]}.{match["two"]}{match["gz"] or ""}'


def _read_parallel(path: str) -> Iterator[parallel.TextPair]:
  other = _other_side(path)
  empty = line = 0
  with files.open_text(path) as ones, files.open_text(other) as twos:
    pairs = itertools.zip_longest(ones, twos)
    for line, (one, two) in enumerate(pairs, 1):
      if one is None or two is None:
        short, long = (path, other) if one is None else (other, path)
        raise RecordError(
          f'the file ends, but {long} goes on; parallel files need a line for'
          ' every pair',
          path=short,
          line=line,
        )
      if one.strip() and two.strip():
        yield {'inputs': one, 'targets': two}
      else:
        empty += 1
  if empty:
    logging.warning(
      '%s: %d of %d pairs left out, a side is empty', path, empty, line
    )


def files_of(
  folder: str | os.PathLike[str],
) -> dict[tuple[str, str], list[str]]:
  """The files under a folder by (language of inputs, language of targets).

  Of two parallel files only the first is listed.

  Raises:
    FileNotFoundError: There are none, or one without its other side.
  """
  found: dict[tuple[str, str], list[str]] = {}
  for path in sorted(pathlib.Path(folder).rglob('*')):
    name = str(path)
    match = _SCORED.fullmatch(name) or _PARALLEL.fullmatch(name)
    if match is None or not path.is_file():
      continue
    if not _SCORED.fullmatch(name) and not os.path.exists(_other_side(name)):
      raise FileNotFoundError(f'{name}: {_other_side(name)} is not there')
    found.setdefault((match['one'], match['two']), []).append(name)
  if not found:
    raise FileNotFoundError(
      f'{folder}: no NAME.XX-YY.tsv and no NAME.XX-YY.XX, such as'
      ' WikiMatrix.de-en.tsv.gz'
    )
  return found


def register(
  folder: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  name: str = 'mt_prism',
  minimum_margin: float = MINIMUM_MARGIN,
) -> dict[str, str]:
  """Registers the tasks and mixtures of a folder.

  Args:
    folder: The folder; see the module's docstring for its layout.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    name: Prefix of the tasks, and the mixtures' name.
    minimum_margin: The minimum margin score of a scored pair.

  Returns:
    The language pair of each task, by task name.

  Raises:
    FileNotFoundError: No such folder, nothing in it, or no vocabulary.
    ValueError: A name is taken.
  """
  encoder = seqio_vocabulary(vocabulary)
  languages = {}
  for pair, paths in sorted(files_of(folder).items()):
    task = parallel.task_name(name, *pair)
    parallel.add_tasks(
      task,
      {'train': paths},
      functools.partial(read, minimum_margin=minimum_margin),
      encoder,
    )
    languages[task] = '-'.join(pair)
  parallel.add_mixtures(name, languages)
  return languages


if _folder := environment.corpus('mt_prism'):
  register(_folder, environment.vocabulary())
