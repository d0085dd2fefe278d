"""A small made-up corpus for trying out training without data.

A few hundred English sentences about who does what, where and when. Each part
has two wordings, so every sentence has paraphrases. Each sentence has four
"translations", whose ratings measure how much of it they keep. Nothing is read
or downloaded: the corpus is computed deterministically. Tasks:

    made_up          a sentence -> another wording of it
    made_up_pairs    equation 3's pairs, in both directions
    made_up_groups   a sentence with its four rated translations

each with the splits `train` and `validation`, in bytes. `segments` gives the
judgments as records, for an evaluator. Not a benchmark: a good score only shows
that training works.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import seqio

from t5score_jax.data import judgments
from t5score_jax.data.records import Segment
from t5score_jax.inputs import preprocessors
from t5score_jax.tasks import judged, parallel, sources
from t5score_jax.tasks.vocabularies import seqio_vocabulary

SPLITS = ('train', 'validation')
RATING = 'z'
# One of this many sentences is held out.
_HELD_OUT = 8

# Parts of a sentence: a meaning -> its two wordings.
_PARTS = (
  (('the kid', 'the child'), ('a woman', 'a lady'), ('my boss', 'my chief'))
  + (
    ('the crew', 'the team'),
    ('a robber', 'a thief'),
    ('the doctor', 'the medic'),
  ),
  (('buys', 'purchases'), ('fixes', 'repairs'), ('hides', 'conceals'))
  + (('shows', 'presents'), ('throws', 'hurls'), ('wants', 'desires')),
  (('a rock', 'a stone'), ('the boat', 'the ship'), ('a present', 'a gift'))
  + (('the couch', 'the sofa'), ('a picture', 'an image')),
  (('here', 'in this place'), ('at dusk', 'in the evening'))
  + (('every day', 'daily'), ('at once', 'right now')),
)
# The four systems: name, number of wrong parts, rating.
_SYSTEMS = (
  ('alpha', 0, 1.0),
  ('beta', 1, 0.2),
  ('gamma', 2, -0.4),
  ('delta', 3, -0.8),
)

Meaning = tuple[int, ...]


def meanings(split: str) -> list[Meaning]:
  """The sentences of a split, as indices of the meanings of their parts.

  Raises:
    ValueError: No such split.
  """
  if split not in SPLITS:
    raise ValueError(f'split {split!r}: use one of {SPLITS}')
  everything = itertools.product(*(range(len(part)) for part in _PARTS))
  return [
    meaning
    for index, meaning in enumerate(everything)
    if (index % _HELD_OUT == 0) == (split == 'validation')
  ]


def sentence(meaning: Meaning, wordings: Meaning) -> str:
  """Puts a meaning into words.

  >>> sentence((0, 0, 0, 0), (0, 0, 0, 0))
  'the kid buys a rock here'

  Args:
    meaning: The meaning of each of the four parts.
    wordings: 0 or 1 for each part.
  """
  return ' '.join(
    part[m][w] for part, m, w in zip(_PARTS, meaning, wordings, strict=True)
  )


def text_pairs(split: str) -> Iterator[parallel.TextPair]:
  """Yields each sentence of a split with another wording of all its parts."""
  generator = np.random.default_rng(0)
  for meaning in meanings(split):
    wordings = generator.integers(0, 2, len(_PARTS))
    yield {
      'inputs': sentence(meaning, tuple(wordings)),
      'targets': sentence(meaning, tuple(1 - wordings)),
    }


def segments(split: str = 'validation') -> list[Segment]:
  """The judgments of a split: four systems' outputs for each sentence.

  System alpha paraphrases; beta, gamma and delta get one, two and three parts
  wrong. The rating `z` reflects this.

  Args:
    split: 'train' or 'validation'.
  """
  generator = np.random.default_rng(1)
  found = []
  for index, meaning in enumerate(meanings(split)):
    reference = sentence(meaning, tuple(generator.integers(0, 2, len(_PARTS))))
    for system, errors, rating in _SYSTEMS:
      changed = np.array(meaning)
      for part in generator.permutation(len(_PARTS))[:errors]:
        size = len(_PARTS[part])
        changed[part] = (changed[part] + generator.integers(1, size)) % size
      wordings = generator.integers(0, 2, len(_PARTS))
      found.append(
        Segment(
          hypothesis=sentence(tuple(changed), tuple(wordings)),
          references=(reference,),
          system=system,
          segment=str(index),
          language_pair='en',
          ratings={RATING: rating},
        )
      )
  return found


def _groups(split: str, shared: str) -> Iterator[dict[str, Any]]:
  groups, _ = judgments.groups(segments(split), RATING, shared=shared)
  for group in groups:
    yield {
      'shared': group.shared,
      'hypotheses': list(group.hypotheses),
      'ratings': list(group.ratings),
    }


def _register() -> None:
  vocabulary = seqio_vocabulary('bytes')
  # The name of a split takes the place of a file.
  shards = {split: [split] for split in SPLITS}
  seqio.TaskRegistry.add(
    'made_up',
    source=sources.FileSource(shards, text_pairs, sources.TEXT_PAIR),
    preprocessors=[
      seqio.preprocessors.tokenize,
      seqio.CacheDatasetPlaceholder(),
      seqio.preprocessors.append_eos_after_trim,
    ],
    output_features=preprocessors.text_features(vocabulary),
  )

  def make_source(shared: str) -> seqio.DataSource:
    read = functools.partial(_groups, shared=shared)
    return sources.FileSource(shards, read, sources.JUDGED_GROUP)

  judged.add_tasks(
    'made_up',
    ('', ''),
    make_source,
    vocabulary,
    judged.Options(rating=RATING),
    kinds=('pairs', 'groups'),
  )


_register()
