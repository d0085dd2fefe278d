"""`t5score convert` for encoders, models on encoders, GPT-2 and BART.

COMET checkpoints from and to this library's folders; encoders, FrugalScore's
cross-encoders and GPT-2 to Hugging Face's layout. Models are held in memory.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import kinds
from t5score_jax.commands import _usage
from t5score_jax.errors import UsageError

# The formats of each kind that --from and --to may name.
_SOURCES = {
  **dict.fromkeys(kinds.REGRESSORS, ('estimator', 'orbax')),
  **dict.fromkeys(kinds.COMETS, ('comet',)),
  kinds.CROSS_ENCODER: ('hf', 'orbax'),
  kinds.ENCODER: ('hf',),
  kinds.CAUSAL: ('hf',),
  kinds.BART: ('hf',),
}
_TARGETS = {
  **dict.fromkeys(
    (*kinds.REGRESSORS, *kinds.COMETS), ('comet', 'estimator', 'hf')
  ),
  kinds.CROSS_ENCODER: ('hf',),
  kinds.ENCODER: ('hf',),
  kinds.CAUSAL: ('hf',),
  kinds.BART: ('hf',),
}
# Options for COMET checkpoints only, and for T5 models only.
COMET_OPTIONS = ('tokenizer', 'num_heads', 'layer_transformation')
_T5_OPTIONS = ('activation', 'vocabulary', 'scan', 'max_shard_size')


def concerns(args: argparse.Namespace) -> bool:
  """Whether a command line is for an encoder or a model on an encoder."""
  named = {args.source_format, args.output_format} & {'comet', 'estimator'}
  return bool(named) or kinds.of(args.source) in _SOURCES


def _check(args: argparse.Namespace, kind: str) -> None:
  """Raises UsageError for formats and options of other kinds of models."""
  if args.dtype == 'int8' and (
    args.output_format not in ('hf', 'estimator')
    or kind in (kinds.CAUSAL, kinds.BART)
  ):
    raise UsageError(
      '--dtype int8: only encoders and cross-encoders with --to hf, and '
      'regressors with --to estimator'
    )
  for flag, name, known in (
    ('--from', args.source_format, _SOURCES[kind]),
    ('--to', args.output_format, _TARGETS[kind]),
  ):
    if name is not None and name not in known:
      raise UsageError(
        f'{flag} {name}: a model of kind {kind} is {" or ".join(known)}'
      )
  _usage.refuse(args, _T5_OPTIONS, 'is for T5 models')
  if kind not in kinds.COMETS:
    _usage.refuse(args, COMET_OPTIONS, 'is for COMET checkpoints')
  if args.output_format == 'comet' and args.dtype == 'bfloat16':
    raise UsageError('--dtype bfloat16: COMET checkpoints are float32')


def convert(args: argparse.Namespace) -> str:
  """Converts; returns a description of the result.

  Raises:
    UsageError: Formats or options do not fit the model.
    CheckpointError: IN can't be read, or OUT can't be written.
    OSError: Likewise.
  """
  from t5score_jax.checkpoints import bundle as bundles
  from t5score_jax.checkpoints import convert as conversion
  from t5score_jax.data import folders

  kind = kinds.of(args.source)
  if kind not in _SOURCES:  # What --from promises is reported on reading.
    kind = kinds.COMET if args.source_format == 'comet' else kinds.REGRESSOR
  _check(args, kind)
  conversion.check_output(args.output)
  words, model = _written(_load(args, kind), args.output_format)
  size = sum(array.size for _, array in bundles.flatten_names(model.params))
  described = f'{args.output_format}, {size:,} parameters, {words}'
  if args.dry_run:
    return f'{described}\n{model.config}'
  with folders.new_folder(args.output) as temporary:
    _save(model, temporary, args)
  return f'{args.output}: {described}'


def _load(args: argparse.Namespace, kind: str) -> Any:
  """Loads a Regressor, a CrossEncoder or an EncoderBundle."""
  from t5score_jax.checkpoints import loading
  from t5score_jax.checkpoints.formats.comet import checkpoint as comet
  from t5score_jax.checkpoints.formats.huggingface import bart, encoders, gpt2

  if kind in kinds.COMETS:
    options = (getattr(args, name) for name in COMET_OPTIONS)
    return comet.load_comet(args.source, *options)
  if kind == kinds.ENCODER:
    return encoders.load_encoder(args.source)
  if kind == kinds.CAUSAL:
    return gpt2.load(args.source)
  if kind == kinds.BART:
    return bart.load(args.source)
  return loading.load_regressor(args.source)


def _written(model: Any, format: str) -> tuple[str, Any]:
  """Describes and returns the part of a model that is written."""
  from t5score_jax.checkpoints import cross_encoders, regressors
  from t5score_jax.checkpoints.formats.huggingface import bart, encoders, gpt2

  if gpt2.is_language_model(model):
    return gpt2.ARCHITECTURE, model
  if isinstance(model, bart.BartBundle):
    return bart.ARCHITECTURE, model
  if isinstance(model, cross_encoders.CrossEncoder):
    return kinds.CROSS_ENCODER_ARCHITECTURE, model
  head = ''
  if isinstance(model, regressors.Regressor):
    if format != 'hf':
      outputs = ', '.join(model.config.outputs)
      if format == 'comet' and len(model.config.outputs) > 1:
        outputs = f'{outputs} as their mean'
      reads = 'with' if model.config.reference else 'without'
      tags = ', tags of words' if model.config.num_tags else ''
      return f'outputs {outputs}, {reads} reference{tags}', model
    # Hugging Face has no such head.
    model = encoders.EncoderBundle(
      model.config.encoder, model.params['encoder'], model.tokenizer, ''
    )
    head = ', without the head'
  (name,) = encoders.settings_from_config(model.config)['architectures']
  return f'{name}{head}', model


def _save(model: Any, folder: Path, args: argparse.Namespace) -> None:
  from t5score_jax.checkpoints import cross_encoders, regressors
  from t5score_jax.checkpoints.formats.comet import checkpoint as comet
  from t5score_jax.checkpoints.formats.huggingface import bart, encoders, gpt2

  dtype = args.dtype or 'float32'
  if args.output_format == 'comet':
    # COMET looks for the encoder's files where the folder will be.
    comet.save_comet(model, folder, args.output.absolute())
  elif args.output_format == 'estimator':
    regressors.save(model, folder, dtype)
  elif isinstance(model, cross_encoders.CrossEncoder):
    cross_encoders.save(model, folder, dtype)
  elif gpt2.is_language_model(model):
    gpt2.save(model, folder, dtype)
  elif isinstance(model, bart.BartBundle):
    bart.save(model, folder, dtype)
  else:
    encoders.save_encoder(model, folder, dtype)
