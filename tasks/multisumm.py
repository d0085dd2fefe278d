"""MultiSumm (Koto et al. 2021): rated summaries in eight languages.

Layout, as published in its `resulting_data` folder:

    LANG/score.csv        id,model,focus,coverage (normalized scores)
    LANG/gold/ID          the reference, one sentence per line; ID may have
                          leading zeros that the table lacks
    LANG/pred_MODEL/ID    the summary of a model, BERT or PG

Each reference has two summaries, one pair. Tasks and mixtures are those of
`judged`, with the language as the language pair and against the reference only,
such as `multisumm_en_pairs` and `multisumm_groups`; the rating is `focus` by
default, or `coverage`. With `T5SCORE_DATA` set, importing this module
registers `T5SCORE_DATA/multisumm` (`environment`).
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

from t5score_jax.data import files, numbers
from t5score_jax.data.files import RecordError
from t5score_jax.data.records import Segment
from t5score_jax.tasks import columns, environment, judged

RATINGS = ('focus', 'coverage')
KINDS = ('pairs', 'groups')


def read(path: str) -> Iterator[tuple[str, Segment]]:
  """Reads `LANG/score.csv` and the texts beside it.

  Yields:
    ('', segment with the ratings `focus` and `coverage`); the sentences of a
    text are joined by spaces.

  Raises:
    RecordError: A column or a text is missing, or a score is not a number.
  """
  folder = pathlib.Path(path).parent
  texts: dict[str, dict[str, pathlib.Path]] = {}
  for line, row in columns.read_csv(path, ('id', 'model', *RATINGS)):

    def text(kind: str, line: int = line, row: dict[str, str] = row) -> str:
      if kind not in texts:
        texts[kind] = _by_id(folder / kind)
      file = texts[kind].get(row['id'].lstrip('0'))
      if file is None:
        raise RecordError(
          f'there is no text {folder / kind / row["id"]}',
          path=path,
          line=line,
          field='id',
        )
      return ' '.join(part.strip() for part in files.read_lines(file))

    yield (
      '',
      Segment(
        hypothesis=text(f'pred_{row["model"]}'),
        references=(text('gold'),),
        system=row['model'],
        segment=row['id'],
        language_pair=folder.name.lower(),
        ratings={
          name: numbers.read(row[name], path=path, line=line, field=name)
          for name in RATINGS
        },
      ),
    )


def _by_id(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """The texts of a folder by id: Chinese file names have leading zeros."""
  if not folder.is_dir():
    return {}
  return {file.name.lstrip('0'): file for file in folder.iterdir()}


def files_of(folder: str | os.PathLike[str]) -> dict[judged.Key, list[str]]:
  """The score file of each language.

  Raises:
    FileNotFoundError: There is none.
  """
  found: dict[judged.Key, list[str]] = {
    ('', path.parent.name.lower()): [str(path)]
    for path in sorted(pathlib.Path(folder).glob('*/score.csv'))
  }
  if not found:
    raise FileNotFoundError(
      f'{folder}: no LANG/score.csv; name the folder resulting_data of the'
      ' published corpus'
    )
  return found


def register(
  folder: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  name: str = 'multisumm',
  options: judged.Options | None = None,
) -> dict[judged.Key, dict[str, str]]:
  """Registers the tasks and mixtures of a folder.

  Args:
    folder: The folder; see the module's docstring for its layout.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    name: Prefix of the tasks and mixtures.
    options: How judgments become examples; by default the rating is `focus`.

  Returns:
    The task's name by kind, by ('', language).

  Raises:
    FileNotFoundError: No such folder, nothing in it, or no vocabulary.
    ValueError: A name is taken.
  """
  options = options or judged.Options(rating='focus')
  return judged.register_corpus(
    name, files_of(folder), judged.Corpus(read), vocabulary, options, KINDS
  )


if _folder := environment.corpus('multisumm'):
  register(_folder, environment.vocabulary())
