"""Tasks for generative training on pairs of texts: translations, paraphrases.

Layout of a folder: `NAME.tsv`, `NAME.validation.tsv`, `NAME.test.tsv` (each
also with `.gz`), tab-separated with a header that has `inputs` and `targets`;
or `.jsonl` with `source` and `target`, as `t5score mine` writes. For each NAME
two tasks:

    parallel_NAME        inputs -> targets
    parallel_NAME_both   both directions, as two examples

and the mixtures `parallel` and `parallel_both` of all of them, each NAME
sampled by p^0.5 of its size. With `T5SCORE_DATA` set, importing this module
registers `T5SCORE_DATA/parallel` (`environment`).

Not here: corpora with their own layouts (`paracotta`, `mt_prism`).
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import seqio
import tensorflow as tf

from t5score_jax.data import tables, translations
from t5score_jax.data.files import RecordError
from t5score_jax.inputs import preprocessors
from t5score_jax.tasks import columns, environment, mixtures, sources
from t5score_jax.tasks.vocabularies import seqio_vocabulary

SPLITS = ('train', 'validation', 'test')
TextPair = dict[str, str]


def read(path: str) -> Iterator[TextPair]:
  """Reads a TSV with the columns `inputs` and `targets`, or mined pairs.

  Yields:
    `inputs` and `targets`, neither empty.

  Raises:
    RecordError: A column is missing, or a cell is empty.
  """
  if tables.format_of(path) == 'jsonl':
    for source, target in translations.read_pairs(path):
      yield {'inputs': source, 'targets': target}
    return
  for line, row in columns.read_tsv(path, ('inputs', 'targets')):
    yield text_pair(row, path, line)


def text_pair(row: Mapping[str, str], path: str, line: int) -> TextPair:
  """Returns `inputs` and `targets` of a row; RecordError if one is empty."""
  for field in ('inputs', 'targets'):
    if not row[field].strip():
      raise RecordError(
        'an empty text; mend the line or remove it',
        path=path,
        line=line,
        field=field,
      )
  return {field: row[field] for field in ('inputs', 'targets')}


@seqio.map_over_dataset
def _both_ways(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  one, other = example['inputs'], example['targets']
  return {
    'inputs': tf.stack([one, other]),
    'targets': tf.stack([other, one]),
  }


def both_ways(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Yields each pair of strings twice: unchanged and swapped."""
  return _both_ways(dataset).unbatch()


def add_tasks(
  name: str,
  files: Mapping[str, Sequence[str | os.PathLike[str]]],
  read: sources.Reader,
  vocabulary: seqio.Vocabulary,
  select: Sequence[Callable[..., tf.data.Dataset]] = (),
) -> None:
  """Registers the task `name` and its twin `name_both`.

  Args:
    name: The task.
    files: The files of each split.
    read: Yields `inputs` and `targets` of one file.
    vocabulary: SeqIO's vocabulary.
    select: Preprocessors that filter the pairs of strings.
  """
  source = sources.FileSource(files, read, sources.TEXT_PAIR)
  for suffix, steps in (('', []), ('_both', [both_ways])):
    seqio.TaskRegistry.add(
      name + suffix,
      source=source,
      preprocessors=[
        *select,
        *steps,
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos_after_trim,
      ],
      output_features=preprocessors.text_features(vocabulary),
      shuffle_buffer_size=20_000,
    )


def add_mixtures(name: str, languages: Mapping[str, str]) -> None:
  """Registers the mixtures `name` and `name_both` over tasks' languages."""
  mixtures.add_mixture(name, languages)
  mixtures.add_mixture(
    f'{name}_both', {f'{task}_both': lang for task, lang in languages.items()}
  )


def task_name(*parts: str) -> str:
  """Joins parts with `_`, in the characters that SeqIO allows in a name."""
  return re.sub(r'\W', '_', '_'.join(part for part in parts if part))


def split_files(
  paths: Sequence[pathlib.Path], endings: Sequence[str]
) -> dict[str, dict[str, list[pathlib.Path]]]:
  """Groups `NAME[.SPLIT].ENDING[.gz]` by name and split, ignoring other files.

  Returns:
    The files of each split by NAME.
  """
  found: dict[str, dict[str, list[pathlib.Path]]] = {}
  for path in sorted(paths):
    stem, ending = os.path.splitext(path.name.removesuffix('.gz'))
    if ending.removeprefix('.') not in endings:
      continue
    base, _, split = stem.rpartition('.')
    name, split = (base, split) if split in SPLITS else (stem, 'train')
    found.setdefault(name, {}).setdefault(split, []).append(path)
  return found


def register(
  folder: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  name: str = 'parallel',
) -> dict[str, str]:
  """Registers the tasks and mixtures of a folder.

  Args:
    folder: The folder; see the module's docstring for its layout.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    name: Prefix of the tasks, and the mixtures' name.

  Returns:
    The language of each task (here each NAME is one), by task name.

  Raises:
    FileNotFoundError: No such folder, no TSV in it, or no vocabulary.
    ValueError: A name is taken.
  """
  found = split_files(list(pathlib.Path(folder).iterdir()), ('tsv', 'jsonl'))
  if not found:
    raise FileNotFoundError(
      f'{folder}: no NAME.tsv or NAME.jsonl; put tab-separated files with the '
      'columns inputs and targets there, or pairs that `t5score mine` wrote'
    )
  encoder = seqio_vocabulary(vocabulary)
  languages = {}
  for stem, files in found.items():
    task = task_name(name, stem)
    add_tasks(task, files, read, encoder)
    languages[task] = stem
  add_mixtures(name, languages)
  return languages


if _folder := environment.corpus('parallel'):
  register(_folder, environment.vocabulary())
