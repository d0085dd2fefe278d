"""Pairs of related texts, what FrugalScore is distilled on (phase 1).

Kamal Eddine et al. (2022, section 3.1) sample pairs of more or less related
texts, which an expensive metric then annotates. Here they come from

    reference        a source's references, each with every hypothesis
    systems          two hypotheses of one source
    paraphrases      two variants of one text (back-translations, summaries)
    denoised         a text and its perturbed version
    reconstructions  a text and what a denoiser made of its perturbed version

Memory holds one bucket of sources at a time: inputs are spread over files by
source first. Everything follows from the inputs and a seed. Not here: shards
(`pair_shards`), perturbation (`denoising`), annotation (`commands/annotate`).
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from t5score_jax.data import denoising
from t5score_jax.data.records import Segment

REFERENCE, SYSTEMS, PARAPHRASES = 'reference', 'systems', 'paraphrases'
DENOISED, RECONSTRUCTIONS = 'denoised', 'reconstructions'
ORIGINS = (REFERENCE, SYSTEMS, PARAPHRASES, DENOISED, RECONSTRUCTIONS)

_BUCKETS = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
  """Two related texts.

  Attributes:
    hypothesis: what a metric would judge.
    reference: what it would compare with.
    origin: one of `ORIGINS`.
    language_pair: of the source, as `document` and `segment` are; None where
      not known.
    document: id.
    segment: id.
  """

  hypothesis: str
  reference: str
  origin: str
  language_pair: str | None = None
  document: str | None = None
  segment: str | None = None

  def row(self) -> dict[str, str]:
    """What is written of it: a record with its origin."""
    found = dataclasses.asdict(self)
    return {name: value for name, value in found.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Which pairs are made.

  Attributes:
    per_source: the most pairs of two hypotheses of one source.
    shares: of the pairs of an origin that are kept, 0 to 1, by origin; 1 for
      those not named. Which ones follows from the seed and the texts.
    denoise_references: whether each source's first reference is perturbed.
    versions: perturbed versions of a text.
    noise: how texts are perturbed.
    seed: of every choice.
  """

  per_source: int = 10
  shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
  denoise_references: bool = False
  versions: int = 1
  noise: denoising.Noise = denoising.Noise()
  seed: int = 0

  def __post_init__(self) -> None:
    for name in ('per_source', 'versions'):
      if getattr(self, name) < 0:
        raise ValueError(f'{name} {getattr(self, name)}: must not be negative')
    for origin, share in self.shares.items():
      if origin not in ORIGINS:
        raise ValueError(f'origin {origin!r}: use one of {", ".join(ORIGINS)}')
      if not 0 <= share <= 1:
        raise ValueError(f'share {share} of {origin}: from 0 to 1')


class HeldOut:
  """Texts that must not be learned from, in any case, form or spacing."""

  def __init__(self) -> None:
    self._texts: set[bytes] = set()

  def __len__(self) -> int:
    return len(self._texts)

  def add(self, segment: Segment) -> None:
    """Holds out a segment's source, references and hypothesis."""
    for text in (segment.hypothesis, segment.source, *segment.references):
      if text and (key := _plain_key(text)):
        self._texts.add(key)

  def __contains__(self, text: object) -> bool:
    return isinstance(text, str) and _plain_key(text) in self._texts


def _plain_key(text: str) -> bytes:
  """What texts that differ in case, form or white space alone have in common.

  b'' for a text without anything.
  """
  plain = ' '.join(unicodedata.normalize('NFKC', text).casefold().split())
  return hashlib.blake2b(plain.encode(), digest_size=10).digest() * bool(plain)


class Distinct:
  """A growing set of 64-bit numbers, eight bytes each."""

  def __init__(self) -> None:
    self._sorted = np.zeros(0, np.uint64)

  def __len__(self) -> int:
    return len(self._sorted)

  def add(self, numbers: np.ndarray) -> np.ndarray:
    """Adds numbers, uint64 [n].

    Returns:
      bool [n]: which were not there, nor earlier in `numbers`.
    """
    values, first = np.unique(numbers, return_index=True)
    places = np.searchsorted(self._sorted, values)
    inside = np.minimum(places, max(0, len(self._sorted) - 1))
    known = (
      self._sorted[inside] == values
      if len(self._sorted)
      else np.zeros(len(values), bool)
    )
    self._sorted = np.insert(self._sorted, places[~known], values[~known])
    new = np.zeros(len(numbers), bool)
    new[first[~known]] = True
    return new


@dataclasses.dataclass
class Source:
  """What is known of one source: texts of people and texts of systems."""

  language_pair: str | None = None
  document: str | None = None
  segment: str | None = None
  references: list[str] = dataclasses.field(default_factory=list)
  hypotheses: list[str] = dataclasses.field(default_factory=list)
  variants: list[tuple[str, list[str]]] = dataclasses.field(
    default_factory=list
  )
  originals: list[str] = dataclasses.field(default_factory=list)


class Corpus:
  """Sources, spread over files in a folder so that memory holds few of them.

  Texts that are held out don't get in. With them goes everything of their
  source.

  Args:
    folder: an empty one, for the files.
    recipe: what will be made of them.
    held_out: what must not get in.

  Attributes:
    counts: what came in and what was left out, by reason.
  """

  def __init__(self, folder: Path, recipe: Recipe, held_out: HeldOut):
    self._recipe = recipe
    self._held_out = held_out
    self._sample = denoising.TokenSample(seed=recipe.seed)
    self._paths = [folder / f'{n:03d}.jsonl' for n in range(_BUCKETS)]
    self._streams: list[IO[str]] = []
    self._denoises = recipe.denoise_references
    self.counts: collections.Counter[str] = collections.Counter()

  def __enter__(self) -> Corpus:
    self._streams = [open(path, 'w', encoding='utf-8') for path in self._paths]
    return self

  def __exit__(self, *error: object) -> None:
    for stream in self._streams:
      stream.close()

  def add_record(self, segment: Segment, file: str) -> None:
    """Adds a hypothesis with its references.

    Records are of one source if their language pair, document and segment are
    equal, and their source text (or, without one, their first reference).

    Args:
      segment: the record.
      file: where it is from, which tells sources without any text apart.
    """
    self.counts['records'] += 1
    shared = segment.source or next(iter(segment.references), '')
    if shared in self._held_out or any(
      text in self._held_out for text in segment.references
    ):
      self.counts['records of held-out sources'] += 1
      return
    ids = [segment.language_pair, segment.document, segment.segment]
    hypothesis = segment.hypothesis
    if hypothesis in self._held_out:
      self.counts['held-out hypotheses'] += 1
      hypothesis = ''
    texts = [*segment.references, hypothesis]
    self._sample.add(text for text in texts if self._denoises)
    self._put(
      [*ids, shared or file],
      {'ids': ids, 'references': segment.references, 'hypothesis': hypothesis},
    )

  def add_variants(self, texts: Sequence[str], origin: str) -> None:
    """Adds versions of one text.

    Args:
      texts: two or more; for `RECONSTRUCTIONS` the original stands first.
      origin: `PARAPHRASES` or `RECONSTRUCTIONS`.
    """
    self.counts[f'lines of {origin}'] += 1
    if any(text in self._held_out for text in texts):
      self.counts[f'held-out lines of {origin}'] += 1
      return
    self._put([origin, texts[0]], {'variants': [origin, list(texts)]})

  def add_original(self, text: str) -> None:
    """Adds a text that is perturbed."""
    self.counts['texts to perturb'] += 1
    if text in self._held_out:
      self.counts['held-out texts to perturb'] += 1
      return
    self._sample.add([text])
    self._put([DENOISED, text], {'original': text})

  def _put(self, key: Sequence[str | None], item: Mapping[str, Any]) -> None:
    name = '\x1f'.join('' if part is None else part for part in key)
    number = int.from_bytes(_digest(name)[:8], 'little')
    line = json.dumps([name, item], ensure_ascii=False)
    self._streams[number % len(self._streams)].write(line + '\n')

  def pairs(self) -> Iterator[list[Pair]]:
    """Yields the pairs of each source that has any, each pair once.

    A pair is the same whichever of its texts stands first. Called when
    everything was added.
    """
    seen = Distinct()
    for path in self._paths:
      found = [
        self._pairs_of(name, source) for name, source in _sources(path).items()
      ]
      flat = list(itertools.chain(*found))
      digests = [_digest(*sorted((p.hypothesis, p.reference))) for p in flat]
      table = np.frombuffer(b''.join(digests), np.uint64).reshape(-1, 2)
      new = seen.add(table[:, 0])
      self.counts['pairs that were there already'] += int((~new).sum())
      kept = new & self._chosen(flat, table[:, 1])
      place = 0
      for group in found:
        flags = kept[place : place + len(group)]
        place += len(group)
        if flags.any():
          yield [p for p, flag in zip(group, flags, strict=True) if flag]

  def _chosen(self, pairs: Sequence[Pair], numbers: np.ndarray) -> np.ndarray:
    """Which pairs the shares keep, bool [n], by evenly spread numbers [n]."""
    mixed = numbers ^ np.uint64(self._recipe.seed * 0x9E3779B97F4A7C15 % 2**64)
    even = mixed.astype(np.float64) / 2.0**64
    shares = [self._recipe.shares.get(pair.origin, 1.0) for pair in pairs]
    kept = even < np.array(shares)
    self.counts['pairs that shares left out'] += int((~kept).sum())
    return np.asarray(kept)

  def _pairs_of(self, name: str, source: Source) -> list[Pair]:
    number = int.from_bytes(_digest(name)[8:], 'little')
    rng = np.random.default_rng([self._recipe.seed, number])
    found = []
    made = pairs_of_source(source, self._recipe, self._sample.tokens, rng)
    for pair in made:
      if not (pair.hypothesis.strip() and pair.reference.strip()):
        self.counts['pairs with an empty text'] += 1
      elif pair.hypothesis in self._held_out:
        # Chance can make of one text another that is held out.
        self.counts['held-out pairs'] += 1
      else:
        found.append(pair)
    return found


def text_key(text: str) -> bytes:
  """Eight bytes that tell texts apart."""
  return _digest(text)[:8]


def _digest(*texts: str) -> bytes:
  joined = '\0'.join(texts).encode('utf-8', 'surrogatepass')
  return hashlib.blake2b(joined, digest_size=16).digest()


def _sources(path: Path) -> dict[str, Source]:
  """Reads a bucket: sources by name, in the order of their first items."""
  found: dict[str, Source] = {}
  with open(path, encoding='utf-8') as lines:
    for line in lines:
      name, item = json.loads(line)
      # What has no id gets one, so that texts of one source stay together.
      ids = item.get('ids') or (None, None, _digest(name)[:6].hex())
      source = found.setdefault(name, Source(*ids))
      if 'variants' in item:
        source.variants.append(tuple(item['variants']))
      elif 'original' in item:
        source.originals.append(item['original'])
      else:
        source.references += item['references']
        source.hypotheses.append(item['hypothesis'])
  for source in found.values():
    source.references = _distinct(source.references)
    source.hypotheses = _distinct(source.hypotheses)
    source.originals = _distinct(source.originals)
  return found


def _distinct(texts: Iterable[str]) -> list[str]:
  return [text for text in dict.fromkeys(texts) if text]


def pairs_of_source(
  source: Source,
  recipe: Recipe,
  vocabulary: Sequence[str],
  rng: np.random.Generator,
) -> Iterator[Pair]:
  """Yields the pairs of one source.

  Args:
    source: its distinct texts.
    recipe: which pairs to make.
    vocabulary: for random tokens.
    rng: the source of chance.
  """
  ids = (source.language_pair, source.document, source.segment)
  for reference in source.references:
    for hypothesis in source.hypotheses:
      yield Pair(hypothesis, reference, REFERENCE, *ids)
  for first, second in itertools.combinations(source.references, 2):
    yield Pair(second, first, REFERENCE, *ids)
  for first, second in _sampled(source.hypotheses, recipe.per_source, rng):
    yield Pair(first, second, SYSTEMS, *ids)
  for origin, texts in source.variants:
    if origin == RECONSTRUCTIONS:
      chosen = [(text, texts[0]) for text in texts[1:]]
    else:
      every = len(texts) * len(texts)
      chosen = list(_sampled(_distinct(texts), every, rng))
    for first, second in chosen:
      yield Pair(first, second, origin, *ids)
  originals = list(source.originals)
  if recipe.denoise_references:
    originals += source.references[:1]
  for text in originals:
    for _ in range(recipe.versions):
      perturbed = denoising.perturb(text, recipe.noise, vocabulary, rng)
      yield Pair(perturbed, text, DENOISED, *ids)


def _sampled(
  texts: Sequence[str], most: int, rng: np.random.Generator
) -> Iterator[tuple[str, str]]:
  """At most so many of all pairs, each in a random direction."""
  every = list(itertools.combinations(range(len(texts)), 2))
  chosen = np.arange(len(every))
  if len(every) > most:
    chosen = np.sort(rng.choice(len(every), size=most, replace=False))
  turned = rng.random(len(chosen)) < 0.5
  for number, turn in zip(chosen, turned, strict=True):
    pair = every[number][::-1] if turn else every[number]
    yield texts[pair[0]], texts[pair[1]]
