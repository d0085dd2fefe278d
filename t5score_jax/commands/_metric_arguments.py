"""The metric of a command line: its flags, its options, and loading it.

Shared by every verb that scores. Which metric a folder means is in
`metrics/registry.py`; nothing here imports JAX before a metric is loaded.

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import kinds
from t5score_jax.commands import _usage
from t5score_jax.errors import OptionError
from t5score_jax.metrics import base, registry

# Those of metrics/t5score.py and inference/placement.py, whose import takes a
# second; a test compares them.
DIRECTIONS = ('f', 'precision', 'recall', 'source', 'ref_src')
DTYPES = ('float32', 'bfloat16')

# Options of metrics that have a flag: attribute of the parsed arguments, which
# is the name of the option -> flag.
_FLAGS = {
  'direction': '--direction',
  'source_based': '--source-based',
  'reference_rule': '--several',
  'max_length': '--max-length',
  'batch_tokens': '--batch-tokens',
  'num_partitions': '--num-partitions',
  'dtype': '--dtype',
  'remove_chinese_spaces': '--remove-chinese-spaces',
  'token_log_probs': '--tokens',
}
_MODEL, _SPREAD = 'model', 'spread'


UsageError = _usage.UsageError
positive = _usage.positive


def add_choice(group: Any, required: bool = False) -> None:
  """Declares -m, --metric and --option.

  Args:
    group: A parser, or a group of one.
    required: Whether -m has to be given.
  """
  default = '' if required else f' (default: {registry.DEFAULT_MODEL})'
  group.add_argument(
    '-m',
    '--model',
    metavar='NAME_OR_PATH',
    required=required,
    help='an embedded model, a model folder, a MODEL_DIR or checkpoint of '
    'training, which say by themselves whether they are models of T5Score, '
    'COMES or FrugalScore; an encoder with --metric bertscore or moverscore; '
    'or a metric without a model: bleu, chrf, chrf++, ter, rouge1, rouge2, '
    'rouge3, rouge4, rougeL. A folder that is called like a metric is ./NAME'
    f'{default}',
  )
  group.add_argument(
    '--metric',
    metavar='METRIC',
    help=f'one of {", ".join(registry.available_metrics())}, or a variant; -m '
    'is '
    'then its model (default: what -m says)',
  )
  group.add_argument(
    '--option',
    action='append',
    default=[],
    metavar='NAME=VALUE',
    help='an option of the metric that has no flag: tokenize=zh of bleu, '
    'layer=9 of bertscore, output=fluency of comes; may be repeated',
  )


def add_model_options(
  parser: argparse.ArgumentParser, tokens: bool = True
) -> None:
  """Declares the options of metrics with a model.

  Args:
    parser: Of the verb.
    tokens: Whether the verb writes scores of single tokens.
  """
  group = parser.add_argument_group('metrics with a model')
  group.add_argument(
    '--several',
    dest='reference_rule',
    choices=('max', 'mean'),
    help='what several references give: reference_rule in Python (default: '
    'max)',
  )
  group.add_argument(
    '--max-length',
    type=positive,
    metavar='N',
    help='tokens a text (FrugalScore: a pair); the rest is cut, and counted '
    "(default: the model's, else 1024 of T5Score, 128 of FrugalScore, what an "
    'encoder has positions for)',
  )
  group.add_argument(
    '--batch-tokens',
    type=positive,
    metavar='N',
    help='tokens computed at once on a device: bounds memory, does not change '
    'scores',
  )
  group.add_argument(
    '--num-partitions',
    type=positive,
    metavar='N',
    help='devices of this process over which the weights are divided, for '
    'models that one cannot hold; the others hold copies (default: 1)',
  )
  group.add_argument(
    '--dtype',
    choices=DTYPES,
    help='number format of the computation (default: float32)',
  )
  group = parser.add_argument_group('T5Score')
  group.add_argument(
    '--direction',
    choices=DIRECTIONS,
    help='precision: reference to hypothesis; recall: hypothesis to reference; '
    'f: mean of both; source: as f, with the source; ref_src: mean of all four '
    "(default: the model's, else f)",
  )
  group.add_argument(
    '--source-based',
    action='store_true',
    default=None,
    help='use sources in place of references, with any direction',
  )
  group.add_argument(
    '--remove-chinese-spaces',
    action='store_true',
    default=None,
    help='remove spaces between Chinese characters of hypotheses',
  )
  if not tokens:
    parser.set_defaults(token_log_probs=None)
    return
  group.add_argument(
    '--tokens',
    dest='token_log_probs',
    action='store_true',
    default=None,
    help='write the log-probability of every target token as well (jsonl)',
  )


def metric_options(args: argparse.Namespace) -> dict[str, Any]:
  """The options of the metric that were given, by name.

  Raises:
    UsageError: What was given can't go together, or -m is an encoder and no
      metric is named.
  """
  metric = getattr(args, 'metric', None)
  texts = [text.partition('=') for text in args.option]
  own = any(name == _MODEL for name, *_ in texts)
  _choose(args.model, metric, own)
  given = {
    name: getattr(args, name)
    for name in _FLAGS
    if getattr(args, name) is not None
  }
  if args.source_based and args.direction == 'ref_src':
    raise UsageError('--direction ref_src is never --source-based')
  # `-m comes` names the metric, so that its model is an option like others.
  has_model = metric is not None or (
    args.model is not None and not registry.is_metric(args.model)
  )
  for text, (name, equals, value) in zip(args.option, texts, strict=True):
    if not (name and equals):
      raise UsageError(f'--option takes NAME=VALUE, not {text!r}')
    flag = _FLAGS.get(name, '-m' if name == _MODEL and has_model else None)
    if flag:
      raise UsageError(f'--option {name}: give {flag}')
    given[name] = literal(value)
  return given


def refuse(args: argparse.Namespace, why: str) -> None:
  """Raises UsageError where any option of a metric was given.

  Args:
    args: The parsed arguments.
    why: What follows the option in the message.
  """
  flags = {'model': '-m', 'metric': '--metric', 'option': '--option', **_FLAGS}
  _usage.refuse(args, flags, why, flags)


def literal(text: str) -> Any:
  """A number, True, False or None where it looks like one, else the text."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def load(
  model: str | None, options: Mapping[str, Any], metric: str | None = None
) -> base.Metric:
  """Loads the metric that -m and --metric mean.

  Args:
    model: What -m says.
    options: Options of the metric, as `metric_options` gives them; 'spread'
      for many processes.
    metric: What --metric says.

  Raises:
    OSError: There is no such model.
    ValueError: The model is damaged.
    UsageError: There is no such metric, it has no such option, or an option
      has a value that it can't have.
  """
  choice, given = _given(model, options, metric)
  with _explained(choice, metric):
    return registry.load_metric(choice.metric, **given)


@contextlib.contextmanager
def _explained(choice: registry.Choice, metric: str | None) -> Iterator[None]:
  """Errors of loading as a command line has them."""
  try:
    yield
  except (TypeError, registry.ChoiceError, OptionError) as error:
    raise UsageError(str(error)) from error
  except FileNotFoundError as error:
    if metric is not None or Path(str(choice.model)).exists():
      raise
    others = [m for m in registry.available_metrics() if m != 't5score']
    raise FileNotFoundError(
      f'{error}{"" if str(error).endswith("?") else "."} Other metrics: '
      + ', '.join(others)
    ) from error


def check(
  model: str | None, options: Mapping[str, Any], metric: str | None = None
) -> None:
  """Finds out before the work what `load` would say, as far as that is cheap.

  Of the options' kinds, and of a model that is not there.

  Raises:
    FileNotFoundError: There is no such model.
    UsageError: As for `load`.
  """
  choice, given = _given(model, options, metric)
  with _explained(choice, metric):
    registry.checked_options(choice.metric, given)
    if given.get(_MODEL) is not None:
      kinds.folder(given[_MODEL])


def _given(
  model: str | None, options: Mapping[str, Any], metric: str | None
) -> tuple[registry.Choice, dict[str, Any]]:
  """The choice, and all options with the model."""
  choice = _choose(model, metric, _MODEL in options)
  given = {**choice.options, **options}
  _check_flags(choice.metric, given)
  return choice, given


def model_folder(
  model: str | None, options: Mapping[str, Any], metric: str | None = None
) -> Path | None:
  """The folder of the model of a metric; None where it has none.

  Raises:
    FileNotFoundError: There is no such model.
    UsageError: As for `load`.
  """
  choice = _choose(model, metric, _MODEL in options)
  defaults = registry.options_of(choice.metric)
  chosen = {**defaults, **choice.options, **options}.get(_MODEL)
  return None if chosen is None else kinds.folder(chosen)


def _choose(
  model: str | None, metric: str | None, has_model: bool
) -> registry.Choice:
  try:
    return registry.choose(model, metric, has_model)
  except registry.ChoiceError as error:
    raise UsageError(str(error)) from error


def _check_flags(metric: str, given: Mapping[str, Any]) -> None:
  """Raises UsageError for a flag that is not the metric's."""
  try:
    accepted = registry.options_of(metric)
  except registry.ChoiceError as error:
    raise UsageError(str(error)) from error
  flags = [flag for name, flag in _FLAGS.items() if name in accepted]
  for name in given:
    if name in accepted:
      continue
    if name == _SPREAD:
      raise UsageError(f'many processes are not for {metric}')
    if name == _MODEL:
      raise UsageError(f'-m is not for {metric}, which has no model')
    if name in _FLAGS:
      raise UsageError(
        f'{_FLAGS[name]} is not for {metric}'
        + (f', which has {", ".join(flags)}' if flags else '')
      )
