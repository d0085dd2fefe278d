"""`t5score convert` for regressors: COMET checkpoints from and to our folders.

A regressor is an encoder with a head, no T5 network: it has formats of its
own, and is held in memory while it is converted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from t5score_jax.checkpoints import kinds

FORMATS = ('comet', 'estimator')


def concerns(args: argparse.Namespace) -> bool:
  """Whether a command line is about a regressor."""
  named = args.source_format in FORMATS or args.output_format in FORMATS
  return named or (args.source_format is None and detect(args.source) != '')


def detect(path: Path) -> str:
  """The format of a regressor that lies in a path; '' if none does."""
  kind = kinds.of(path)
  return kind if kind in FORMATS else ''


def problem(args: argparse.Namespace) -> str:
  """What is wrong with the command line; '' if nothing is."""
  for flag, name in (
    ('--from', args.source_format),
    ('--to', args.output_format),
  ):
    if name is not None and name not in FORMATS:
      return f'{flag} {name}: a regressor is {" or ".join(FORMATS)}'
  for flag, given in (
    ('--activation', args.activation),
    ('--vocabulary', args.vocabulary),
    ('--scan', args.scan),
  ):
    if given:
      return f'{flag} is for T5 models'
  if args.output_format == 'comet' and args.dtype == 'bfloat16':
    return '--dtype bfloat16: COMET checkpoints are float32'
  return ''


def convert(args: argparse.Namespace) -> str:
  """Converts; returns what to say of it.

  Raises:
    CheckpointError: IN can't be read, or OUT not be written.
    OSError: likewise.
  """
  from t5score_jax.checkpoints import bundle as bundles
  from t5score_jax.checkpoints import comet, estimators, folders
  from t5score_jax.checkpoints import convert as conversion
  from t5score_jax.checkpoints.weights import CheckpointError

  conversion.check_output(args.output)
  format = args.source_format or detect(args.source)
  if not args.source.exists():
    raise CheckpointError(f'{args.source}: no such file or folder')
  if format == 'comet':
    model = comet.load_comet(
      args.source,
      args.tokenizer,
      args.num_heads,
      args.layer_transformation,
    )
  else:
    model = estimators.load(args.source)
  size = sum(array.size for _, array in bundles.flatten_names(model.params))
  said = (
    f'{args.output_format}, {size:,} parameters, outputs '
    f'{", ".join(model.config.outputs)}, '
    + ('with' if model.config.reference else 'without')
    + ' reference'
  )
  if args.dry_run:
    return f'{said}\n{model.config}'
  with folders.new_folder(args.output) as temporary:
    if args.output_format == 'comet':
      comet.save_comet(model, temporary)
    else:
      estimators.save(model, temporary, args.dtype or 'float32')
  return f'{args.output}: {said}'
