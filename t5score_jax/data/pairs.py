"""Pairs of related texts, on which FrugalScore is distilled (phase 1).

Kamal Eddine et al. (2022, section 3.1) sample pairs of more or less related
texts, which an expensive metric annotates. The origins of pairs are

    reference        a source's references, each with every hypothesis
    systems          two hypotheses of one source
    paraphrases      two variants of one text (back-translations, summaries)
    denoised         a text and its perturbed version
    reconstructions  a text and a denoiser's output for its perturbed version

Inputs are first spread over files by source, so that only one bucket of sources
is in memory. The result depends on the inputs and the seed alone. Shards are in
`data/pair_shards.py`, perturbation in `data/denoising.py`, annotation in
`commands/annotate.py`.
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
from t5score_jax.errors import OptionError

REFERENCE, SYSTEMS, PARAPHRASES = 'reference', 'systems', 'paraphrases'
DENOISED, RECONSTRUCTIONS = 'denoised', 'reconstructions'
ORIGINS = (REFERENCE, SYSTEMS, PARAPHRASES, DENOISED, RECONSTRUCTIONS)

_BUCKETS = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
  """Two related texts.

  Attributes:
    hypothesis: The text in the role of the hypothesis.
    reference: The text in the role of the reference.
    origin: One of `ORIGINS`.
    language_pair: The source's language pair; None if unknown.
    document: The source's document id.
    segment: The source's segment id.
  """

  hypothesis: str
  reference: str
  origin: str
  language_pair: str | None = None
  document: str | None = None
  segment: str | None = None

  def row(self) -> dict[str, str]:
    """Returns a record with the pair's origin."""
    fields = dataclasses.asdict(self)
    return {name: value for name, value in fields.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Which pairs to make.

  Attributes:
    per_source: Maximum number of pairs of two hypotheses per source.
    shares: Share of the pairs to keep, 0 to 1, by origin; 1 for those not
      named. The choice depends on the seed and the texts.
    denoise_references: Whether to perturb each source's first reference.
    versions: Number of perturbed versions of a text.
    noise: How texts are perturbed.
    seed: Seed of all choices.
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
        raise OptionError(f'{name} {getattr(self, name)}: must not be negative')
    for origin, share in self.shares.items():
      if origin not in ORIGINS:
        raise OptionError(f'origin {origin!r}: use one of {", ".join(ORIGINS)}')
      if not 0 <= share <= 1:
        raise OptionError(f'share {share} of {origin}: must be from 0 to 1')


class HeldOut:
  """Texts excluded from training, whatever their case, form or spacing."""

  def __init__(self) -> None:
    self._texts: set[bytes] = set()

  def __len__(self) -> int:
    return len(self._texts)

  def add(self, segment: Segment) -> None:
    """Excludes a segment's source, references and hypothesis."""
    for text in (segment.hypothesis, segment.source, *segment.references):
      if text and (key := _plain_key(text)):
        self._texts.add(key)

  def __contains__(self, text: object) -> bool:
    return isinstance(text, str) and _plain_key(text) in self._texts


def _plain_key(text: str) -> bytes:
  """A key of a text without its case, form and white space; b'' if empty."""
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
      bool [n]: which were not in the set, nor earlier in `numbers`.
    """
    values, first = np.unique(numbers, return_index=True)
    unseen = ~np.isin(values, self._sorted, assume_unique=True)
    self._sorted = np.union1d(self._sorted, values)
    new = np.zeros(len(numbers), bool)
    new[first[unseen]] = True
    return new


@dataclasses.dataclass
class Source:
  """One source with its references, hypotheses and other texts."""

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
  """Sources, spread over files so that few are in memory at a time.

  Excluded texts are left out, together with their sources.

  Args:
    folder: An empty folder for the files.
    recipe: The pairs to make.
    held_out: The excluded texts.

  Attributes:
    counts: Numbers of inputs, and of those left out by reason.
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

    Records have the same source if their language pair, document, segment and
    source text (or, without one, first reference) are equal.

    Args:
      segment: The record.
      file: Its file, which distinguishes sources without a text.
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
      texts: Two or more; for `RECONSTRUCTIONS` the original is the first.
      origin: `PARAPHRASES` or `RECONSTRUCTIONS`.
    """
    self.counts[f'lines of {origin}'] += 1
    if any(text in self._held_out for text in texts):
      self.counts[f'held-out lines of {origin}'] += 1
      return
    self._put([origin, texts[0]], {'variants': [origin, list(texts)]})

  def add_original(self, text: str) -> None:
    """Adds a text to perturb."""
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

    The order of its texts does not distinguish a pair. To be called after
    everything was added.
    """
    seen = Distinct()
    for path in self._paths:
      groups = [
        self._pairs_of(name, source) for name, source in _sources(path).items()
      ]
      flat = list(itertools.chain(*groups))
      digests = [_digest(*sorted((p.hypothesis, p.reference))) for p in flat]
      table = np.frombuffer(b''.join(digests), np.uint64).reshape(-1, 2)
      new = seen.add(table[:, 0])
      self.counts['pairs that were there already'] += int((~new).sum())
      kept = iter(new & self._chosen(flat, table[:, 1]))
      for group in groups:
        if chosen := [pair for pair in group if next(kept)]:
          yield chosen

  def _chosen(self, pairs: Sequence[Pair], numbers: np.ndarray) -> np.ndarray:
    """Which pairs the shares keep, bool [n], by uniform numbers [n]."""
    mixed = numbers ^ np.uint64(self._recipe.seed * 0x9E3779B97F4A7C15 % 2**64)
    even = mixed.astype(np.float64) / 2.0**64
    shares = [self._recipe.shares.get(pair.origin, 1.0) for pair in pairs]
    kept = even < np.array(shares)
    self.counts['pairs that shares left out'] += int((~kept).sum())
    return np.asarray(kept)

  def _pairs_of(self, name: str, source: Source) -> list[Pair]:
    number = int.from_bytes(_digest(name)[8:], 'little')
    rng = np.random.default_rng([self._recipe.seed, number])
    kept = []
    for pair in pairs_of_source(source, self._recipe, self._sample.tokens, rng):
      if not (pair.hypothesis.strip() and pair.reference.strip()):
        self.counts['pairs with an empty text'] += 1
      elif pair.hypothesis in self._held_out:
        # Perturbation can produce an excluded text.
        self.counts['held-out pairs'] += 1
      else:
        kept.append(pair)
    return kept


def text_key(text: str) -> bytes:
  """Returns a digest of a text, eight bytes."""
  return _digest(text)[:8]


def _digest(*texts: str) -> bytes:
  joined = '\0'.join(texts).encode('utf-8', 'surrogatepass')
  return hashlib.blake2b(joined, digest_size=16).digest()


def _sources(path: Path) -> dict[str, Source]:
  """Reads a bucket: sources by name, in the order of their first items."""
  sources: dict[str, Source] = {}
  with open(path, encoding='utf-8') as lines:
    for line in lines:
      name, item = json.loads(line)
      # Sources without an id get one, which keeps their texts together.
      ids = item.get('ids') or (None, None, _digest(name)[:6].hex())
      source = sources.setdefault(name, Source(*ids))
      if 'variants' in item:
        source.variants.append(tuple(item['variants']))
      elif 'original' in item:
        source.originals.append(item['original'])
      else:
        source.references += item['references']
        source.hypotheses.append(item['hypothesis'])
  for source in sources.values():
    source.references = _distinct(source.references)
    source.hypotheses = _distinct(source.hypotheses)
    source.originals = _distinct(source.originals)
  return sources


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
    source: The distinct texts.
    recipe: The pairs to make.
    vocabulary: Random tokens for perturbation.
    rng: The random generator.
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
  """Draws at most `most` of all pairs, each in a random direction."""
  every = list(itertools.combinations(range(len(texts)), 2))
  chosen = np.arange(len(every))
  if len(every) > most:
    chosen = np.sort(rng.choice(len(every), size=most, replace=False))
  turned = rng.random(len(chosen)) < 0.5
  for number, turn in zip(chosen, turned, strict=True):
    pair = every[number][::-1] if turn else every[number]
    yield texts[pair[0]], texts[pair[1]]
