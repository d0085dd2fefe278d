"""`t5score convert`: converts checkpoints from one format to another.

Reads T5X's, Hugging Face's and this library's checkpoints and writes the last
two, block by block (`checkpoints/convert.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from t5score_jax.checkpoints import kinds
from t5score_jax.commands import _convert_encoders, _usage
from t5score_jax.errors import UsageError

SUMMARY = 'convert checkpoints between T5X, Hugging Face and this library'

DESCRIPTION = """
Writes the model in IN to OUT, a new folder that is written whole or not at all.
Formats:

  t5x     T5X's checkpoint_N (msgpack and zarr, or Orbax), or a MODEL_DIR of it
  hf      a Hugging Face folder: config.json, safetensors or .bin, tokenizer
  orbax   a MODEL_DIR of `t5score train`, or a checkpoint_N in one
  bundle  a folder for scoring: config.json, safetensors, vocabulary.model

and, for encoders and models built on them, which are held in memory,

  comet      an Unbabel COMET checkpoint: hparams.yaml and a .ckpt
  estimator  a folder with COMES's or COMET's regressor
  hf         a regressor's encoder alone (BertModel, XLMRobertaModel), or
             FrugalScore's cross-encoder (BertForSequenceClassification), or
             GPT-2 (GPT2LMHeadModel)

from these folders or from a MODEL_DIR of `t5score train`.

t5x is read only. T5 weights are read and written in blocks, so that memory does
not grow with the model. Values are bit-identical unless --dtype rounds them.

T5X checkpoints do not describe the network: its shape is inferred from the
parameters. By default the activation is gelu if feed-forward blocks are gated,
else relu; the vocabulary is bytes if it has 384 ids and no vocabulary.model is
beside the checkpoint. --activation and --vocabulary override both. A model that
describes itself (bundle, orbax, hf) keeps its description.
"""

EPILOG = """
examples:
  t5score convert --to bundle checkpoint_1000000 my_model/ \\
      --vocabulary mt5/sentencepiece.model
  t5score convert --from t5x --to orbax --scan checkpoint_1000000 start/
  t5score convert --from orbax --to hf --dtype bfloat16 my_run/ for_the_hub/
  t5score convert --to bundle --dry-run checkpoint_1000000 my_model/
  t5score convert --from comet --to estimator wmt22-comet-da/ my_comet/ \\
      --tokenizer xlm-roberta-large/
  t5score convert --to hf my_frugalscore_run/ for_the_hub/

exit code: 0 converted; 1 the checkpoint can't be read or OUT not written; 2 the
command line is wrong
"""

_UNITS = {'': 1, 'KB': 10**3, 'MB': 10**6, 'GB': 10**9, 'TB': 10**12}
_SIZE = re.compile(r'(\d+(?:\.\d+)?)\s*([KMGT]?B?)', re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.add_argument(
    'source',
    metavar='IN',
    type=Path,
    help='the checkpoint, or the name of an embedded or installed model',
  )
  parser.add_argument(
    'output', metavar='OUT', type=Path, help='a new folder, or an empty one'
  )
  parser.add_argument(
    '--from',
    dest='source_format',
    metavar='FORMAT',
    help='of IN (default: detected)',
  )
  parser.add_argument(
    '--to',
    dest='output_format',
    metavar='FORMAT',
    required=True,
    help='of OUT',
  )
  parser.add_argument(
    '--activation',
    metavar='NAME',
    help='of the feed-forward blocks (of gated ones the gate), if IN does not '
    'describe it: gelu, relu, silu',
  )
  parser.add_argument(
    '--vocabulary',
    metavar='PATH|bytes',
    help='a SentencePiece model, or the word bytes, if IN has no description',
  )
  parser.add_argument(
    '--dtype',
    choices=('float32', 'bfloat16', 'int8'),
    help='of the stored weights (default: the one that holds IN exactly); int8 '
    'with a scale per channel, for encoders, cross-encoders and regressors, '
    'which this library alone reads',
  )
  parser.add_argument(
    '--max-shard-size',
    type=_size,
    metavar='SIZE',
    help='of the safetensors files of a large T5 model (default: 5GB)',
  )
  parser.add_argument(
    '--scan',
    action=argparse.BooleanOptionalAction,
    help='store layers scanned, or one by one (orbax only; default: as in IN)',
  )
  regressors = parser.add_argument_group('comet')
  regressors.add_argument(
    '--tokenizer',
    metavar='FOLDER',
    help="of the encoder, if IN has none, such as COMET's checkpoints",
  )
  regressors.add_argument(
    '--num-heads',
    type=_usage.positive,
    metavar='N',
    help="the encoder's attention heads (default: those of its config.json, "
    "beside hparams.yaml or the tokenizer, or of a published encoder's name)",
  )
  regressors.add_argument(
    '--layer-transformation',
    choices=('softmax', 'sparsemax'),
    help='of the layer mix, instead of that of IN',
  )
  parser.add_argument(
    '--dry-run',
    action='store_true',
    help='print what would be written, and write nothing',
  )
  parser.add_argument(
    '--quiet', action='store_true', help='no progress bar and no report'
  )


def _size(text: str) -> int:
  """'5GB' -> 5000000000."""
  match = _SIZE.fullmatch(text.strip())
  if not match:
    raise argparse.ArgumentTypeError(
      f'{text!r} is not a size; give one such as 500MB or 5GB'
    )
  unit = match[2].upper()
  if unit and not unit.endswith('B'):
    unit += 'B'
  size = int(float(match[1]) * (1 if unit == 'B' else _UNITS[unit]))
  if size < 1:
    raise argparse.ArgumentTypeError(f'{text!r}: at least one byte')
  return size


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  from t5score_jax.checkpoints import convert
  from t5score_jax.checkpoints.source import Options
  from t5score_jax.checkpoints.weights import SHARD_BYTES

  start = time.monotonic()
  if not args.source.exists():
    args.source = kinds.folder(str(args.source))
  if _convert_encoders.concerns(args):
    described = _convert_encoders.convert(args)
    if args.dry_run or not args.quiet:
      print(described)
    return 0
  _check_formats(args)
  convert.check_output(args.output)
  source = convert.open_source(
    args.source,
    Options(args.activation, args.vocabulary),
    args.source_format,
  )
  dtype = args.dtype or convert.stored_dtype(source)
  scan = convert.target_layout(source, args.output_format, args.scan)
  if args.dry_run:
    print(convert.describe(convert.relaid(source, scan), dtype))
    return 0
  for note in source.notes:
    _usage.printer(args.quiet)(f't5score convert: {note}')
  nbytes = source.size * (2 if dtype == 'bfloat16' else 4)
  with _progress(nbytes, args.quiet) as advance:
    source = convert.write(
      source,
      args.output,
      args.output_format,
      scan_layers=scan,
      dtype=dtype,
      max_shard_bytes=args.max_shard_size or SHARD_BYTES,
      progress=advance,
    )
  if not args.quiet:
    print(
      f'{args.output}: {args.output_format}, {len(source.weights)} arrays, '
      f'{source.size:,} parameters, {dtype}, {nbytes / 1e9:.3f} GB in '
      f'{time.monotonic() - start:.1f} s'
    )
  return 0


def _check_formats(args: argparse.Namespace) -> None:
  """Checks formats and options before anything is opened."""
  from t5score_jax.checkpoints import registry

  comet = _convert_encoders.COMET_OPTIONS
  _usage.refuse(args, comet, 'is for COMET checkpoints')
  if args.dtype == 'int8':
    raise UsageError(
      '--dtype int8: only encoders and cross-encoders with --to hf, and '
      'regressors with --to estimator'
    )
  for flag, name, known in (
    ('--from', args.source_format, registry.readable()),
    ('--to', args.output_format, registry.writable()),
  ):
    if name is not None and name not in known:
      there = ', '.join(known)
      problem = 'is read only' if name in registry.readable() else 'is unknown'
      raise UsageError(f'{flag} {name}: the format {problem}; use {there}')
  if args.scan and args.output_format != 'orbax':
    raise UsageError(
      f'--scan: the format {args.output_format} has no scanned layers; '
      'orbax has'
    )


@contextlib.contextmanager
def _progress(nbytes: int, quiet: bool) -> Iterator[Callable[[int], None]]:
  """Shows a bar on standard error if that is a terminal."""
  if quiet or not sys.stderr.isatty():
    yield lambda count: None
    return
  from rich import console, progress

  with progress.Progress(
    progress.BarColumn(),
    progress.DownloadColumn(),
    progress.TransferSpeedColumn(),
    progress.TimeRemainingColumn(),
    console=console.Console(stderr=True),
    transient=True,
  ) as bar:
    task = bar.add_task('', total=nbytes)
    yield lambda count: bar.advance(task, count)
