"""MQM ratings of WMT outputs (Freitag et al. 2021), as pairs and groups.

Layout, as published by Google (`wmt-mqm-human-evaluation`), anywhere under the
folder:

    mqm_TESTSET_LP.tsv                 one row per error that a rater found
    mqm_TESTSET_LP.avg_seg_scores.tsv  optional: the average of each segment

where LP is written `ende`. Only the columns `system doc doc_id seg_id rater
source target category severity` are read; the markers of the error span
(`<v>...</v>`) are removed. Other files (`.no-postedits`, `psqm_...`) are not
read.

A segment's rating `mqm` is minus the mean over raters of the sum of its
errors' weights: a major error 5, a minor 1, minor punctuation 0.1, a
non-translation 25, all else 0. So it is at most 0, and larger is better. A
file of averages overrides this.

These files have no references but rate human translations as systems. One of
these is used as the reference: the first by name, or `reference_system`.

Tasks and mixtures are those of `judged`, with the test set as the part, such as
`mqm_newstest2020_en_de_pairs`, `mqm_newstest2020_groups_source`. With
`T5SCORE_DATA` set, importing this module registers `T5SCORE_DATA/mqm`
(`environment`).
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

from absl import logging

from t5score_jax.data import files, numbers
from t5score_jax.data.files import RecordError
from t5score_jax.data.humans import is_human
from t5score_jax.data.records import Segment
from t5score_jax.tasks import columns, environment, judged

#: Weight of an error by its severity, in lower case.
SEVERITIES: Mapping[str, float] = {
  'major': 5.0,
  'minor': 1.0,
  'neutral': 0.0,
  'no-error': 0.0,
}
_MINOR_PUNCTUATION = 0.1
_NON_TRANSLATION = 25.0
_COLUMNS = (
  'system',
  'doc',
  'seg_id',
  'rater',
  'source',
  'target',
  'category',
  'severity',
)
_NAME = re.compile(r'mqm_(?P<set>\w+?)_(?P<lp>[a-z]{4})\.tsv(?:\.gz)?')
_MARKS = re.compile(r'</?v>')


def weight(
  category: str, severity: str, severities: Mapping[str, float] = SEVERITIES
) -> float:
  """The weight of one error.

  >>> weight('Fluency/Punctuation', 'Minor'), weight('Style/Awkward', 'Major')
  (0.1, 5.0)

  Args:
    category: As published, for example `Accuracy/Omission`.
    severity: As published, in any case.
    severities: Weights by severity.

  Returns:
    At least 0.

  Raises:
    KeyError: A severity without a weight.
  """
  severity = severity.strip().lower()
  category = category.strip().lower()
  if category.startswith('non-translation'):
    return _NON_TRANSLATION
  if severity == 'minor' and category == 'fluency/punctuation':
    return _MINOR_PUNCTUATION
  return severities[severity]


def read(
  path: str,
  reference_system: str | None = None,
  severities: Mapping[str, float] = SEVERITIES,
) -> Iterator[tuple[str, Segment]]:
  """Reads `mqm_TESTSET_LP.tsv` and the averages beside it, if any.

  Args:
    path: The file.
    reference_system: The rated system whose texts are the references; by
      default the first human one by name.
    severities: Weights by severity.

  Yields:
    (test set, segment with the rating `mqm`), in the order of first rows.

  Raises:
    RecordError: A column is missing, a severity has no weight, or there is no
      such reference system.
  """
  match = _NAME.fullmatch(pathlib.Path(path).name)
  assert match is not None
  language_pair = f'{match["lp"][:2]}-{match["lp"][2:]}'
  rows: dict[tuple[str, str], dict[str, str]] = {}
  errors: dict[tuple[str, str], dict[str, list[float]]] = {}
  unlike = 0
  for line, row in columns.read_tsv(path, _COLUMNS):
    try:
      value = weight(row['category'], row['severity'], severities)
    except KeyError as error:
      raise RecordError(
        f'no weight for the severity {row["severity"]!r}; give severities one',
        path=path,
        line=line,
        field='severity',
      ) from error
    for side in ('source', 'target'):
      row[side] = _MARKS.sub('', row[side])
    identity = (row['system'], row['seg_id'])
    first = rows.setdefault(identity, row)
    unlike += any(first[side] != row[side] for side in ('source', 'target'))
    raters = errors.setdefault(identity, {})
    raters.setdefault(row['rater'], []).append(value)
  if unlike:
    logging.warning(
      '%s: %d rows give a segment another text than its first row; the first'
      ' is kept',
      path,
      unlike,
    )
  averages = _read_averages(path)
  references = _references(rows, reference_system, path)
  for identity, row in rows.items():
    ratings = {}
    if averages is None:
      raters = errors[identity]
      # An exact sum: the order of errors must not make ties differ.
      total = math.fsum(itertools.chain(*raters.values()))
      ratings['mqm'] = -total / len(raters)
    elif averages.get(identity) is not None:
      ratings['mqm'] = averages[identity]
    reference = references.get(row['seg_id'])
    yield (
      match['set'],
      Segment(
        hypothesis=row['target'],
        source=row['source'] or None,
        references=(reference,) if reference else (),
        system=row['system'],
        document=row['doc'],
        segment=row['seg_id'],
        language_pair=language_pair,
        ratings=ratings,
      ),
    )


def _references(
  rows: Mapping[tuple[str, str], Mapping[str, str]],
  reference_system: str | None,
  path: str,
) -> dict[str, str]:
  """The reference of each segment id, from a human system's texts."""
  systems = sorted({system for system, _ in rows})
  humans = [system for system in systems if is_human(system)]
  if reference_system is not None and reference_system not in systems:
    raise RecordError(
      f'there is no system {reference_system!r} to take the references from;'
      f' there are: {", ".join(systems)}',
      path=path,
      field='system',
    )
  chosen = reference_system or (humans[0] if humans else None)
  return {
    segment: row['target']
    for (system, segment), row in rows.items()
    if system == chosen
  }


def _read_averages(path: str) -> dict[tuple[str, str], float] | None:
  """Reads `....avg_seg_scores.tsv`: system, score (or None), segment id.

  Published files are separated by spaces, by tabs, or by both.
  """
  stem = path.removesuffix('.gz').removesuffix('.tsv')
  beside = f'{stem}.avg_seg_scores.tsv'
  if not os.path.exists(beside):
    return None
  averages = {}
  with files.open_text(beside) as lines:
    header = next(lines, '').split()
    if header != ['system', 'mqm_avg_score', 'seg_id']:
      raise RecordError(
        f'the columns are {header}, not system, mqm_avg_score, seg_id',
        path=beside,
        line=1,
      )
    for number, line in enumerate(lines, 2):
      cells = line.split()
      if len(cells) != 3:
        raise RecordError(
          f'{len(cells)} fields, not 3', path=beside, line=number
        )
      system, score, segment = cells
      if score != 'None':
        averages[system, segment] = numbers.read(
          score, path=beside, line=number, field='mqm_avg_score'
        )
  return averages


def files_of(folder: str | os.PathLike[str]) -> dict[judged.Key, list[str]]:
  """The files under a folder by test set and language pair.

  Raises:
    FileNotFoundError: There are none.
  """
  found: dict[judged.Key, list[str]] = {}
  for path in sorted(pathlib.Path(folder).rglob('mqm_*')):
    if match := _NAME.fullmatch(path.name):
      lp = f'{match["lp"][:2]}-{match["lp"][2:]}'
      found.setdefault((match['set'], lp), []).append(str(path))
  if not found:
    raise FileNotFoundError(
      f'{folder}: no mqm_TESTSET_LP.tsv, such as mqm_newstest2020_ende.tsv'
    )
  return found


def register(
  folder: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  name: str = 'mqm',
  options: judged.Options | None = None,
  kinds: Sequence[str] = judged.KINDS,
  reference_system: str | None = None,
  severities: Mapping[str, float] = SEVERITIES,
) -> dict[judged.Key, dict[str, str]]:
  """Registers the tasks and mixtures of a folder.

  Args:
    folder: The folder; see the module's docstring for its layout.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    name: Prefix of the tasks and mixtures.
    options: How judgments become examples; the rating is `mqm`.
    kinds: Which of `judged.KINDS`.
    reference_system: See `read`.
    severities: Weights by severity.

  Returns:
    The task's name by kind, by test set and language pair.

  Raises:
    FileNotFoundError: No such folder, nothing in it, or no vocabulary.
    ValueError: A name is taken.
  """
  corpus = judged.Corpus(
    functools.partial(
      read, reference_system=reference_system, severities=severities
    )
  )
  options = options or judged.Options(rating='mqm')
  return judged.register_corpus(
    name, files_of(folder), corpus, vocabulary, options, kinds
  )


if _folder := environment.corpus('mqm'):
  register(_folder, environment.vocabulary())
