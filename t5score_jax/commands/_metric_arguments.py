"""The metric of a command line: its flags, its options, and loading it.

Shared by every verb that scores. Metrics declare their flags themselves;
`metrics/registry.py` resolves names and folders. Nothing here imports JAX
before a metric is loaded.

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
from t5score_jax.errors import OptionError, UsageError
from t5score_jax.metrics import base, registry

DTYPES = base.COMMON_FLAGS['dtype']['choices']
_MODEL, _SPREAD = 'model', 'spread'
_TYPES = {'positive': _usage.positive, 'int': int, 'float': float, 'str': str}

UsageError = UsageError
positive = _usage.positive


def add_choice(group: Any, required: bool = False) -> None:
  """Declares -m, --metric and --option.

  Args:
    group: A parser, or a group of one.
    required: Whether -m has to be given.
  """
  default = '' if required else f' (default: {registry.DEFAULT_MODEL})'
  lexical = registry.available_metrics(without_model=True)
  encoders = registry.readers(kinds.ENCODER)
  group.add_argument(
    '-m',
    '--model',
    metavar='NAME_OR_PATH',
    required=required,
    help='an embedded model, a model folder, a MODEL_DIR or checkpoint of '
    'training, whose files tell which metric it is a model of; '
    f'an encoder with --metric {" or ".join(encoders)}; '
    f'or a metric without a model: {", ".join(lexical)}. A folder that is '
    f'called like a metric is ./NAME{default}',
  )
  group.add_argument(
    '--metric',
    metavar='METRIC',
    help=f'one of {", ".join(registry.available_metrics())}, or a variant '
    '(chrf++, rouge2); -m is then its model (default: follows from -m)',
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
    parser: The verb's parser.
    tokens: Whether the verb writes scores of single tokens.
  """
  groups = {'metrics with a model': base.COMMON_FLAGS, **registry.own_flags()}
  for title, flags in groups.items():
    group = parser.add_argument_group(title)
    for option, given in flags.items():
      if option == 'token_log_probs' and not tokens:
        parser.set_defaults(token_log_probs=None)
        continue
      given = {'default': None, **given, 'dest': option}
      if 'type' in given:
        given['type'] = _TYPES[given['type']]
        given.setdefault('metavar', 'N')
      group.add_argument(*given.pop('flags'), **given)


def _flags() -> dict[str, str]:
  """The flag of each option that has one."""
  declared = [base.COMMON_FLAGS, *registry.own_flags().values()]
  return {
    option: flag['flags'][0]
    for flags in declared
    for option, flag in flags.items()
  }


def metric_options(args: argparse.Namespace) -> dict[str, Any]:
  """The options of the metric that were given, by name.

  Raises:
    UsageError: Arguments contradict each other, or -m is an encoder and no
      metric is named.
  """
  metric = getattr(args, 'metric', None)
  texts = [text.partition('=') for text in args.option]
  own = any(name == _MODEL for name, *_ in texts)
  _choose(args.model, metric, own)
  flags = _flags()
  given = {
    name: value
    for name in flags
    if (value := getattr(args, name, None)) is not None
  }
  # `-m comes` names the metric, so that its model is an option like others.
  has_model = metric is not None or (
    args.model is not None and not registry.is_metric(args.model)
  )
  for text, (name, equals, value) in zip(args.option, texts, strict=True):
    if not (name and equals):
      raise UsageError(f'--option takes NAME=VALUE, not {text!r}')
    flag = flags.get(name, '-m' if name == _MODEL and has_model else None)
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
  flags = {
    'model': '-m',
    'metric': '--metric',
    'option': '--option',
    **_flags(),
  }
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
    model: The value of -m.
    options: Options of the metric, as `metric_options` returns them; 'spread'
      for many processes.
    metric: The value of --metric.

  Raises:
    OSError: There is no such model.
    ValueError: The model is damaged.
    UsageError: There is no such metric, it has no such option, or an option
      has an invalid value.
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
  """Checks before the work, without loading, what is cheap to check.

  That is the options' types, and whether the model exists.

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
  every = _flags()
  flags = [flag for name, flag in every.items() if name in accepted]
  for name in given:
    if name in accepted:
      continue
    if name == _SPREAD:
      raise UsageError(f'many processes are not for {metric}')
    if name == _MODEL:
      raise UsageError(f'-m is not for {metric}, which has no model')
    if name in every:
      raise UsageError(
        f'{every[name]} is not for {metric}'
        + (f', which has {", ".join(flags)}' if flags else '')
      )
