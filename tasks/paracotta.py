"""ParaCotta (Aji et al. 2022): paraphrases in 17 languages.

Layout, as published: one tab-separated file without a header for each
language, whose second and third columns are the two paraphrases. Files with
only these two columns are read as well. The file's name contains the language
code (`en.tsv`, `paracotta_en.txt`, `en-para.tsv.gz`) once.

Only lexically diverse pairs, with a lexical BLEU from 0 to 20, are kept (Qin et
al. 2022, T5Score, appendix A.9.2). Lexical BLEU is sacrebleu's sentence BLEU of
the second against the first, with sacrebleu's tokenizer `zh` for Chinese and
`13a` for the rest. BLEU is computed while reading;
`scripts/prepare/paracotta.py` filters files in advance.

For each language the tasks `paracotta_LANG` and `paracotta_LANG_both`
(see `parallel`), and the mixtures `paracotta` and
`paracotta_both`, sampled by p^0.5. With `T5SCORE_DATA` set, importing this
module registers `T5SCORE_DATA/paracotta` (`environment`).
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
from collections.abc import Iterator, Mapping

import numpy as np
import sacrebleu
import tensorflow as tf

from t5score_jax.data.files import RecordError
from t5score_jax.tasks import columns, environment, parallel
from t5score_jax.tasks.vocabularies import seqio_vocabulary

LANGUAGES = tuple('ar ca cs de en es et fr hi id it nl ro ru sv vi zh'.split())
BLEU_RANGE = (0.0, 20.0)
_ENDINGS = ('.tsv', '.txt')


def read(path: str) -> Iterator[parallel.TextPair]:
  """Reads one language's file.

  Yields:
    `inputs` and `targets`: the first and the second paraphrase.

  Raises:
    RecordError: A line has another number of columns than the first, which has
      two or three, or a text is empty.
  """
  count = columns.first_line(path).count('\t') + 1
  if count not in (2, 3):
    raise RecordError(
      f'{count} tab-separated fields; ParaCotta has three, of which the second'
      ' and the third are the paraphrases, or only these two',
      path=path,
      line=1,
    )
  names = {'inputs': count - 2, 'targets': count - 1}
  for line, row in columns.read_headerless(path, names, count):
    yield parallel.text_pair(row, path, line)


@functools.cache
def _bleu(language: str) -> sacrebleu.BLEU:
  tokenize = 'zh' if language == 'zh' else '13a'
  return sacrebleu.BLEU(tokenize=tokenize, effective_order=True)


def lexical_bleu(first: str, second: str, language: str) -> float:
  """Sentence BLEU of the second paraphrase against the first, 0 to 100."""
  return _bleu(language).sentence_score(second, [first]).score


def keep_diverse(
  dataset: tf.data.Dataset,
  language: str,
  low: float = BLEU_RANGE[0],
  high: float = BLEU_RANGE[1],
) -> tf.data.Dataset:
  """Keeps the pairs of strings whose lexical BLEU is from `low` to `high`."""

  def wanted(first: bytes, second: bytes) -> np.bool_:
    score = lexical_bleu(first.decode(), second.decode(), language)
    return np.bool_(low <= score <= high)

  def predicate(example: Mapping[str, tf.Tensor]) -> tf.Tensor:
    kept = tf.numpy_function(
      wanted, [example['inputs'], example['targets']], tf.bool
    )
    return tf.ensure_shape(kept, [])

  return dataset.filter(predicate)


def language_of(path: pathlib.Path) -> str | None:
  """The language code in a file's name; None if there is not exactly one."""
  stem = path.name.removesuffix('.gz')
  parts = re.split(r'[^a-z]+', os.path.splitext(stem)[0].lower())
  found = {part for part in parts if part in LANGUAGES}
  return found.pop() if len(found) == 1 else None


def files_of(folder: str | os.PathLike[str]) -> dict[str, list[str]]:
  """The files of a folder by language.

  Raises:
    FileNotFoundError: No such folder, or no file of the layout.
    RecordError: A file's name has no language.
  """
  found: dict[str, list[str]] = {}
  for path in sorted(pathlib.Path(folder).iterdir()):
    if not path.name.removesuffix('.gz').endswith(_ENDINGS):
      continue
    language = language_of(path)
    if language is None:
      raise RecordError(
        'the name must hold one language code of'
        f' {" ".join(LANGUAGES)}, for example en.tsv',
        path=path,
      )
    found.setdefault(language, []).append(str(path))
  if not found:
    raise FileNotFoundError(f'{folder}: no LANG.tsv, such as en.tsv')
  return found


def register(
  folder: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  name: str = 'paracotta',
  bleu_range: tuple[float, float] | None = BLEU_RANGE,
) -> dict[str, str]:
  """Registers the tasks and mixtures of a folder.

  Args:
    folder: The folder; see the module's docstring for its layout.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    name: Prefix of the tasks, and the mixtures' name.
    bleu_range: Lexical BLEU of the pairs to keep, both ends included; None
      keeps all, which is right for files that are filtered already.

  Returns:
    The language of each task, by task name.

  Raises:
    FileNotFoundError: No such folder, nothing in it, or no vocabulary.
    ValueError: An empty range, or a name is taken.
  """
  if bleu_range is not None and not bleu_range[0] <= bleu_range[1]:
    raise ValueError(f'bleu_range {bleu_range}: low must not exceed high')
  encoder = seqio_vocabulary(vocabulary)
  languages = {}
  for language, paths in files_of(folder).items():
    task = parallel.task_name(name, language)
    select = []
    if bleu_range is not None:
      low, high = bleu_range
      select.append(
        functools.partial(keep_diverse, language=language, low=low, high=high)
      )
    parallel.add_tasks(task, {'train': paths}, read, encoder, select)
    languages[task] = language
  parallel.add_mixtures(name, languages)
  return languages


if _folder := environment.corpus('paracotta'):
  register(_folder, environment.vocabulary())
