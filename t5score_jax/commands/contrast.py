"""`t5score contrast`: trains sentence embeddings of two languages."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from t5score_jax.commands import _mining, _usage
from t5score_jax.data import files, folders
from t5score_jax.errors import InputError, UsageError

SUMMARY = 'train sentence embeddings on pairs that are mined, or given'

DESCRIPTION = """
Trains an encoder to embed translations alike (UScore, section 3.2), from two
monolingual files. A round mines sentence pairs by the ratio margin of the
current encoder's vectors, as `t5score mine` does, and trains the initial
encoder on the best of them by the contrastive loss (equation 4): the other
pairs of a batch are what a pair is compared with. The result is the encoder of
the last round, a folder that `t5score score --metric cosine`, `t5score mine`,
transformers and sentence-transformers read.

With --pairs FILE an encoder is trained once on given pairs: parallel text
(appendix C) or the output of `t5score mine`.

With --held-out, P@1 of sentence matching is reported before and after each
round; it decides nothing. The work folder keeps every round's pairs and
encoder; the same command resumes there.
"""

EPILOG = """
examples:
  t5score contrast --sources news.de.gz --source-language de \\
      --targets news.en.gz --target-language en -m xlm-roberta-base \\
      --work rounds/ -o de-en/
  t5score contrast --pairs parallel.jsonl -m de-en/ -o de-en-tuned/
  t5score score --metric cosine -m de-en/ -s source.de -t system.en

exit code: 0 the encoder is written; 1 the run failed, or fewer than two pairs
were mined; 2 the command line is wrong; 75 or 130 a signal stopped the run
"""

# Of the mining, which --pairs does without; their defaults are the paper's.
_MINING = {'rounds': 6, 'neighbours': 5, 'best': 100_000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  _mining.add_corpora(parser, required=False)
  parser.add_argument(
    '--pairs',
    metavar='FILE',
    help='train once on these pairs instead: .jsonl or .tsv with the columns '
    'source and target; may be compressed (.gz)',
  )
  _mining.add_encoder(
    parser, 'keep the first N layers of the encoder (default: all)'
  )
  group = parser.add_argument_group('mining')
  group.add_argument(
    '--rounds',
    type=_usage.positive,
    metavar='N',
    help='rounds of mining and training (default: 6)',
  )
  group.add_argument(
    '-k',
    '--neighbours',
    type=_usage.positive,
    metavar='K',
    help='nearest sentences of the ratio margin (default: 5)',
  )
  group.add_argument(
    '--best',
    type=_usage.positive,
    metavar='N',
    help='train on the N best pairs of a round (default: 100000)',
  )
  _add_training(parser.add_argument_group('training'))
  _mining.add_output(parser, 'the trained encoder, a new folder', 'FOLDER')


def _add_training(group: argparse._ArgumentGroup) -> None:
  group.add_argument(
    '--learning-rate',
    type=float,
    default=5e-5,
    metavar='X',
    help='(default: %(default)s)',
  )
  group.add_argument(
    '--batch-size',
    type=_usage.positive,
    default=256,
    metavar='N',
    help='pairs per batch (default: %(default)s)',
  )
  group.add_argument(
    '--epochs',
    type=float,
    default=1.0,
    metavar='X',
    help='epochs of a round (default: %(default)s)',
  )
  group.add_argument(
    '--temperature',
    type=float,
    default=0.05,
    metavar='TAU',
    help='of equation 4 (default: %(default)s)',
  )
  group.add_argument(
    '--include-positive',
    action='store_true',
    help='have the pair itself in the denominator of equation 4 as well, as '
    'Gao et al. (2021) and the published program',
  )
  group.add_argument(
    '--warmup',
    type=_usage.fraction,
    default=0.1,
    metavar='SHARE',
    help='share of the steps in which the rate rises (default: %(default)s)',
  )
  group.add_argument(
    '--weight-decay',
    type=float,
    default=0.01,
    metavar='X',
    help='(default: %(default)s)',
  )
  group.add_argument(
    '--dropout',
    type=_usage.fraction,
    metavar='X',
    help="in the encoder (default: the encoder's own rate)",
  )
  group.add_argument(
    '--max-length',
    type=_usage.positive,
    metavar='N',
    help='tokens per text in training, special ones included; longer texts are '
    'cut (default: what the encoder reads)',
  )
  group.add_argument(
    '--parts',
    type=_usage.positive,
    default=1,
    metavar='N',
    help='encode a batch in N parts, twice each: saves memory, and all pairs '
    'of the batch are still compared (default: %(default)s)',
  )
  group.add_argument(
    '--seed',
    type=_usage.count,
    default=0,
    metavar='N',
    help='of the order and of dropout (default: %(default)s)',
  )
  group.add_argument(
    '--save-every',
    type=_usage.positive,
    default=100,
    metavar='N',
    help='steps between checkpoints (default: %(default)s)',
  )
  group.add_argument(
    '--held-out',
    nargs=2,
    metavar=('SOURCES', 'TARGETS'),
    help='two files that are aligned by line, to report P@1 on',
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  _check(args)
  output = Path(args.output)
  from t5score_jax.checkpoints import convert
  from t5score_jax.crosslingual import neighbours
  from t5score_jax.data import translations
  from t5score_jax.fitting import contrastive

  convert.check_output(output)
  neighbours.resolve(args.backend)
  say = _usage.printer(args.quiet)
  training = contrastive.Training(
    args.learning_rate,
    args.batch_size,
    args.epochs,
    args.temperature,
    args.include_positive,
    args.warmup,
    args.weight_decay,
    args.dropout,
    args.max_length,
    args.parts,
    args.dtype,
    args.seed,
    args.save_every,
  )
  held_out = _held_out(args.held_out) if args.held_out else None
  layer = None if args.layer == -1 else args.layer
  work = Path(args.work or f'{output}.work')
  if args.pairs:
    pairs = list(translations.read_pairs(args.pairs))
    done = contrastive.fine_tune(
      work,
      pairs,
      args.model,
      training,
      layer=layer,
      held_out=held_out,
      say=say,
      quiet=args.quiet,
    )
  else:
    sources, targets = _mining.read_corpora(args, say)
    done = contrastive.rounds(
      work,
      sources.texts,
      targets.texts,
      args.model,
      training,
      contrastive.Mining(
        args.rounds,
        args.best,
        args.neighbours,
        args.max_overlap,
        args.dtype,
        args.backend,
        args.batch_tokens,
      ),
      layer=layer,
      held_out=held_out,
      progress=_mining.Reporter(say),
      say=say,
      quiet=args.quiet,
    )
  with folders.new_folder(output) as new:
    shutil.copytree(done[-1].folder, new, dirs_exist_ok=True)
  if not args.work:
    shutil.rmtree(work)
  say(f'{output}: an encoder, trained on {done[-1].pairs} pairs')
  return 0


def _check(args: argparse.Namespace) -> None:
  """Checks which options go together."""
  if args.pairs:
    names = ('sources', 'targets', *_MINING)
    languages = ('source_language', 'target_language')
    for name in languages:
      if getattr(args, name):
        _usage.refuse(args, [name], 'is for mining, not for --pairs')
    _usage.refuse(args, names, 'is for mining, not for --pairs')
  elif not (args.sources and args.targets):
    raise UsageError('give --sources and --targets, or --pairs')
  _usage.fill(args, _MINING)


def _held_out(paths: Sequence[str]) -> tuple[list[str], list[str]]:
  """Reads two files that are aligned by line."""
  sources, targets = (files.read_lines(path) for path in paths)
  if len(sources) != len(targets) or not sources:
    raise InputError(
      f'--held-out: {paths[0]} has {len(sources)} lines, {paths[1]} '
      f'{len(targets)}; give two files that are aligned by line'
    )
  return sources, targets
