"""`t5score uscore`: builds a UScore metric from two monolingual files."""

from __future__ import annotations

import argparse
from pathlib import Path

from t5score_jax.commands import _gin, _mining, _usage

SUMMARY = 'build a metric without supervision from two monolingual files'

RECIPE = 'recipes/uscore.gin'

DESCRIPTION = """
Builds a metric of translations from two monolingual files, without parallel
text, references or human ratings (UScore, section 3): a map between the
languages in an encoder's space, a translator that makes pseudo references, a
language model of the target language, and an encoder of sentences. The result
is a folder that `t5score score -m` takes.

--gin_file says which parts are built, and how: recipes/uscore.gin (the default,
all parts and the paper's weights), uscore_word.gin, uscore_sentence.gin,
uscore_plus.gin and uscore_plus_plus.gin. Their macros are set by --gin.NAME, as
in --gin.ROUNDS=2; see runs/uscore.gin.

The work folder keeps every finished part; the same command resumes there.
"""

EPILOG = """
examples:
  t5score uscore --sources news.de.gz --source-language de \\
      --targets news.en.gz --target-language en \\
      -m bert-base-multilingual-cased/ --sentence-encoder xlm-roberta-base/ \\
      --translator mt5-small/ --language-model gpt2/ -o de-en/
  t5score score -m de-en/ -s source.de -t system.en
  t5score uscore --gin_file=recipes/uscore_word.gin --gin.REMAP_ROUNDS=2 \\
      --sources de.txt --targets en.txt -m e5-small -o words/

exit code: 0 the metric is written; 1 the run failed, or nothing was mined; 2
the command line or the configuration is wrong; 75 or 130 a signal stopped the
run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  _gin.add_arguments(parser)
  _mining.add_corpora(parser)
  _mining.add_encoder(parser)
  group = parser.add_argument_group('models and data')
  group.add_argument(
    '--sentence-encoder',
    metavar='ENCODER',
    help='trained to compare sentences (default: that of -m)',
  )
  group.add_argument(
    '--translator',
    default='t5score-tiny',
    metavar='MODEL',
    help='a T5 that is trained to translate, and to be the language model '
    '(default: %(default)s)',
  )
  group.add_argument(
    '--language-model',
    metavar='MODEL',
    help='taken as it is: a folder of GPT-2 in the target language, or of a T5 '
    'trained with empty inputs (default: one is trained on the targets)',
  )
  group.add_argument(
    '--translations',
    metavar='FILE',
    help='translations of the sources that will be scored (.jsonl or .tsv with '
    'source and translation), or a T5 that translates, instead of training one',
  )
  group.add_argument(
    '--parallel',
    metavar='FILE',
    help='parallel text to train on in addition (appendix C): .jsonl or .tsv '
    'with source and target',
  )
  _mining.add_output(parser, 'the metric, a new folder', 'FOLDER')


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  from t5score_jax.checkpoints import convert
  from t5score_jax.crosslingual import neighbours
  from t5score_jax.data import translations
  from t5score_jax.fitting import uscore
  from t5score_jax.runtime import configurables

  output = Path(args.output)
  convert.check_output(output)
  _gin.configure(
    args.gin_file or [RECIPE],
    args.gin_bindings,
    args.gin_search_paths,
    more=[
      f'MAX_OVERLAP = {args.max_overlap}',
      f'BACKEND = {args.backend!r}',
    ],
  )
  plan = configurables.call(uscore.Plan)
  neighbours.resolve(plan.mining.backend)
  say = _usage.printer(args.quiet)
  parallel = (
    list(translations.read_pairs(args.parallel)) if args.parallel else []
  )
  sources, targets = _mining.read_corpora(args, say)
  parts = uscore.build(
    output,
    sources.texts,
    targets.texts,
    uscore.Models(
      args.model,
      args.sentence_encoder,
      args.translator,
      args.language_model,
      args.translations,
      args.layer,
    ),
    plan,
    languages=(args.source_language, args.target_language),
    parallel=parallel,
    work=args.work,
    dtype=args.dtype,
    batch_tokens=args.batch_tokens,
    progress=_mining.Reporter(say),
    say=say,
    quiet=args.quiet,
  )
  say(f'{output}: a metric of {", ".join(parts.names())}')
  return 0
