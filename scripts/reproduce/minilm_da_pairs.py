r"""Makes the pairs on which minilm-da learns to compare two texts.

    python scripts/reproduce/minilm_da_pairs.py --input wmt21_da_to-en.tsv.gz \
        reference=ref_A hypothesis=hyp source=src language_pair=lp \
        --held-out wmt15-17_da.tsv.gz ... where:year=2017 \
        --encoder minilm -o pairs.jsonl

The rating of a single annotator is mostly noise; a similarity has no noise but
less information. The target of a pair combines both: BERTScore F1 of the
encoder's fourth layer plus half the z-score, each standardised. Perturbed
references are unrated and get the z-score that BERTScore predicts. At most
`--limit` pairs of each language pair are used, those with more records first;
texts of `--held-out` are excluded. The output has one JSON record per line.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys

import numpy as np

from t5score_jax.commands import _record_files
from t5score_jax.data import denoising, files, pairs
from t5score_jax.metrics import registry

RATING, SCORE, TARGET = 'da_z', 'bertscore', 'target'
_NOISE = denoising.Noise(mask_share=0.2, mean_span=2.0, random_share=0.4)


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  _record_files.add_argument(
    parser,
    '--input',
    action='append',
    required=True,
    help='judged records: ' + _record_files.HELP,
  )
  _record_files.add_argument(
    parser,
    '--held-out',
    action='append',
    default=[],
    help='records whose texts are in no pair, as for --input',
  )
  parser.add_argument(
    '--encoder',
    default='minilm',
    help="BERTScore's, a name or a folder (default: %(default)s)",
  )
  parser.add_argument(
    '--limit',
    type=int,
    default=4000,
    help='pairs of a language pair at most (default: %(default)s)',
  )
  parser.add_argument(
    '--characters',
    type=int,
    default=480,
    help='of both texts together at most; longer pairs are left out '
    '(default: %(default)s)',
  )
  parser.add_argument(
    '--perturbed',
    type=int,
    default=3000,
    help='number of perturbed references (default: %(default)s)',
  )
  parser.add_argument(
    '--seed',
    type=int,
    default=0,
    help='of the choice and of the perturbations (default: %(default)s)',
  )
  parser.add_argument(
    '-o',
    '--output',
    type=pathlib.Path,
    required=True,
    help='JSONL of hypothesis, reference and target',
  )
  args = parser.parse_args(arguments)
  rng = np.random.default_rng(args.seed)
  judged = read(args)
  print(f'{len(judged)} judged pairs', flush=True)
  references = sorted({reference for _, reference in judged})
  words = denoising.TokenSample(seed=args.seed)
  words.add(references)
  noisy = [
    (denoising.perturb(text, _NOISE, words.tokens, rng), text)
    for text in rng.permutation(references)[: args.perturbed].tolist()
  ]
  all_pairs = [*judged, *((h, r) for h, r in noisy if h)]
  metric = registry.load(args.encoder, 'bertscore', layer=4)
  scores = metric.score(
    [h for h, _ in all_pairs], [[r] for _, r in all_pairs]
  ).values
  ratings = np.array(list(judged.values()))
  target = targets(np.asarray(scores, np.float64), ratings)
  with files.write_atomically(args.output) as out:
    for (hypothesis, reference), score, value in zip(
      all_pairs, scores, target, strict=True
    ):
      record = {'hypothesis': hypothesis, 'reference': reference}
      record |= {SCORE: float(score), TARGET: float(value)}
      print(json.dumps(record, ensure_ascii=False), file=out)
  print(f'{args.output}: {len(all_pairs)} pairs')
  return 0


def read(args: argparse.Namespace) -> dict[tuple[str, str], float]:
  """Judged pairs with the mean of their z-scores."""
  held_out = pairs.HeldOut()
  for file in _record_files.parse_all(args.held_out, '--held-out'):
    for segment in file.segments():
      held_out.add(segment)
  found: dict[str, dict[tuple[str, str], list[float]]] = (
    collections.defaultdict(lambda: collections.defaultdict(list))
  )
  dropped = 0
  for file in _record_files.parse_all(args.input, '--input'):
    for s in file.segments([RATING]):
      if RATING not in s.ratings or not s.references:
        continue
      texts = (s.hypothesis, s.references[0])
      if sum(map(len, texts)) > args.characters:
        continue
      if any(text in held_out for text in (*texts, s.source)):
        dropped += 1
        continue
      found[s.language_pair or ''][texts].append(s.ratings[RATING])
  print(f'{dropped} records have a text that is held out', file=sys.stderr)
  rng = np.random.default_rng([args.seed, 1])
  result: dict[tuple[str, str], float] = {}
  for of_pair in found.values():
    keys = list(of_pair)
    # More judgments first, since their mean is less noisy.
    order = sorted(
      rng.permutation(len(keys)), key=lambda n: -len(of_pair[keys[n]])
    )
    for n in order[: args.limit]:
      result[keys[n]] = float(np.mean(of_pair[keys[n]]))
  return result


def targets(scores: np.ndarray, ratings: np.ndarray) -> np.ndarray:
  """Targets of pairs, the first len(ratings) of which are rated."""
  count = len(ratings)
  score = (scores - scores[:count].mean()) / scores[:count].std()
  z = (ratings - ratings.mean()) / ratings.std()
  slope = np.mean(score[:count] * z)
  print(f'Pearson of BERTScore with the z-scores: {slope:.3f}')
  z = np.concatenate([z, slope * score[count:]])
  return score + 0.5 * z


if __name__ == '__main__':
  sys.exit(main())
