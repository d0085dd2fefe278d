"""QE20: quality estimation at WMT20 (MLQE), source-based, with its splits.

Layout, as published (MLQE, MLQE-PE), anywhere under the folder:

    SPLIT.LP.df.short.tsv     SPLIT is train, dev or test20; LP is written ende

tab-separated with the columns `index original translation scores mean z_scores
z_mean model_scores`, of which `original`, `translation`, `z_mean` (rating `z`)
and `mean` (rating `da`) are read. The blind `test20` files lack the ratings;
use those with gold labels.

Each source has one translation, so the hypotheses of a pair cannot share a
source. Equation 3 is therefore applied to two segments of a language pair, each
with its own source. The segments of a split are paired at random within windows
of 256, with a seed and differently in each epoch. A segment is not used in an
epoch if its partner has the same rating or if it is left over.

    qe20_LP_pairs     for example qe20_en_de_pairs, train / validation / test
    qe20_pairs        their mixture, sampled by p^0.5

`segments` gives a split's segments: the best checkpoint is the one whose scores
correlate best (Pearson) with `z` on `dev` (Qin et al. 2022, section 6.1). With
`T5SCORE_DATA` set, importing this module registers `T5SCORE_DATA/qe20`
(`environment`).
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5score_jax.data import judgments, numbers
from t5score_jax.data.records import Segment
from t5score_jax.inputs import preprocessors
from t5score_jax.tasks import (
  columns,
  environment,
  mixtures,
  parallel,
  sources,
)
from t5score_jax.tasks.vocabularies import seqio_vocabulary

#: Published name of each split by SeqIO's.
SPLITS = {'train': 'train', 'validation': 'dev', 'test': 'test20'}
WINDOW = 256
_NAME = re.compile(
  r'(?P<split>train|dev|test20)\.(?P<lp>[a-z]{4})\.df\.short\.tsv(?:\.gz)?'
)


def read(path: str) -> Iterator[Segment]:
  """Reads one file.

  Yields:
    Segments with the ratings `z` and `da`.

  Raises:
    RecordError: A column is missing (as in the blind test files), or a rating
      is not a number.
  """
  match = _NAME.fullmatch(pathlib.Path(path).name)
  assert match is not None
  wanted = ('index', 'original', 'translation', 'mean', 'z_mean')
  for line, row in columns.read_tsv(path, wanted):
    yield Segment(
      hypothesis=row['translation'],
      source=row['original'],
      segment=row['index'],
      language_pair=f'{match["lp"][:2]}-{match["lp"][2:]}',
      ratings={
        name: numbers.read(row[column], path=path, line=line, field=column)
        for name, column in (('z', 'z_mean'), ('da', 'mean'))
      },
    )


def files_of(
  folder: str | os.PathLike[str],
) -> dict[str, dict[str, list[str]]]:
  """The files under a folder by language pair and SeqIO's split.

  Raises:
    FileNotFoundError: There are none.
  """
  names = {published: split for split, published in SPLITS.items()}
  found: dict[str, dict[str, list[str]]] = {}
  for path in sorted(pathlib.Path(folder).rglob('*.df.short.tsv*')):
    if match := _NAME.fullmatch(path.name):
      lp = f'{match["lp"][:2]}-{match["lp"][2:]}'
      splits = found.setdefault(lp, {})
      splits.setdefault(names[match['split']], []).append(str(path))
  if not found:
    raise FileNotFoundError(
      f'{folder}: no SPLIT.LP.df.short.tsv, such as train.ende.df.short.tsv'
    )
  return found


def segments(folder: str | os.PathLike[str], split: str) -> list[Segment]:
  """Reads one split's segments of all language pairs, to measure agreement.

  Args:
    folder: The folder; see the module's docstring for its layout.
    split: `'train'`, `'validation'` or `'test'`.

  Returns:
    The segments, language pair by language pair.

  Raises:
    FileNotFoundError: There are no files of that split.
    RecordError: A file is malformed.
  """
  paths = [
    path
    for splits in files_of(folder).values()
    for path in splits.get(split, [])
  ]
  if not paths:
    raise FileNotFoundError(
      f'{folder}: no {SPLITS.get(split, split)}.LP.df.short.tsv'
    )
  return [segment for path in paths for segment in read(path)]


def read_groups(path: str, rating: str) -> Iterator[dict[str, Any]]:
  """Reads one file as groups of one, which `across_segments` pairs."""
  groups, _ = judgments.groups(
    read(path), rating, shared='source', leave_out=None, min_size=1
  )
  for group in groups:
    # A source that occurs twice makes a group of two: two segments here.
    for hypothesis, value in zip(group.hypotheses, group.ratings, strict=True):
      yield {
        'shared': group.shared,
        'hypotheses': [hypothesis],
        'ratings': [value],
      }


def across_segments(
  dataset: tf.data.Dataset,
  output_features: Mapping[str, seqio.Feature],
  sequence_length: Mapping[str, int] | None = None,
  *,
  directions: Sequence[str] = preprocessors.DIRECTIONS,
  window: int = WINDOW,
) -> tf.data.Dataset:
  """Pairs segments at random within windows, with the better one first.

  Args:
    dataset: Groups of one, as `preprocessors.tokenize_judgments` leaves
    them.
    output_features: The task's.
    sequence_length: Maximum length of `inputs` and `targets`; None: no limit.
    directions: Some of `preprocessors.DIRECTIONS`; each is an example.
    window: Number of successive segments within which to pair.

  Returns:
    Examples as of `preprocessors.pair_examples`, with two shared texts.
  """
  single = dataset.map(
    lambda example: {
      'shared': example['shared'],
      'hypotheses': example['hypotheses'][0],
      'ratings': example['ratings'][0],
    }
  )

  @seqio.map_over_dataset(num_seeds=1)
  def match(example: Mapping[str, Any], seed: tf.Tensor) -> dict[str, Any]:
    ratings = example['ratings']
    total = tf.size(ratings)
    order = tf.argsort(tf.random.stateless_uniform([total], seed))
    couples = tf.reshape(order[: total // 2 * 2], [-1, 2])
    gap = tf.gather(ratings, couples[:, 0]) - tf.gather(ratings, couples[:, 1])
    couples = tf.where(gap[:, tf.newaxis] > 0, couples, couples[:, ::-1])
    couples = tf.boolean_mask(couples, gap != 0)
    return preprocessors.list_pairs(
      example['shared'],
      example['hypotheses'],
      ratings,
      tf.cast(couples, tf.int64),
      output_features,
      sequence_length,
      directions,
    )

  return match(single.ragged_batch(window)).unbatch()


def register(
  folder: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  name: str = 'qe20',
  rating: str = 'z',
  directions: Sequence[str] = preprocessors.DIRECTIONS,
) -> dict[str, str]:
  """Registers the tasks and the mixture of a folder.

  Args:
    folder: The folder; see the module's docstring for its layout.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    name: Prefix of the tasks and the mixture.
    rating: `'z'` or `'da'`.
    directions: Which directions.

  Returns:
    The language pair of each task, by task name.

  Raises:
    FileNotFoundError: No such folder, nothing in it, or no vocabulary.
    ValueError: A name is taken, or an unknown direction.
  """
  preprocessors.check_directions(directions)
  encoder = seqio_vocabulary(vocabulary)
  languages = {}
  for language_pair, files in files_of(folder).items():
    task = parallel.task_name(name, language_pair, 'pairs')
    seqio.TaskRegistry.add(
      task,
      source=sources.FileSource(
        files,
        functools.partial(read_groups, rating=rating),
        sources.JUDGED_GROUP,
      ),
      preprocessors=[
        preprocessors.tokenize_judgments,
        seqio.CacheDatasetPlaceholder(),
        functools.partial(across_segments, directions=tuple(directions)),
      ],
      output_features=preprocessors.pair_features(encoder),
      shuffle_buffer_size=20_000,
    )
    languages[task] = language_pair
  mixtures.add_mixture(f'{name}_pairs', languages)
  return languages


if _folder := environment.corpus('qe20'):
  register(_folder, environment.vocabulary())
