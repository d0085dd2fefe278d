"""`t5score convert`: checkpoints from one format to another.

Reads T5X's, Hugging Face's and this library's checkpoints and writes the last
two, a block at a time. The work is in `checkpoints/convert.py`.
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
from t5score_jax.commands import _convert_estimator
from t5score_jax.commands._metric_arguments import positive
from t5score_jax.errors import UsageError

SUMMARY = 'convert checkpoints between T5X, Hugging Face and this library'

_DESCRIPTION = """
Writes the model that lies in IN as OUT, a folder that appears whole or not at
all and replaces nothing. Formats:

  t5x     T5X's checkpoint_N (msgpack and zarr, or Orbax), or a MODEL_DIR of it
  hf      a Hugging Face folder: config.json, safetensors or .bin, tokenizer
  orbax   a MODEL_DIR of `t5score train`, or a checkpoint_N in one
  bundle  a folder for scoring: config.json, safetensors, vocabulary.model

and, for encoders and what stands on them, held in memory meanwhile,

  comet      an Unbabel COMET checkpoint: hparams.yaml and a .ckpt
  estimator  a folder with COMES's or COMET's regressor
  hf         of a regressor its encoder alone (BertModel, XLMRobertaModel), of
             FrugalScore's miniatures BertForSequenceClassification

from these folders or from a MODEL_DIR of `t5score train`.

t5x is read only; --from and --to name the others and whatever else is a module
of checkpoints/. Weights are read and written in blocks, so that memory does
not grow with the model. Values stay the same to the last bit, unless --dtype
rounds them.

T5X does not say what the network is: its shape is read off the parameters. The
activation is taken to be gelu where feed-forward blocks are gated, else relu;
the vocabulary to be bytes where it has 384 ids and no vocabulary.model lies
beside the checkpoint. --activation and --vocabulary say otherwise. A model
that says itself what it is (bundle, orbax, hf) keeps that: the two may only
repeat it.
"""

_EXAMPLES = """
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
  parser.description = _DESCRIPTION
  parser.epilog = _EXAMPLES
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument(
    'source',
    metavar='IN',
    type=Path,
    help='the checkpoint, or the name of an embedded model',
  )
  parser.add_argument(
    'output', metavar='OUT', type=Path, help='a new folder, or an empty one'
  )
  parser.add_argument(
    '--from',
    dest='source_format',
    metavar='FORMAT',
    help='of IN (default: found out)',
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
    help='of the feed-forward blocks (of gated ones the gate), where IN '
    'does not say: gelu, relu, silu',
  )
  parser.add_argument(
    '--vocabulary',
    metavar='PATH|bytes',
    help='a SentencePiece model, or the word bytes, where IN does not say',
  )
  parser.add_argument(
    '--dtype',
    choices=('float32', 'bfloat16'),
    help='of the stored weights (default: what holds those of IN exactly)',
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
    help='lay layers out scanned, or one by one (orbax only; default: as '
    'they are)',
  )
  regressors = parser.add_argument_group('comet')
  regressors.add_argument(
    '--tokenizer',
    metavar='FOLDER',
    help="of the encoder, where it does not lie in IN: COMET's has none",
  )
  regressors.add_argument(
    '--num-heads',
    type=positive,
    metavar='N',
    help="the encoder's attention heads (default: one for each 64 of its "
    'width; 80 in XLM-R XL, 128 in XXL)',
  )
  regressors.add_argument(
    '--layer-transformation',
    choices=('softmax', 'sparsemax'),
    help='of the layer mix, in place of what IN says',
  )
  parser.add_argument(
    '--dry-run',
    action='store_true',
    help='print what would be made, and make nothing',
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
  from t5score_jax.checkpoints.weights import (
    SHARD_BYTES,
    Options,
  )

  start = time.monotonic()
  args.source = _place(args.source)
  if _convert_estimator.concerns(args):
    if problem := _convert_estimator.problem(args):
      raise UsageError(problem)
    said = _convert_estimator.convert(args)
    if args.dry_run or not args.quiet:
      print(said)
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
  if not args.quiet:
    for note in source.notes:
      print(f't5score convert: {note}', file=sys.stderr)
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
  """Finds out before anything is opened whether the formats exist."""
  from t5score_jax.checkpoints import registry

  for flag, given in (
    ('--tokenizer', args.tokenizer),
    ('--num-heads', args.num_heads),
    ('--layer-transformation', args.layer_transformation),
  ):
    if given is not None:
      raise UsageError(f'{flag} is for COMET checkpoints')
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


def _place(path: Path) -> Path:
  """The path, or the folder of the embedded model of that name."""
  if not path.exists() and str(path) in kinds.embedded():
    return kinds.folder(str(path))
  return path


@contextlib.contextmanager
def _progress(nbytes: int, quiet: bool) -> Iterator[Callable[[int], None]]:
  """A bar on standard error where that is a terminal."""
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
