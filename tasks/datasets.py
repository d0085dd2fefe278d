"""TFDS builders: judgments from local files as a TensorFlow dataset.

`WmtDa` converts a folder of WMT direct assessments (layout: `wmt_da`) to
TFRecord shards, which load fast, in parallel and on many hosts, and which
`seqio.TfdsDataSource` reads. Each year and language pair has two splits,
`2017_de_en_reference` and `2017_de_en_source`. An example is a reference (or a
source) with all its rated hypotheses.

    datasets.build('my/wmt_da', 'my/tfds')
    datasets.register('my/tfds', 'vocabulary.model')

registers the tasks and mixtures of `wmt_da.register`. Human translations are
left out when the dataset is built. With `T5SCORE_DATA` set, importing this
module registers `T5SCORE_DATA/tfds` (`environment`).

Nothing is downloaded. `scripts/prepare/wmt_da.py` is the command for `build`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import seqio
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import logging

from t5score_jax.data import humans, judgments
from t5score_jax.tasks import environment, judged, sources, wmt_da
from t5score_jax.tasks.vocabularies import seqio_vocabulary

RATINGS = ('z', 'raw')
_SPLIT = re.compile(r'(20\d\d)_([a-z]+)_([a-z]+)_(reference|source)')


def split_name(key: judged.Key, shared: str) -> str:
  """Names the split of a year, a language pair and a kind of shared text."""
  year, language_pair = key
  return f'{year}_{language_pair.replace("-", "_")}_{shared}'


class WmtDa(tfds.core.GeneratorBasedBuilder):
  """WMT direct assessments, grouped by reference and by source.

  The configurations `z` and `raw` choose the stored rating. The files are
  read from TFDS's manual folder, `DownloadConfig(manual_dir=FOLDER)`.
  """

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'First version.'}
  BUILDER_CONFIGS = [
    tfds.core.BuilderConfig(name='z', description='Standardized scores.'),
    tfds.core.BuilderConfig(name='raw', description='Scores from 0 to 100.'),
  ]
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    'Give the folder of your copy of the WMT direct assessments, CSV files with'
    ' the columns lp, src, mt, ref, score, raw, year, as manual_dir.'
  )

  def _info(self) -> tfds.core.DatasetInfo:
    text = tfds.features.Text()
    return tfds.core.DatasetInfo(
      builder=self,
      description='WMT direct assessments as groups of rated hypotheses.',
      features=tfds.features.FeaturesDict(
        {
          'shared': text,
          'hypotheses': tfds.features.Sequence(text),
          'ratings': tfds.features.Sequence(tf.float32),
          'systems': tfds.features.Sequence(text),
        }
      ),
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
    rating = self.builder_config.name
    corpus = judged.Corpus(functools.partial(wmt_da.read, rating=rating))
    splits = {}
    for key, paths in sorted(wmt_da.files_of(dl_manager.manual_dir).items()):
      for shared in judgments.SHARED:
        segments = [s for path in paths for s in corpus.segments(path)[key]]
        groups, selection = judgments.groups(segments, rating, shared=shared)
        logging.info('%s by %s: %s', ' '.join(key), shared, selection)
        if groups:
          splits[split_name(key, shared)] = self._generate_examples(groups)
    return splits

  def _generate_examples(
    self, groups: Sequence[judgments.Group]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number, group)."""
    for number, group in enumerate(groups):
      yield (
        number,
        {
          'shared': group.shared,
          'hypotheses': list(group.hypotheses),
          'ratings': list(group.ratings),
          'systems': [system or '' for system in group.systems],
        },
      )


def build(
  folder: str | os.PathLike[str],
  data_dir: str | os.PathLike[str],
  rating: str = 'z',
) -> WmtDa:
  """Builds the dataset from a folder, unless it is already built.

  Args:
    folder: The judgments, in the layout of `wmt_da`.
    data_dir: Where TFDS keeps its datasets.
    rating: `'z'` or `'raw'`.

  Returns:
    The builder, whose `as_dataset` reads the dataset.

  Raises:
    FileNotFoundError: No such folder, or no file of the layout in it.
    RecordError: A file is malformed.
    ValueError: An unknown rating, or no segment has it.
  """
  if rating not in RATINGS:
    raise ValueError(f'rating must be one of {RATINGS}, not {rating!r}')
  wmt_da.files_of(folder)  # complains before anything is written
  builder = WmtDa(config=rating, data_dir=os.fspath(data_dir))
  config = tfds.download.DownloadConfig(manual_dir=os.fspath(folder))
  builder.download_and_prepare(download_config=config)
  return builder


@seqio.map_over_dataset
def _judged_group(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  return {name: example[name] for name in sources.JUDGED_GROUP}


def register(
  data_dir: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  name: str = 'wmt_da',
  options: judged.Options | None = None,
  kinds: Sequence[str] = judged.KINDS,
) -> dict[judged.Key, dict[str, str]]:
  """Registers the tasks and mixtures of a dataset that `build` has built.

  Args:
    data_dir: Where TFDS keeps its datasets.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    name: Prefix of the tasks and mixtures.
    options: How judgments become examples. Two are fixed by `build`: humans are
      left out, identical hypotheses are not merged.
    kinds: Some of `judged.KINDS`.

  Returns:
    The task's name by kind, by year and language pair.

  Raises:
    FileNotFoundError: The dataset is not built there, or no vocabulary.
    ValueError: Options that would change the groups, or a name is taken.
  """
  options = options or judged.Options()
  if options.merge_identical or options.leave_out is not humans.is_human:
    raise ValueError(
      'a built dataset has its groups: register the files (wmt_da.register) to'
      ' set merge_identical or leave_out'
    )
  encoder = seqio_vocabulary(vocabulary)
  tfds_name = f'wmt_da/{options.rating}:{WmtDa.VERSION}'
  builder = WmtDa(config=options.rating, data_dir=os.fspath(data_dir))
  keys: dict[judged.Key, set[str]] = {}
  for split in builder.info.splits:
    match = _SPLIT.fullmatch(split)
    assert match is not None, f'{split} is not a name of `split_name`'
    year, one, two, shared = match.groups()
    keys.setdefault((year, f'{one}-{two}'), set()).add(shared)
  if not keys:
    raise FileNotFoundError(
      f'{data_dir}: the dataset wmt_da/{options.rating} is not built there; run'
      ' scripts/prepare/wmt_da.py'
    )

  def make_source(shared: str, key: judged.Key) -> seqio.DataSource:
    return seqio.TfdsDataSource(
      tfds_name,
      tfds_data_dir=os.fspath(data_dir),
      splits={'train': split_name(key, shared)},
    )

  tasks = {}
  for key, present in sorted(keys.items()):
    tasks[key] = judged.add_tasks(
      name,
      key,
      functools.partial(make_source, key=key),
      encoder,
      options,
      [
        kind
        for kind in kinds
        if ('source' if kind.endswith('source') else 'reference') in present
      ],
      prepare=[_judged_group],
    )
  judged.add_mixtures(name, tasks)
  return tasks


if _folder := environment.corpus('tfds'):
  register(_folder, environment.vocabulary())
