"""`t5score convert` for encoders and what stands on them.

COMET checkpoints from and to our folders; encoders and FrugalScore's miniatures
to Hugging Face's layout. They are held in memory while they are converted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import kinds

# What each kind may be called by --from, and what it can become.
_SOURCES = {
  kinds.REGRESSOR: ('estimator', 'orbax'),
  kinds.COMET: ('comet',),
  kinds.CROSS_ENCODER: ('hf', 'orbax'),
  kinds.ENCODER: ('hf',),
}
_TARGETS = {
  kinds.REGRESSOR: ('comet', 'estimator', 'hf'),
  kinds.COMET: ('comet', 'estimator', 'hf'),
  kinds.CROSS_ENCODER: ('hf',),
  kinds.ENCODER: ('hf',),
}
_OWN = ('comet', 'estimator')


def concerns(args: argparse.Namespace) -> bool:
  """Whether a command line is about an encoder or a regressor."""
  named = {args.source_format, args.output_format} & set(_OWN)
  return bool(named) or kinds.of(args.source) in _SOURCES


def problem(args: argparse.Namespace) -> str:
  """What is wrong with the command line; '' if nothing is."""
  kind = _kind(args)
  for flag, name, known in (
    ('--from', args.source_format, _SOURCES[kind]),
    ('--to', args.output_format, _TARGETS[kind]),
  ):
    if name is not None and name not in known:
      return f'{flag} {name}: a model of kind {kind} is {" or ".join(known)}'
  for flag, given in (
    ('--activation', args.activation),
    ('--vocabulary', args.vocabulary),
    ('--scan', args.scan),
    ('--max-shard-size', args.max_shard_size),
  ):
    if given:
      return f'{flag} is for T5 models'
  for flag, given in (
    ('--tokenizer', args.tokenizer),
    ('--num-heads', args.num_heads),
    ('--layer-transformation', args.layer_transformation),
  ):
    if given is not None and kind != kinds.COMET:
      return f'{flag} is for COMET checkpoints'
  if args.output_format == 'comet' and args.dtype == 'bfloat16':
    return '--dtype bfloat16: COMET checkpoints are float32'
  return ''


def _kind(args: argparse.Namespace) -> str:
  """What IN holds, or should hold by --from."""
  found = kinds.of(args.source)
  if found in _SOURCES:
    return found
  return kinds.COMET if args.source_format == 'comet' else kinds.REGRESSOR


def convert(args: argparse.Namespace) -> str:
  """Converts; returns what to say of it.

  Raises:
    CheckpointError: IN can't be read, or OUT not be written.
    OSError: likewise.
  """
  from t5score_jax.checkpoints import bundle as bundles
  from t5score_jax.checkpoints import convert as conversion
  from t5score_jax.checkpoints.weights import CheckpointError
  from t5score_jax.data import folders

  conversion.check_output(args.output)
  if not args.source.exists():
    raise CheckpointError(f'{args.source}: no such file or folder')
  model = _load(args)
  words, model = _chosen(model, args.output_format)
  size = sum(array.size for _, array in bundles.flatten_names(model.params))
  said = f'{args.output_format}, {size:,} parameters, {words}'
  if args.dry_run:
    return f'{said}\n{model.config}'
  with folders.new_folder(args.output) as temporary:
    _save(model, temporary, args.output_format, args.dtype or 'float32')
  return f'{args.output}: {said}'


def _load(args: argparse.Namespace) -> Any:
  """An Estimator, a Miniature or an EncoderBundle."""
  from t5score_jax.checkpoints import native
  from t5score_jax.checkpoints.formats import comet
  from t5score_jax.checkpoints.formats.huggingface import encoders

  kind = _kind(args)
  if kind == kinds.COMET:
    return comet.load_comet(
      args.source,
      args.tokenizer,
      args.num_heads,
      args.layer_transformation,
    )
  if kind == kinds.ENCODER:
    return encoders.load_encoder(args.source)
  return native.load_regressor(args.source)


def _chosen(model: Any, format: str) -> tuple[str, Any]:
  """What to say of the model, and the part of it that is written."""
  from t5score_jax.checkpoints import cross_encoders, regressors
  from t5score_jax.checkpoints.formats.huggingface import encoders

  if isinstance(model, cross_encoders.CrossEncoder):
    return kinds.CROSS_ENCODER_ARCHITECTURE, model
  head = ''
  if isinstance(model, regressors.Regressor):
    if format != 'hf':
      outputs = ', '.join(model.config.outputs)
      reads = 'with' if model.config.reference else 'without'
      return f'outputs {outputs}, {reads} reference', model
    # Hugging Face has no such head.
    model = encoders.EncoderBundle(
      model.config.encoder, model.params['encoder'], model.tokenizer, ''
    )
    head = ', without the head'
  (name,) = encoders.settings_from_config(model.config)['architectures']
  return f'{name}{head}', model


def _save(model: Any, folder: Path, format: str, dtype: str) -> None:
  from t5score_jax.checkpoints import cross_encoders, regressors
  from t5score_jax.checkpoints.formats import comet
  from t5score_jax.checkpoints.formats.huggingface import encoders

  if format == 'comet':
    comet.save_comet(model, folder)
  elif format == 'estimator':
    regressors.save(model, folder, dtype)
  elif isinstance(model, cross_encoders.CrossEncoder):
    cross_encoders.save(model, folder, dtype)
  else:
    encoders.save_encoder(model, folder, dtype)
