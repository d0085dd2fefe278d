"""`t5score remap`: maps an encoder's source words into the target's space."""

from __future__ import annotations

import argparse
from pathlib import Path

from t5score_jax.commands import _mining, _usage
from t5score_jax.errors import InputError, OptionError, UsageError

SUMMARY = 'estimate a map between the languages of an encoder, unsupervised'

DESCRIPTION = """
Estimates a linear map that brings the words of a source language closer to
their translations in an encoder's space (UScore, section 3.1), from two
monolingual files: sentence pairs are mined by the word mover's distance, their
words are aligned by the states of a middle layer, and the map is estimated from
the word pairs:

  umd   removes the direction in which the languages differ most
  clp   rotates the source onto the target (orthogonal Procrustes)

With --rounds N the map of a round serves the mining of the next one. The file
states its encoder, layer and languages; `t5score score --metric wmd --option
remap=FILE` uses it, and `t5score mine --method distance --map FILE`.
"""

EPILOG = """
examples:
  t5score remap --sources de.txt --source-language de \\
      --targets en.txt --target-language en -m e5-small -o de-en.map
  t5score score --metric wmd -m e5-small --option remap=de-en.map \\
      -s src.de -t system.en

exit code: 0 the map is written; 1 the run failed, or no words could be
aligned; 2 the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  _mining.add_corpora(parser)
  _mining.add_encoder(parser)
  group = parser.add_argument_group('estimation')
  group.add_argument(
    '--method', choices=('umd', 'clp'), default='umd', help='(default: umd)'
  )
  group.add_argument(
    '--rounds',
    type=_usage.positive,
    default=1,
    metavar='N',
    help='rounds of mining and estimation (default: 1, as in the paper)',
  )
  group.add_argument(
    '-k',
    '--neighbours',
    type=_usage.positive,
    default=20,
    metavar='K',
    help='nearest sentences that are compared exactly (default: %(default)s)',
  )
  group.add_argument(
    '--share',
    type=_usage.fraction,
    default=0.05,
    metavar='SHARE',
    help='pairs that are used, as a share of the source sentences (default: '
    '%(default)s)',
  )
  group.add_argument(
    '--align-layer',
    type=_usage.positive,
    metavar='N',
    help='layer whose states align words (default: two thirds of the depth, 8 '
    'of 12)',
  )
  group.add_argument(
    '--threshold',
    type=_usage.fraction,
    default=1e-3,
    metavar='P',
    help='least probability of an aligned pair of words (default: %(default)s)',
  )
  _mining.add_output(parser, 'the map')


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  _usage.check_writable(args.output, (args.sources, args.targets))
  from t5score_jax.crosslingual import remap, remapping

  say = _usage.printer(args.quiet)
  sources, targets = _mining.read_corpora(args, say)
  for path, corpus in ((args.sources, sources), (args.targets, targets)):
    if not corpus.texts:
      raise InputError(f'{path}: no sentence is left to mine; see the filters')
  encoder, name, checkpoint = _mining.load_encoder(
    args,
    lambda depth: _layers(args, depth),
  )
  # Ascending: the layer of the words is last.
  align_layer, layer = encoder.layers[0], encoder.layers[-1]
  identity = {
    **_mining.identity(args, checkpoint, layer),
    'method': 'distance',
    'k': args.neighbours,
    'remap': args.method,
    'align': [align_layer, args.threshold],
    'share': args.share,
  }
  work = Path(args.work or f'{args.output}.work')
  with _mining.work_folder(work, identity, keep=bool(args.work)) as folder:
    found = remapping.from_texts(
      folder,
      sources.texts,
      targets.texts,
      encoder,
      {
        'encoder': name,
        'checkpoint': checkpoint,
        'layer': layer,
        'source': args.source_language,
        'target': args.target_language,
      },
      remapping.Settings(
        method=args.method,
        rounds=args.rounds,
        share=args.share,
        k=args.neighbours,
        threshold=args.threshold,
        max_overlap=args.max_overlap,
        backend=args.backend,
      ),
      _mining.Reporter(say),
      say,
    )
    remap.save(found, args.output)
  return 0


def _layers(args: argparse.Namespace, depth: int) -> list[int]:
  """The layer that aligns words and the one that is mapped."""
  from t5score_jax.crosslingual import remapping

  try:
    return remapping.layers(args.layer, args.align_layer, depth)
  except OptionError as error:
    raise UsageError(f'--layer, --align-layer: {error}') from None
