"""Tasks of human judgments: pairs and groups, against reference or source.

Shared by corpora of judgments: `wmt_da`, `mqm` and `multisumm` provide a reader
of their layout and get, for each part (a year, a test set) and language pair,
the tasks

    CORPUS_PART_LP_pairs           equation 3's pairs, in both directions
    CORPUS_PART_LP_groups          a reference with all its hypotheses
    CORPUS_PART_LP_pairs_source    the same against the source
    CORPUS_PART_LP_groups_source

for example `wmt_da_2017_de_en_pairs`, and mixtures over the language pairs,
sampled by p^0.5: `CORPUS_PART_KIND` for each part and `CORPUS_KIND` for all.
Train pairs with `feature_converters.PairFeatureConverter`, groups with
`feature_converters.GroupFeatureConverter`.

`register` reads the project's own corpus format: a folder of records (TSV or
JSONL, `t5score_jax.data.records`) named `[PART.]LP.jsonl`, as
`scripts/prepare/judgments.py` writes them. Its tasks are `judged_...`. With
`T5SCORE_DATA` set, importing this module registers `T5SCORE_DATA/judged`
(`environment`).

Not for selecting judgments: that is `t5score_jax.data.judgments`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import seqio
from absl import logging

from t5score_jax.data import humans, judgments, records, tables
from t5score_jax.data.files import RecordError
from t5score_jax.data.records import Segment
from t5score_jax.inputs import preprocessors
from t5score_jax.tasks import (
  agreement,
  environment,
  mixtures,
  parallel,
  sources,
)
from t5score_jax.tasks.vocabularies import seqio_vocabulary

#: (part of the corpus, language pair), for example ('2017', 'de-en').
Key = tuple[str, str]
Reader = Callable[[str], Iterator[tuple[str, Segment]]]

KINDS = ('pairs', 'groups', 'pairs_source', 'groups_source')
_FILE_NAME = re.compile(
  r'(?:(?P<part>[\w-]+)\.)?(?P<lp>[a-z]{2,3}(?:-[a-z]{2,3})?)\.(?:tsv|jsonl)'
  r'(?:\.gz)?'
)


@dataclasses.dataclass(frozen=True)
class Options:
  """How judgments become examples.

  Attributes:
    rating: The name of the rating; larger is better.
    min_gap: Pairs are used if their ratings differ by more than this. For
      groups the objective decides.
    directions: The directions of the pairs; see
    `preprocessors.DIRECTIONS`.
    merge_identical: Whether to merge equal hypotheses of a group, with the mean
      of their ratings.
    leave_out: Takes a system's name and returns whether to leave it out.
  """

  rating: str = 'z'
  min_gap: float = 0.0
  directions: Sequence[str] = preprocessors.DIRECTIONS
  merge_identical: bool = False
  leave_out: Callable[[str | None], bool] | None = humans.is_human


class Corpus:
  """A corpus of judgments, whose files are read once and kept in memory."""

  def __init__(self, read: Reader):
    """Stores the reader.

    Args:
      read: Yields (part, segment) for each row of a file; every segment has a
        language pair.
    """
    self._read = read
    self._load = functools.cache(self._load_version)

  def _load_version(
    self, path: str, version: tuple[int, int]
  ) -> dict[Key, list[Segment]]:
    del version  # a key of the cache: the file as it was then
    found: dict[Key, list[Segment]] = {}
    for part, segment in self._read(path):
      assert segment.language_pair is not None
      found.setdefault((part, segment.language_pair), []).append(segment)
    return found

  def segments(
    self, path: str | os.PathLike[str]
  ) -> Mapping[Key, list[Segment]]:
    """All segments of a file by (part, language pair).

    Raises:
      RecordError: The file is malformed.
      OSError: The file can't be read.
    """
    status = os.stat(path)
    version = (status.st_mtime_ns, status.st_size)
    return self._load(os.fspath(path), version)

  def reader(self, key: Key, shared: str, options: Options) -> sources.Reader:
    """A reader of one file's groups, as `sources.FileSource` needs it."""
    reported: set[str] = set()

    def read(path: str) -> Iterator[dict[str, Any]]:
      groups, selection = judgments.groups(
        self.segments(path).get(key, []),
        options.rating,
        shared=shared,
        leave_out=options.leave_out,
        merge_identical=options.merge_identical,
      )
      if path not in reported:
        reported.add(path)
        logging.info(
          '%s, %s, by %s: %s', path, ' '.join(key), shared, selection
        )
      for group in groups:
        yield {
          'shared': group.shared,
          'hypotheses': list(group.hypotheses),
          'ratings': list(group.ratings),
        }

    return read


def add_tasks(
  name: str,
  key: Key,
  make_source: Callable[[str], seqio.DataSource],
  vocabulary: seqio.Vocabulary,
  options: Options,
  kinds: Sequence[str] = KINDS,
  prepare: Sequence[Callable[..., Any]] = (),
) -> dict[str, str]:
  """Registers the tasks of one part and language pair.

  Args:
    name: The corpus.
    key: The part and the language pair.
    make_source: Returns the data source of groups by `'reference'` or
      `'source'`.
    vocabulary: SeqIO's vocabulary.
    options: How judgments become examples.
    kinds: Some of `KINDS`.
    prepare: Preprocessors that produce `sources.JUDGED_GROUP` if the source
      does not.

  Returns:
    The task's name by kind.

  Raises:
    ValueError: An unknown kind or direction, or a name is taken.
  """
  preprocessors.check_directions(options.directions)
  names = {}
  for kind in kinds:
    if kind not in KINDS:
      raise ValueError(f'kinds must be of {KINDS}, not {kind!r}')
    shape, _, suffix = kind.partition('_')
    if shape == 'pairs':
      output_features = preprocessors.pair_features(vocabulary)
      expand: Callable[..., Any] = functools.partial(
        preprocessors.pair_examples,
        directions=tuple(options.directions),
        min_gap=options.min_gap,
      )
    else:
      output_features = preprocessors.group_features(vocabulary)
      expand = preprocessors.group_examples
    names[kind] = parallel.task_name(name, *key, kind)
    seqio.TaskRegistry.add(
      names[kind],
      source=make_source('source' if suffix else 'reference'),
      preprocessors=[
        *prepare,
        preprocessors.tokenize_judgments,
        seqio.CacheDatasetPlaceholder(),
        expand,
      ],
      output_features=output_features,
      metric_objs=[agreement.Agreement],
      shuffle_buffer_size=20_000,
    )
  return names


def add_mixtures(name: str, tasks: Mapping[Key, Mapping[str, str]]) -> None:
  """Registers `NAME_PART_KIND` and `NAME_KIND` over the language pairs.

  Parts that are years also give mixtures of spans of years, such as
  `wmt_da_2017_2019_pairs`.

  Args:
    name: The corpus.
    tasks: The results of `add_tasks`, by part and language pair.
  """
  parts = sorted({part for part, _ in tasks})
  spans = {name: parts}
  for part in filter(None, parts):
    spans[parallel.task_name(name, part)] = [part]
  if all(re.fullmatch(r'20\d\d', part) for part in parts):
    for i, first in enumerate(parts):
      for j in range(i + 1, len(parts)):
        years = parallel.task_name(name, first, parts[j])
        spans[years] = parts[i : j + 1]
  for prefix, members in spans.items():
    _add_span(prefix, members, tasks)


def _add_span(
  prefix: str,
  parts: Sequence[str],
  tasks: Mapping[Key, Mapping[str, str]],
) -> None:
  """Registers a mixture for each kind over the tasks of some parts."""
  languages: dict[str, dict[str, str]] = {}
  for (part, language_pair), names in tasks.items():
    if part in parts:
      for kind, task in names.items():
        languages.setdefault(kind, {})[task] = language_pair
  for kind, members in languages.items():
    mixtures.add_mixture(f'{prefix}_{kind}', members)


def register_corpus(
  name: str,
  files: Mapping[Key, Sequence[str | os.PathLike[str]]],
  corpus: Corpus,
  vocabulary: str,
  options: Options,
  kinds: Sequence[str] = KINDS,
) -> dict[Key, dict[str, str]]:
  """Registers tasks and mixtures of a corpus that `FileSource` reads.

  Args:
    name: The corpus.
    files: The files that hold each part and language pair.
    corpus: Reads them.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    options: How judgments become examples.
    kinds: Some of `KINDS`.

  Returns:
    The task's name by kind, by part and language pair.
  """
  encoder = seqio_vocabulary(vocabulary)

  def make_source(
    shared: str, key: Key, paths: Sequence[str | os.PathLike[str]]
  ) -> seqio.DataSource:
    read = corpus.reader(key, shared, options)
    return sources.FileSource({'train': paths}, read, sources.JUDGED_GROUP)

  tasks = {}
  for key, paths in sorted(files.items()):
    make = functools.partial(make_source, key=key, paths=paths)
    tasks[key] = add_tasks(name, key, make, encoder, options, kinds)
  add_mixtures(name, tasks)
  return tasks


def key_of_file(path: pathlib.Path) -> Key | None:
  """The part and language pair in a file's name `[PART.]LP.jsonl`."""
  match = _FILE_NAME.fullmatch(path.name)
  return (match['part'] or '', match['lp']) if match else None


def read_named(path: str, rating: str) -> Iterator[tuple[str, Segment]]:
  """Reads records from a file named by its part and language pair.

  Args:
    path: `[PART.]LP.tsv` or `.jsonl`, also with `.gz`.
    rating: The rating to read.

  Yields:
    (part, segment).

  Raises:
    RecordError: A record is malformed or names another language pair.
  """
  key = key_of_file(pathlib.Path(path))
  assert key is not None
  part, language_pair = key
  for segment in records.stream_records(path, ratings=(rating,)):
    if segment.language_pair not in (None, language_pair):
      raise RecordError(
        f'a record of {segment.language_pair!r} in a file of {language_pair!r}',
        path=path,
        field='language_pair',
      )
    yield part, dataclasses.replace(segment, language_pair=language_pair)


def register(
  folder: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  name: str = 'judged',
  options: Options | None = None,
  kinds: Sequence[str] = KINDS,
) -> dict[Key, dict[str, str]]:
  """Registers a folder of records named `[PART.]LP.tsv` or `.jsonl`.

  Args:
    folder: The folder.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    name: Prefix of the tasks and mixtures.
    options: How judgments become examples; by default the rating is `z`.
    kinds: Some of `KINDS`.

  Returns:
    The task's name by kind, by part and language pair.

  Raises:
    FileNotFoundError: No such folder, no records in it, or no vocabulary.
    RecordError: A file's name has no language pair.
    ValueError: A name is taken.
  """
  options = options or Options()
  files: dict[Key, list[pathlib.Path]] = {}
  for path in sorted(pathlib.Path(folder).iterdir()):
    if tables.format_of(path) is None:
      continue
    key = key_of_file(path)
    if key is None:
      raise RecordError(
        'the name does not say the language pair; call it [PART.]LP.tsv or'
        ' .jsonl, for example 2019.de-en.jsonl',
        path=path,
      )
    files.setdefault(key, []).append(path)
  if not files:
    raise FileNotFoundError(
      f'{folder}: no records; put files named [PART.]LP.jsonl there'
    )
  corpus = Corpus(functools.partial(read_named, rating=options.rating))
  return register_corpus(name, files, corpus, vocabulary, options, kinds)


if _folder := environment.corpus('judged'):
  register(_folder, environment.vocabulary())
