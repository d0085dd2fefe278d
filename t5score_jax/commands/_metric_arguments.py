"""Flags that choose a metric, its options, and loading it.

Metrics declare their flags themselves; `metrics/registry.py` resolves names and
folders. Nothing here imports JAX before a metric is loaded.

Not a verb itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import kinds
from t5score_jax.commands import _usage
from t5score_jax.data import numbers, tables
from t5score_jax.errors import UsageError
from t5score_jax.metrics import base, registry

DTYPES = base.COMMON_FLAGS['dtype']['choices']
_MODEL, _SPREAD = 'model', 'spread'
_TYPES = {'positive': _usage.positive, 'int': int, 'float': float, 'str': str}


@dataclasses.dataclass(frozen=True)
class Chosen:
  """A metric of the command line, not loaded yet.

  Attributes:
    label: Its name in tables, unique among those chosen.
    model: As for `load`.
    metric: As for `load`.
    options: As for `load`.
  """

  label: str
  model: str | None
  metric: str | None
  options: dict[str, Any]

  @property
  def spreads(self) -> bool:
    """Whether several processes can share the work of this metric."""
    metric = registry.choose(self.model, self.metric, _MODEL in self.options)
    return _SPREAD in registry.options_of(metric.metric)

  def check(self) -> None:
    """Checks without loading; see `check`."""
    check(self.model, self.options, self.metric)

  def load(self) -> base.Metric:
    """Loads the metric; see `load`."""
    return load(self.model, self.options, self.metric)


def add_choice(
  group: Any,
  required: bool = False,
  several: bool = False,
  named: bool = True,
) -> None:
  """Declares -m, --metric and --option.

  Args:
    group: A parser, or an argument group of a parser.
    required: Whether -m has to be given.
    several: Whether -m may be repeated; `chosen` then reads the arguments.
    named: Whether there is --metric; METRIC=PATH means the same.
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
    'training, whose files say which metric reads it; '
    f'an encoder with --metric {" or ".join(encoders)}; '
    f'or a metric without a model: {", ".join(lexical)}. A folder with '
    f'the name of a metric is ./NAME{default}'
    + ('; repeatable, METRIC=PATH names the metric' if several else ''),
    action='append' if several else _usage.Once,
  )
  if named:
    group.add_argument(
      '--metric',
      metavar='METRIC',
      help=f'one of {", ".join(registry.available_metrics())}, or a variant '
      '(chrf++, rouge2); -m is then its model (default: follows from -m)',
    )
  else:
    group.set_defaults(metric=None)
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
    OptionError: -m is an encoder and no metric is named.
    UsageError: Arguments contradict each other.
  """
  metric = getattr(args, 'metric', None)
  texts = [text.partition('=') for text in args.option]
  own = any(name == _MODEL for name, *_ in texts)
  registry.choose(args.model, metric, own)
  flags = _flags()
  given = {
    name: value
    for name in flags
    if (value := getattr(args, name, None)) is not None
  }
  # `-m comes` names the metric; its model is then an ordinary option.
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
  """Raises UsageError if any option of a metric was given.

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
  """A number, True, False or None if it looks like one, else the text."""
  if text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  if text == 'None':  # 'none' is a word of some options (idf).
    return None
  with contextlib.suppress(ValueError):
    return numbers.integer(text)
  number = numbers.parse(text)
  return text if number is None else number


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
    OptionError: There is no such metric, it has no such option, or an option
      has an invalid value.
    UsageError: The metric has no such flag.
  """
  choice, given = _given(model, options, metric)
  with _other_metrics(choice, metric):
    return registry.load_metric(choice.metric, **given)


def named(
  text: str, options: Mapping[str, Any]
) -> tuple[str, str, dict[str, Any]]:
  """Resolves one -m, with options given by name instead of flags.

  Args:
    text: A value of -m.
    options: Options of the metric.

  Returns:
    Its name in tables, the metric, and all options including the model, checked
    as by `check`.
  """
  metric, model = _separate(text)
  check(model, options, metric)
  choice = registry.choose(model, metric, _MODEL in options)
  (label,) = _labels([(metric, model)], [text])
  label = label.replace(os.sep, '-')
  return label, choice.metric, {**choice.options, **options}


def chosen(args: argparse.Namespace) -> list[Chosen]:
  """The metrics that a repeatable -m, with --metric, means.

  If there are several metrics, each gets the options that it has.

  Raises:
    OptionError: As for `metric_options`.
    UsageError: Arguments contradict each other, or no metric has an option.
  """
  texts: Sequence[str | None] = args.model or [None]
  separate = [_separate(text) for text in texts]
  if args.metric is not None and (len(texts) > 1 or separate[0][0]):
    raise UsageError('--metric is for one -m; otherwise give -m METRIC=PATH')
  labels = _labels([(m or args.metric, model) for m, model in separate], texts)
  result = []
  for label, (metric, model) in zip(labels, separate, strict=True):
    metric = metric or args.metric
    own = argparse.Namespace(**{**vars(args), 'model': model, 'metric': metric})
    result.append(Chosen(label, model, metric, metric_options(own)))
  return _share_options(result) if len(result) > 1 else result


def _separate(text: str | None) -> tuple[str | None, str | None]:
  """METRIC=PATH as metric and model; any other text is a model."""
  name, equals, path = (text or '').partition('=')
  if name and path and '/' not in name and registry.is_metric(name):
    return name, path
  return None, text


def _labels(
  choices: Sequence[tuple[str | None, str | None]],
  texts: Sequence[str | None],
) -> list[str]:
  """Short names of metrics, or the arguments if these are not unique."""
  short = [
    metric or _usage.as_text(_short(os.path.normpath(model or 't5score')))
    for metric, model in choices
  ]
  labels = [
    name if short.count(name) == 1 else _usage.as_text(text or name)
    for name, text in zip(short, texts, strict=True)
  ]
  for label in labels:
    if labels.count(label) > 1:
      raise UsageError(f'-m {label}: is given twice')
  return labels


def _short(path: str) -> str:
  """The last part of a path; the last two if the last is a generic name."""
  folder, name = os.path.split(path)
  # As `t5score fit` writes it.
  if name == 'model':
    name = os.path.join(os.path.basename(folder), name)
  return name


def _share_options(several: Sequence[Chosen]) -> list[Chosen]:
  """Leaves each metric the options that it has."""
  shared = []
  used = set()
  for one in several:
    if _MODEL in one.options:
      raise UsageError('--option model: give -m METRIC=PATH')
    metric = registry.choose(one.model, one.metric).metric
    own = registry.options_of(metric)
    kept = {name: value for name, value in one.options.items() if name in own}
    used |= set(kept)
    shared.append(dataclasses.replace(one, options=kept))
  for name in several[0].options:
    if name not in used:
      flag = _flags().get(name, f'--option {name}')
      raise UsageError(f'{flag} is for none of the metrics')
  return shared


@contextlib.contextmanager
def _other_metrics(
  choice: registry.Choice, metric: str | None
) -> Iterator[None]:
  """Adds the names of the metrics to the error of a missing model."""
  try:
    yield
  except FileNotFoundError as error:
    if metric is not None or Path(str(choice.model)).exists():
      raise
    metrics = registry.available_metrics(variants=True)
    meant = str(error).endswith('?')
    raise FileNotFoundError(
      f'{error}{"" if meant else "."} Metrics:'
      + tables.suggest('' if meant else str(choice.model), metrics)
    ) from error


def check(
  model: str | None, options: Mapping[str, Any], metric: str | None = None
) -> None:
  """Checks option types and whether the model exists, without loading it.

  Raises:
    FileNotFoundError: There is no such model.
    OptionError, UsageError: As for `load`.
  """
  choice, given = _given(model, options, metric)
  with _other_metrics(choice, metric):
    registry.checked_options(choice.metric, given)
    if given.get(_MODEL) is not None:
      kinds.folder(given[_MODEL])


def _given(
  model: str | None, options: Mapping[str, Any], metric: str | None
) -> tuple[registry.Choice, dict[str, Any]]:
  """The choice, and all options with the model."""
  choice = registry.choose(model, metric, _MODEL in options)
  given = {**choice.options, **options}
  _check_flags(choice.metric, given)
  return choice, given


def model_folder(
  model: str | None, options: Mapping[str, Any], metric: str | None = None
) -> Path | None:
  """The folder of the model of a metric; None if it has none.

  Raises:
    FileNotFoundError: There is no such model.
    OptionError: As for `load`.
  """
  choice = registry.choose(model, metric, _MODEL in options)
  defaults = registry.options_of(choice.metric)
  chosen = {**defaults, **choice.options, **options}.get(_MODEL)
  return None if chosen is None else kinds.folder(chosen)


def _check_flags(metric: str, given: Mapping[str, Any]) -> None:
  """Raises UsageError for a flag that the metric does not have."""
  accepted = registry.options_of(metric)
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
