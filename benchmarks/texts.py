"""Texts to measure with: made up, or read from a folder of WMT20's.

Made-up sentences are as long as newstest2020's zh-en references: numbers of
words are log-normal (mean of logarithms 3.31, deviation 0.60; median 28 words).
Their words are frequent English ones, some glued into rare ones, so that a
subword vocabulary cuts them into about as many pieces as news. A system's
output is the reference with words replaced, dropped and moved.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import pathlib

import numpy as np

_WORDS = (
  'the of and to in a is that for it as was with be by on not he i this are '
  'or his from at which but have an had they you were their one all we can '
  'her has there been if more when will would who so no out up said about '
  'into them its time only could new people two other some market year '
  'government city work state company school house water percent china '
  'president country public two world day week plan report group market '
  'police health power trade minister price growth team game player court law '
  'party vote road train air sea '
).split()
_RARE = 0.12
# The file that --data is to hold, and its human translations.
_FILE = 'wmt20_mqm_da.zh-en.tsv.gz'


@dataclasses.dataclass(frozen=True)
class Texts:
  """Segments of several systems.

  Attributes:
    sources: One per segment.
    references: One per segment.
    outputs: Lists as long, one per system.
    origin: What the texts are, for the record of results.
  """

  sources: list[str]
  references: list[str]
  outputs: list[list[str]]
  origin: str

  def pairs(self) -> tuple[list[str], list[str]]:
    """Hypotheses and references of all systems, a system after the other."""
    return (
      [text for system in self.outputs for text in system],
      self.references * len(self.outputs),
    )


def wmt(
  segments: int, systems: int, data: str | None = None, people: bool = False
) -> Texts:
  """Texts of ten systems and their references.

  Args:
    segments: Number of segments; of real ones, at most 2,000.
    systems: Number of systems; of real ones, at most 16, and 18 with people.
    data: Folder with WMT20's ratings (`wmt20_mqm_da.zh-en.tsv.gz`); None
      makes texts up.
    people: Whether translators of real texts count as systems.

  Raises:
    OSError: The folder has no such file.
    ValueError: The file has fewer segments or systems.
  """
  if data:
    return _read(segments, systems, data, people)
  return _made_up(segments, systems)


def _made_up(segments: int, systems: int) -> Texts:
  draw = np.random.default_rng(20)
  references = [_sentence(draw) for _ in range(segments)]
  return Texts(
    [' '.join(_sentence(draw, len(words))) for words in references],
    [' '.join(words) for words in references],
    [
      [' '.join(_translated(words, draw)) for words in references]
      for _ in range(systems)
    ],
    'made up, of the lengths of newstest2020 zh-en',
  )


def _sentence(draw: np.random.Generator, size: int | None = None) -> list[str]:
  count = size or int(np.clip(np.exp(draw.normal(3.31, 0.6)), 2, 150))
  # Zipf's law over the list.
  chances = 1 / np.arange(1, len(_WORDS) + 1)
  words = draw.choice(_WORDS, count, p=chances / chances.sum())
  return [
    word + str(draw.choice(_WORDS)) if draw.random() < _RARE else str(word)
    for word in words
  ]


def _translated(words: list[str], draw: np.random.Generator) -> list[str]:
  kept = [
    str(draw.choice(_WORDS)) if draw.random() < 0.25 else word
    for word in words
    if draw.random() > 0.06
  ]
  turn = int(draw.integers(0, max(1, len(kept) // 3)))
  return kept[turn:] + kept[:turn] + ['.']


def _read(segments: int, systems: int, data: str, people: bool) -> Texts:
  path = pathlib.Path(data) / _FILE
  with gzip.open(path, 'rt', encoding='utf-8', newline='') as file:
    rows = list(csv.DictReader(file, delimiter='\t', quoting=csv.QUOTE_NONE))
  outputs: dict[str, list[str]] = {}
  for row in rows:
    if people or not row['system'].startswith('Human'):
      outputs.setdefault(row['system'], []).append(row['hyp'])
  first = [row for row in rows if row['system'] == rows[0]['system']]
  if len(first) < segments or len(outputs) < systems:
    raise ValueError(
      f'{path}: {len(first)} segments of {len(outputs)} systems, fewer than '
      f'{segments} of {systems}'
    )
  return Texts(
    [row['src'] for row in first[:segments]],
    [row['ref_A'] for row in first[:segments]],
    [texts[:segments] for texts in list(outputs.values())[:systems]],
    'newstest2020 zh-en',
  )
