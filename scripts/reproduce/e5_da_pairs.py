r"""Makes the pairs on which e5-da learns to compare a source and a translation.

    python scripts/reproduce/e5_da_pairs.py --teacher minilm-da \
        --input mlqe-pe_da.tsv.gz hypothesis=mt source=src \
          language_pair=lp rating=z_mean where:split=train \
        --input wmt21_da_to-en.tsv.gz hypothesis=hyp source=src \
          reference=ref_A language_pair=lp rating=da_z \
        --held-out wmt15-17_da.tsv.gz ... where:year=2017 -o pairs.jsonl

Each file has its own scale and its own noise, so ratings are standardised by
file. A translation with a reference also gets the teacher's score, if the
target language is English; the target is the sum of score and half the
z-score, each standardised, which is standardised again. Perturbed references
have the teacher's score alone, on the same scale. At most `--limit` pairs of
each language pair of a file are used, those with more ratings first; texts of
`--held-out` are excluded. The output has one JSON record per line: source,
hypothesis, language_pair and target.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5score_jax.commands import _metric_arguments, _record_files, retention
from t5score_jax.data import denoising, files, pairs
from t5score_jax.metrics import base

RATING, TARGET = 'rating', 'target'
_NOISE = denoising.Noise(mask_share=0.2, mean_span=2.0, random_share=0.4)
# Half of a rating beside the teacher's score, as for minilm-da.
_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Pair:
  """A source with a translation, a reference or None, and its ratings."""

  source: str
  hypothesis: str
  language_pair: str
  reference: str | None
  ratings: list[float] = dataclasses.field(default_factory=list)


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  _record_files.add_argument(
    result,
    '--input',
    action='append',
    required=True,
    help=f'rated records, with a {RATING}: ' + _record_files.HELP,
  )
  _record_files.add_argument(
    result,
    '--held-out',
    action='append',
    default=[],
    help='records whose texts are in no pair, as for --input',
  )
  result.add_argument(
    '--teacher',
    default='minilm-da',
    metavar='METRIC[:OPTION=VALUE,...]',
    help='scores English translations that have references, as for '
    '`t5score retention` (default: %(default)s)',
  )
  result.add_argument(
    '--limit',
    type=int,
    default=7000,
    help='pairs of a language pair of a file at most (default: %(default)s)',
  )
  result.add_argument(
    '--characters',
    type=int,
    default=400,
    help='of both texts together at most; longer pairs are left out '
    '(default: %(default)s)',
  )
  result.add_argument(
    '--perturbed',
    type=int,
    default=6000,
    help='number of perturbed references (default: %(default)s)',
  )
  result.add_argument(
    '--seed',
    type=int,
    default=0,
    help='of the choice and of the perturbations (default: %(default)s)',
  )
  result.add_argument(
    '-o',
    '--output',
    type=pathlib.Path,
    required=True,
    help='JSONL of source, hypothesis, language_pair and target',
  )
  return result


def read(
  file: _record_files.RecordFile,
  held_out: pairs.HeldOut,
  limit: int,
  characters: int,
  seed: Sequence[int],
) -> list[Pair]:
  """The pairs of a file, by language pair, with more ratings first.

  Raises:
    ValueError: No record is rated and has a source.
  """
  found: dict[str, dict[tuple[str, str], Pair]] = collections.defaultdict(dict)
  dropped = 0
  for s in file.segments([RATING]):
    texts = (s.source or '', s.hypothesis)
    if RATING not in s.ratings or not all(texts):
      continue
    if sum(map(len, texts)) > characters:
      continue
    if any(text in held_out for text in (*texts, *s.references)):
      dropped += 1
      continue
    name = s.language_pair or ''
    reference = s.references[0] if s.references else None
    new = Pair(*texts, name, reference)
    found[name].setdefault(texts, new).ratings.append(s.ratings[RATING])
  if not found:
    raise ValueError(f'{file.path}: no record with a source and a {RATING}')
  rng = np.random.default_rng(seed)
  result = []
  for of_pair in found.values():
    listed = list(of_pair.values())
    order = sorted(
      rng.permutation(len(listed)), key=lambda n: -len(listed[n].ratings)
    )
    result += [listed[n] for n in order[:limit]]
  print(
    f'{file.path}: {len(result)} pairs; {dropped} records have a text that is '
    'held out',
    flush=True,
  )
  return result


def standardised(values: Any) -> np.ndarray:
  """Values with mean 0 and deviation 1.

  Raises:
    ValueError: All are equal.
  """
  array = np.asarray(values, np.float64)
  if not array.std() > 0:
    raise ValueError('all ratings or scores of a file are equal')
  return (array - array.mean()) / array.std()


def is_taught(pair: Pair) -> bool:
  """Whether the teacher can score the pair: English, with a reference."""
  return pair.reference is not None and pair.language_pair.endswith('-en')


def targets(
  found: Sequence[Pair], teacher: base.Metric, noisy: Sequence[Pair]
) -> tuple[np.ndarray, np.ndarray]:
  """Targets of the pairs of a file, and of perturbed references of it."""
  ratings = standardised([np.mean(pair.ratings) for pair in found])
  chosen = [n for n, pair in enumerate(found) if is_taught(pair)]
  if not chosen:
    return ratings, np.zeros(0)
  scored = [*(found[n] for n in chosen), *noisy]
  scores = np.asarray(
    teacher.score(
      [pair.hypothesis for pair in scored],
      [[pair.reference or ''] for pair in scored],
    ).values,
    np.float64,
  )
  known = scores[: len(chosen)]
  scores = (scores - known.mean()) / known.std()
  z = ratings[chosen]
  slope = float(np.mean(scores[: len(chosen)] * z))
  print(f'Pearson of the teacher with the ratings: {slope:.3f}', flush=True)
  both = scores[: len(chosen)] + _SHARE * z
  deviation = both.std()
  ratings[chosen] = both / deviation
  # What the sum is expected to be, given the score.
  perturbed = scores[len(chosen) :] * (1 + _SHARE * slope) / deviation
  return ratings, perturbed


def perturbations(
  found: Sequence[Pair], count: int, rng: np.random.Generator
) -> list[Pair]:
  """Pairs of sources with perturbed references."""
  sources = {p.reference: p for p in found if is_taught(p)}
  references = sorted(text for text in sources if text)
  sample = denoising.TokenSample(seed=int(rng.integers(2**31)))
  sample.add(references)
  result = []
  for text in rng.permutation(references)[:count].tolist():
    changed = denoising.perturb(text, _NOISE, sample.tokens, rng)
    if changed:
      pair = sources[text]
      result.append(Pair(pair.source, changed, pair.language_pair, text))
  return result


def records(
  found: Sequence[Pair], values: np.ndarray
) -> list[Mapping[str, Any]]:
  """Lines of the output."""
  return [
    {
      'source': pair.source,
      'hypothesis': pair.hypothesis,
      'language_pair': pair.language_pair,
      TARGET: float(value),
    }
    for pair, value in zip(found, values, strict=True)
  ]


def run(args: argparse.Namespace) -> None:
  """Writes the pairs.

  Raises:
    ValueError: A file or an option is invalid.
    OSError: A file can't be read or written.
  """
  held_out = pairs.HeldOut()
  for file in _record_files.parse_all(args.held_out, '--held-out'):
    for segment in file.segments():
      held_out.add(segment)
  inputs = _record_files.parse_all(args.input, '--input')
  spec = retention.parse_spec(args.teacher, 'teacher')
  teacher = _metric_arguments.load(spec.metric, spec.options)
  read_files = [
    read(file, held_out, args.limit, args.characters, [args.seed, number])
    for number, file in enumerate(inputs)
  ]
  with_references = [any(map(is_taught, found)) for found in read_files]
  share = args.perturbed // max(1, sum(with_references))
  lines: list[Mapping[str, Any]] = []
  rng = np.random.default_rng([args.seed, len(inputs)])
  for found in read_files:
    noisy = perturbations(found, share, rng)
    of_found, of_noisy = targets(found, teacher, noisy)
    lines += records(found, of_found) + records(noisy, of_noisy)
  with files.write_atomically(args.output) as out:
    for line in lines:
      print(json.dumps(line, ensure_ascii=False), file=out)
  print(f'{args.output}: {len(lines)} pairs')


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  try:
    run(args)
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
