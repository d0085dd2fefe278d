"""`t5score pairs`: makes shards of pairs of texts for a metric to annotate.

Reads the files and writes the folder; which pairs are made is in
`data/pairs.py`. Imports no JAX.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.commands import _record_files, _usage
from t5score_jax.data import files, folders, pair_shards, runs, tables
from t5score_jax.data import pairs as data_pairs
from t5score_jax.data.denoising import Noise
from t5score_jax.errors import InputError, UsageError
from t5score_jax.version import __version__

SUMMARY = 'make pairs of related texts, to distil a metric on'

TEXTS_FILE = 'texts.txt.gz'
# The option that makes pairs of an origin.
_MADE_BY = {
  data_pairs.REFERENCE: 'input',
  data_pairs.SYSTEMS: 'input',
  data_pairs.PARAPHRASES: 'paraphrases',
  data_pairs.DENOISED: 'denoise',
  data_pairs.RECONSTRUCTIONS: 'reconstructions',
}
# Attributes of `Recipe` and `Noise` that have an option.
_RECIPE = ('per_source', 'versions')
_NOISE = ('mask_share', 'mean_span', 'random_share', 'mask_token')

DESCRIPTION = """
Makes pairs of related texts for `t5score annotate`: FrugalScore's phase 1
(Kamal Eddine et al. 2022). Every pair has an origin:

  reference        a hypothesis with a reference (--input)
  systems          two hypotheses of one source (--input, --per-source)
  paraphrases      two variants of one text (--paraphrases), all pairs of a line
  denoised         a text and its perturbed version (--denoise): spans of tokens
                   masked, some of them replaced by random tokens of the corpus,
                   then sentences shuffled
  reconstructions  a text and a denoiser's output for its perturbed version
                   (--reconstructions)

In the paper BART repairs perturbed texts. This package has no such model: by
default a masked span is dropped. To repair texts elsewhere, write them with
--mask-token, and give the results as --reconstructions.

Writes OUT/part-00000.jsonl.gz, ... (records with an `origin`), a description of
each, OUT/manifest.json, and OUT/texts.txt.gz, every distinct text once: the
corpus for an idf (`t5score annotate --option idf=OUT/texts.txt.gz`). All pairs
of one source are in one shard, so that a metric encodes each of their texts
once. Equal command lines give equal bytes. The same command resumes a run that
was interrupted; a folder of another run stays unchanged.

No text of --held-out gets in, in whatever case or spacing, and no record whose
source or reference is one of them. Files are read twice, so that none can be a
pipe; a file of which no row is chosen is an error.
"""

EPILOG = """
examples:
  t5score pairs --input wmt.tsv reference=ref_A hypothesis=hyp \\
      'where:lp=*-en' --held-out test.jsonl --per-source 20 --denoise -o pairs/
  t5score pairs --paraphrases back_translations.tsv --share paraphrases=0.5 \\
      --denoise wiki.txt --lengths 1,200 --seed 7 -o pairs/

exit code: 0 written; 1 the run failed; 2 the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  group = parser.add_argument_group('texts')
  more: dict[str, Any] = {'action': 'append', 'default': []}
  _record_files.add_argument(group, '--input', **more)
  help = 'records whose texts must not get in; named as for --input'
  _record_files.add_argument(group, '--held-out', help, **more)
  group.add_argument(
    '--paraphrases',
    nargs='+',
    default=[],
    metavar='FILE',
    help='variants of one text per line: tab-separated, or a JSON list',
  )
  group.add_argument(
    '--reconstructions',
    nargs='+',
    default=[],
    metavar='FILE',
    help='an original and reconstructions of its perturbed versions per line, '
    'likewise',
  )
  group.add_argument(
    '--denoise',
    nargs='*',
    metavar='FILE',
    help='perturb the lines of plain text files; without a file, the first '
    'reference of every source of --input',
  )
  _add_choices(parser.add_argument_group('choices'))
  _add_noise(parser.add_argument_group('perturbation'))
  parser.add_argument(
    '-o', '--output', required=True, metavar='OUT', help='the folder'
  )
  parser.add_argument('--quiet', action='store_true', help='print errors only')


def _add_choices(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '--per-source',
    type=_usage.count,
    metavar='N',
    help='maximum number of pairs of two hypotheses of one source (default: '
    f'{data_pairs.Recipe.per_source})',
  )
  group.add_argument(
    '--share',
    action='append',
    default=[],
    metavar='ORIGIN=X',
    help='keep this share of the pairs of an origin, to balance them '
    '(default: all); repeatable',
  )
  group.add_argument(
    '--shard-size',
    type=_usage.positive,
    default=10_000,
    metavar='N',
    help='minimum number of pairs of a shard, except the last: the work that '
    'an interrupted annotation loses (default: %(default)s)',
  )
  group.add_argument(
    '--seed',
    type=_usage.count,
    default=0,
    help='seed of all choices (default: %(default)s)',
  )


def _add_noise(group: argparse._ArgumentGroup) -> None:
  for name, words in (
    ('mask_share', 'share of the tokens that are masked'),
    ('mean_span', 'mean number of tokens of a masked span (Poisson)'),
    ('random_share', 'share of the spans that become random tokens'),
  ):
    group.add_argument(
      '--' + name.replace('_', '-'),
      type=float,
      metavar='X',
      help=f'{words} (default: {getattr(Noise, name)})',
    )
  group.add_argument(
    '--mask-token',
    metavar='TEXT',
    help='replacement of the other spans, such as <mask> (default: nothing)',
  )
  group.add_argument(
    '--keep-sentences', action='store_true', help="don't shuffle the sentences"
  )
  group.add_argument(
    '--versions',
    type=_usage.positive,
    metavar='N',
    help='perturbed versions of a text (default: 1)',
  )
  group.add_argument(
    '--lengths',
    metavar='LOW,HIGH',
    help='join and cut the lines of --denoise FILE into texts whose numbers of '
    'tokens are uniform in this range, in the paper 1,200 (default: lines as '
    'they are)',
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  inputs, recipe = _inputs(args), _recipe(args)
  identity = {
    **inputs.identity(),
    'recipe': dataclasses.asdict(recipe),
    'shard_size': args.shard_size,
    'version': __version__,
  }
  folder = pair_shards.Folder(args.output, 'pairs', identity)
  if folder.is_complete() and (folder.path / TEXTS_FILE).exists():
    report = [f'{args.output}: all shards are there already']
  else:
    report = _make(folder, inputs, recipe, args.shard_size)
  if not args.quiet:
    files.write_lines('-', report)
  return 0


@dataclasses.dataclass(frozen=True)
class _Inputs:
  """The files of the command line."""

  records: Sequence[_record_files.RecordFile]
  held_out: Sequence[_record_files.RecordFile]
  variants: Sequence[tuple[str, str]]  # (origin, path)
  originals: Sequence[str]
  lengths: tuple[int, int] | None

  def identity(self) -> dict[str, Any]:
    """The contents of the files, and how they are read."""

    def of(path: str, **more: Any) -> dict[str, Any]:
      return {**more, 'sha256': runs.digest(path)}

    return {
      'input': [of(f.path, **f.describe()) for f in self.records],
      'held_out': [of(f.path, **f.describe()) for f in self.held_out],
      'variants': [of(path, origin=origin) for origin, path in self.variants],
      'denoise': [of(path) for path in self.originals],
      'lengths': list(self.lengths or ()),
    }


def _inputs(args: argparse.Namespace) -> _Inputs:
  inputs = _Inputs(
    records=_record_files.parse_all(args.input, '--input'),
    held_out=_record_files.parse_all(args.held_out, '--held-out'),
    variants=[
      *((data_pairs.PARAPHRASES, p) for p in args.paraphrases),
      *((data_pairs.RECONSTRUCTIONS, p) for p in args.reconstructions),
    ],
    originals=args.denoise or [],
    lengths=_lengths(args.lengths),
  )
  for name in ('paraphrases', 'reconstructions', 'denoise'):
    for path in getattr(args, name) or ():
      _record_files.check_regular(path, f'--{name}')
  if not (inputs.records or inputs.variants or inputs.originals):
    raise UsageError(
      'no texts: give --input, --paraphrases, --reconstructions or --denoise '
      'FILE'
    )
  if args.denoise == [] and not inputs.records:
    raise UsageError('--denoise needs FILE, or --input with references')
  if not args.denoise:
    _usage.refuse(args, ['lengths'], 'is for --denoise FILE')
  if args.denoise is None:
    noise = [*_NOISE, 'keep_sentences', 'versions']
    _usage.refuse(args, noise, 'is for --denoise')
  if not args.input:
    _usage.refuse(args, ['per_source'], 'is for --input')
  return inputs


def _lengths(text: str | None) -> tuple[int, int] | None:
  if text is None:
    return None
  low, comma, high = text.partition(',')
  if not (comma and low.isdecimal() and high.isdecimal()):
    raise UsageError(f'--lengths takes LOW,HIGH as in 1,200, not {text!r}')
  if not 1 <= int(low) <= int(high):
    raise UsageError(f'--lengths {text}: 1 <= LOW <= HIGH')
  return int(low), int(high)


def _recipe(args: argparse.Namespace) -> data_pairs.Recipe:
  def given(names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(args, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}

  noise = Noise(**given(_NOISE), permute=not args.keep_sentences)
  return data_pairs.Recipe(
    shares=dict(_share(args, text) for text in args.share),
    denoise_references=args.denoise == [],
    **given(_RECIPE),
    noise=noise,
    seed=args.seed,
  )


def _share(args: argparse.Namespace, text: str) -> tuple[str, float]:
  origin, equals, share = text.partition('=')
  try:
    value = float(share if equals else 'none')
  except ValueError:
    raise UsageError(f'--share takes ORIGIN=X, not {text!r}') from None
  # `--denoise` without a file is an empty list, not None.
  option = _MADE_BY.get(origin)
  if option and getattr(args, option) == (None if option == 'denoise' else []):
    raise UsageError(f'--share {text} is for --{option}')
  return origin, value


def _make(
  folder: pair_shards.Folder,
  inputs: _Inputs,
  recipe: data_pairs.Recipe,
  shard_size: int,
) -> list[str]:
  """Reads everything, then writes everything; returns the report.

  The manifest is written with the first shard, so that a mistake in an input
  can be corrected without choosing another folder.
  """
  parent = Path(os.path.abspath(folder.path)).parent
  parent.mkdir(parents=True, exist_ok=True)
  with folders.scratch(folder.path) as spill:
    held_out = data_pairs.HeldOut()
    for file in inputs.held_out:
      for segment in file.segments():
        held_out.add(segment)
    with data_pairs.Corpus(spill, recipe, held_out) as corpus:
      _fill(corpus, inputs, recipe.seed)
    shards, rows, kept = _write_shards(folder, corpus, shard_size)
  counts = dict(sorted(corpus.counts.items()))
  if not rows:
    reasons = ', '.join(f'{n} {name}' for name, n in counts.items())
    raise InputError(f'no pairs came of these files: {reasons}')
  files.write_lines(folder.path / TEXTS_FILE, _texts(folder.path, shards))
  folder.write_manifest(
    shards=shards, rows=rows, counts=counts, held_out_texts=len(held_out)
  )
  plural = '' if shards == 1 else 's'
  before = f', {kept} of which were there already' if kept else ''
  return [
    f'{folder.path}: {rows} pairs in {shards} shard{plural}{before}',
    *(f'  {number:>9} {name}' for name, number in counts.items()),
  ]


def _fill(corpus: data_pairs.Corpus, inputs: _Inputs, seed: int) -> None:
  """Reads all files."""
  for file in inputs.records:
    for segment in file.segments():
      corpus.add_record(segment, file.path)
  for origin, path in inputs.variants:
    for texts in _variants(path):
      corpus.add_variants(texts, origin)
  for number, path in enumerate(inputs.originals):
    for text in _originals(path, inputs.lengths, [seed, number]):
      corpus.add_original(text)


def _variants(path: str) -> Iterator[list[str]]:
  """The texts of each line: between tabs, or a JSON list of strings."""
  with files.open_text(path) as lines:
    for number, line in enumerate(lines, 1):
      texts: Any = line.split('\t')
      if tables.format_of(path) == 'jsonl':
        try:
          texts = json.loads(line)
        except ValueError:
          texts = None
        if not (
          isinstance(texts, list) and all(isinstance(t, str) for t in texts)
        ):
          raise files.RecordError(
            'not a JSON list of texts, as in ["one", "other"]',
            path=path,
            line=number,
          )
      texts = [text for text in map(str.strip, texts) if text]
      if len(texts) < 2:
        raise files.RecordError(
          'a line needs two texts or more, between tabs (or as a JSON list in '
          'a file that ends in .jsonl)',
          path=path,
          line=number,
        )
      yield texts


def _originals(
  path: str, lengths: tuple[int, int] | None, seed: Sequence[int]
) -> Iterator[str]:
  """The lines of a file, or texts of evenly distributed numbers of tokens."""
  with files.open_text(path) as lines:
    filled = filter(None, map(str.strip, lines))
    if lengths is None:
      yield from filled
      return
    rng = np.random.default_rng([0x1E, *seed])
    low, high = lengths
    words: list[str] = []
    wanted = int(rng.integers(low, high + 1))
    for line in filled:
      words += line.split()
      while len(words) >= wanted:
        yield ' '.join(words[:wanted])
        words = words[wanted:]
        wanted = int(rng.integers(low, high + 1))


def _write_shards(
  folder: pair_shards.Folder, corpus: data_pairs.Corpus, size: int
) -> tuple[int, int, int]:
  """Writes the pairs; returns shards, pairs, and pairs already there."""
  waiting: list[data_pairs.Pair] = []
  total = kept = number = 0
  for group in itertools.chain(corpus.pairs(), [None]):
    waiting += group or ()
    if not waiting or (group is not None and len(waiting) < size):
      continue
    if not number:
      folder.write_manifest()
    if folder.done(number):
      kept += len(waiting)
    else:
      folder.write(number, (pair.row() for pair in waiting), {})
    number += 1
    total += len(waiting)
    waiting = []
  folder.remove_from(number)
  return number, total, kept


def _texts(folder: Path, shards: int) -> Iterator[str]:
  """Every distinct text once, on one line."""
  seen: set[bytes] = set()
  for number in range(shards):
    for row in pair_shards.read_rows(folder, number):
      for name in ('hypothesis', 'reference'):
        # Other systems' line separators would break the line.
        text = ' '.join(row[name].splitlines())
        key = data_pairs.text_key(text)
        if key not in seen:
          seen.add(key)
          yield text
