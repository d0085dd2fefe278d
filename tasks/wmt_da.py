"""WMT direct assessments (DA) by year, as pairs and as groups.

Layout, as these data are commonly published (COMET's training data, the WMT DA
collections): comma-separated with a header of

    lp       language pair, `de-en`
    src      source
    mt       hypothesis
    ref      reference
    score    z-score                           -> rating `z`
    raw      0 to 100 (or `raw_score`)         -> rating `raw`
    year     2017 (or in the file's name, `2017-da.csv`)
    system   may be missing, as in the large collections; then human
             translations cannot be identified, and none is left out
    annotators, domain   not used; `domain` separates equal texts of two
             domains

Any file `NAME.csv` (also with `.gz`) of the folder is read. Files of records
named `YEAR.LP.jsonl` or `.tsv` (`judged`) may be in the same folder; they are
faster to read, and `scripts/prepare/judgments.py` writes them.

Tasks and mixtures are those of `judged`, such as `wmt_da_2019_de_en_pairs`,
`wmt_da_2017_2019_pairs` (the paper's training set, if the folder holds those
years) and `wmt_da_groups`. With `T5SCORE_DATA` set, importing this module
registers `T5SCORE_DATA/wmt_da` (`environment`).

`register_tfds` registers the same tasks on a TFDS dataset of these files
(`datasets`).
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from t5score_jax.data import numbers
from t5score_jax.data.files import RecordError
from t5score_jax.data.records import Segment
from t5score_jax.tasks import columns, environment, judged

_YEAR = re.compile(r'(?<!\d)(20\d\d)(?!\d)')
_RATINGS = {'z': ('score', 'z', 'zscore'), 'raw': ('raw', 'raw_score')}


def read_csv(path: str) -> Iterator[tuple[str, Segment]]:
  """Reads a file of the published layout.

  Yields:
    (year, segment with the ratings `z` and `raw` that it has).

  Raises:
    RecordError: A column is missing, a year or a rating is not a number.
  """
  in_name = _YEAR.findall(pathlib.Path(path).name)
  texts: dict[str, str] = {}  # a source stands in many rows; keep it once
  for line, row in columns.read_csv(path, ('lp', 'src', 'mt', 'ref')):
    year = row.get('year', in_name[0] if len(in_name) == 1 else '')
    if not _YEAR.fullmatch(year):
      raise RecordError(
        f'{year!r} is not a year; add a column year, or let the file name hold'
        ' the year, as in 2017-da.csv',
        path=path,
        line=line,
        field='year',
      )
    yield (
      year,
      Segment(
        hypothesis=row['mt'],
        source=texts.setdefault(row['src'], row['src']) or None,
        references=(texts.setdefault(row['ref'], row['ref']),)
        if row['ref']
        else (),
        system=row.get('system') or None,
        document=row.get('domain') or None,
        language_pair=row['lp'],
        ratings=_ratings(row, path, line),
      ),
    )


def _ratings(row: dict[str, str], path: str, line: int) -> dict[str, float]:
  """The ratings of a row; empty cells are skipped."""
  found = {}
  for name, candidates in _RATINGS.items():
    for column in candidates:
      if row.get(column):
        found[name] = numbers.read(
          row[column], path=path, line=line, field=column
        )
        break
  if not any(column in row for column in (*_RATINGS['z'], *_RATINGS['raw'])):
    raise RecordError(
      f'there is no rating; its column must be called score or raw, not one of'
      f' {", ".join(row)}',
      path=path,
      line=1,
      field='score',
    )
  return found


def _keys_of_csv(path: pathlib.Path) -> set[judged.Key]:
  """The years and language pairs of a file."""
  return {
    (year, segment.language_pair or '') for year, segment in read_csv(str(path))
  }


def files_of(folder: str | os.PathLike[str]) -> dict[judged.Key, list[str]]:
  """The files of a folder by year and language pair.

  Args:
    folder: The folder; see the module's docstring for its layout.

  Returns:
    The files by (year, language pair).

  Raises:
    FileNotFoundError: No such folder, or no file of the layout in it.
    RecordError: A file is malformed.
  """
  found: dict[judged.Key, list[str]] = {}
  for path in sorted(pathlib.Path(folder).iterdir()):
    if path.name.removesuffix('.gz').endswith('.csv'):
      keys = _keys_of_csv(path)
    else:
      key = judged.key_of_file(path)
      keys = {key} if key and _YEAR.fullmatch(key[0]) else set()
    for key in keys:
      found.setdefault(key, []).append(str(path))
  if not found:
    raise FileNotFoundError(
      f'{folder}: no NAME.csv with the columns lp, src, mt, ref, score, nor any'
      ' YEAR.LP.jsonl'
    )
  return found


def read(path: str, rating: str = 'z') -> Iterator[tuple[str, Segment]]:
  """Reads either layout, by the file's name; see `read_csv`."""
  if path.removesuffix('.gz').endswith('.csv'):
    return read_csv(path)
  return judged.read_named(path, rating)


def register(
  folder: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  name: str = 'wmt_da',
  options: judged.Options | None = None,
  kinds: Sequence[str] = judged.KINDS,
) -> dict[judged.Key, dict[str, str]]:
  """Registers the tasks and mixtures of a folder.

  Args:
    folder: The folder; see the module's docstring for its layout.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    name: Prefix of the tasks and mixtures.
    options: How judgments become examples; the rating is `z` (default) or
      `raw`.
    kinds: Which of `judged.KINDS`.

  Returns:
    The task's name by kind, by year and language pair.

  Raises:
    FileNotFoundError: No such folder, nothing in it, or no vocabulary.
    RecordError: A file is malformed.
    ValueError: A name is taken.
  """
  options = options or judged.Options()
  corpus = judged.Corpus(functools.partial(read, rating=options.rating))
  return judged.register_corpus(
    name, files_of(folder), corpus, vocabulary, options, kinds
  )


if _folder := environment.corpus('wmt_da'):
  register(_folder, environment.vocabulary())
