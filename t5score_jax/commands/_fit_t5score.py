"""`t5score fit` for T5Score: from rated records, without a gin file.

Not a verb itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from t5score_jax.commands import _gin, _usage
from t5score_jax.data import files, records
from t5score_jax.data.records import Segment
from t5score_jax.errors import STOPPED, UsageError
from t5score_jax.metrics import registry
from t5score_jax.runtime import configurables

_OPTIONS = ('model', 'shared', 'epochs', 'batch_size', 'learning_rate')
_RUN, _GIN = 'run', 'fit.gin'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the options of fitting T5Score."""
  group = parser.add_argument_group('T5Score (without --gin_file)')
  group.add_argument(
    '-m',
    '--model',
    metavar='NAME_OR_PATH',
    help='the T5 model to start from: an embedded one, a folder of mT5, a run '
    f'(default: {registry.DEFAULT_MODEL})',
  )
  group.add_argument(
    '--shared',
    choices=('reference', 'source'),
    help='what hypotheses are compared with (default: reference, or source '
    'where no record has a reference)',
  )
  group.add_argument(
    '--epochs',
    type=float,
    metavar='X',
    help='passes over the groups of hypotheses (default: 4)',
  )
  group.add_argument(
    '--batch-size',
    type=_usage.positive,
    metavar='N',
    help='groups of a step (default: 4; 8 from 50 million parameters on)',
  )
  group.add_argument(
    '--learning-rate',
    type=float,
    metavar='X',
    help='(default: 1e-4; 1e-5 from 50 million parameters on)',
  )


def refuse(args: argparse.Namespace) -> None:
  """Raises UsageError for these options beside --gin_file."""
  why = 'is for T5Score, without --gin_file: the gin files say it'
  _usage.refuse(args, _OPTIONS, why, {'model': '-m'})


def run(
  args: argparse.Namespace,
  ratings: Sequence[str],
  parts: Mapping[str, Sequence[Segment]],
) -> str:
  """Trains into WORK/run and WORK/model, or resumes.

  Args:
    args: The parsed arguments.
    ratings: The one rating.
    parts: Records to train ('train') and to select the checkpoint on
      ('validation').

  Returns:
    What to print.

  Raises:
    UsageError: More than one rating, or a folder of another run.
    Stopped: A signal stopped the run; the same command resumes it.
  """
  from t5score_jax.fitting import fit, t5score

  if len(ratings) != 1:
    raise UsageError(
      f'--ratings {",".join(ratings)}: T5Score learns from one rating; several '
      'are for regressors (--gin_file)'
    )
  for name in ('epochs', 'learning_rate'):
    value = getattr(args, name)
    if value is not None and not 0 < value < float('inf'):
      flag = name.replace('_', '-')
      raise UsageError(f'--{flag} {value:g}: must be above 0')
  place = Path(args.work)
  given = {
    name: getattr(args, name)
    for name in _OPTIONS
    if getattr(args, name) is not None
  }
  choices = t5score.Choices(**{'model': registry.DEFAULT_MODEL, **given})
  paths = {part: str(place / f'{part}.jsonl') for part in fit.PARTS}
  text = t5score.configuration(choices, ratings[0], parts[fit.TRAIN], paths)
  identity = {f'{part} records': fit.digest(parts[part]) for part in fit.PARTS}
  plan = fit.Plan(place, identity)
  plan.claim('\n'.join([text, *args.gin_bindings]))
  _write(place, text, parts, paths)
  bindings = [*args.gin_bindings, f'MODEL_DIR={str(place / _RUN)!r}']
  command = _gin.train_command([str(place / _GIN)], bindings)
  if args.prepare:
    return command
  say = _usage.printer(args.quiet)
  say(f'{place / _GIN}:\n\n{text}\nThe same training elsewhere:\n  {command}\n')
  if not (place / fit.MODEL).is_dir():
    _train(args, place)
  return _result(place, ratings[0], parts)


def _write(
  place: Path,
  text: str,
  parts: Mapping[str, Sequence[Segment]],
  paths: Mapping[str, str],
) -> None:
  for part, path in paths.items():
    if not Path(path).exists():
      records.write_records(path, parts[part])
  with files.write_atomically(place / _GIN) as out:
    out.write(text)


def _train(args: argparse.Namespace, place: Path) -> None:
  """Trains, and keeps the best checkpoint as a model."""
  from t5score_jax.checkpoints import bundle, loading
  from t5score_jax.data import folders
  from t5score_jax.fitting import fit
  from t5score_jax.training import loop

  run = place / _RUN
  _gin.configure(
    [str(place / _GIN)],
    args.gin_bindings,
    args.gin_search_paths,
    more=[f'MODEL_DIR = {str(run)!r}'],
  )
  result = configurables.call(loop.train, quiet=args.quiet)
  if result.reason in STOPPED:
    raise fit.Stopped(result.reason)
  with folders.new_folder(place / fit.MODEL) as new:
    bundle.save_bundle(new, loading.load_model(run), dtype='float32')


def _result(
  place: Path, rating: str, parts: Mapping[str, Sequence[Segment]]
) -> str:
  from t5score_jax.checkpoints import selection
  from t5score_jax.fitting import fit

  model = place / fit.MODEL
  checkpoint = selection.find_checkpoint(place / _RUN)
  numbers = selection.numbers(checkpoint)
  values = ', '.join(f'{key} {numbers[key]:.4f}' for key in sorted(numbers))
  return '\n'.join(
    [
      f'{model}: T5Score on {rating}, trained on '
      f'{len(parts[fit.TRAIN]):,} records, validated on '
      f'{len(parts[fit.VALIDATION]):,}',
      f'{checkpoint.name}: {values}',
      shlex.join(['t5score', 'score', '-m', str(model), '--input', 'FILE']),
    ]
  )
