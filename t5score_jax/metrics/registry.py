"""Resolves names and model folders to metrics, and loads them.

A metric is a file in this folder or an entry point, found by its name. It
declares which models it reads (`metrics/_declarations.py`). JAX is imported
only when a metric that needs it is loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t5score_jax.checkpoints import kinds, peers
from t5score_jax.errors import OptionError, UnknownOptionError
from t5score_jax.metrics import _declarations as declarations
from t5score_jax.metrics import base
from t5score_jax.runtime import validation

DEFAULT_MODEL = 't5score-tiny'

_T5SCORE = 't5score'


class ChoiceError(OptionError):
  """The choice of a metric is ambiguous or impossible; the message says why."""

  exit_code = 2


@dataclasses.dataclass(frozen=True)
class Choice:
  """A metric and its model.

  Attributes:
    metric: The name of the metric, for `load_metric`.
    model: Its option `model`; None for the metric's own default, and for
      metrics without a model.
  """

  metric: str
  model: str | None = None

  @property
  def options(self) -> dict[str, str]:
    """The option that names the model, if one is chosen."""
    return {} if self.model is None else {'model': self.model}


def choose(
  model: str | os.PathLike[str] | None = None,
  metric: str | None = None,
  has_model: bool = False,
) -> Choice:
  """Resolves a model and the name of a metric.

  Args:
    model: The name of an embedded model, or a path; if `metric` is None, also
      the name of a metric. A `Path` is always a path. A folder selects the
      metric that declares its kind in `MODELS`, or else T5Score.
    metric: The metric's name; None derives it from the model.
    has_model: Whether an option names the model, so that a metric's name is
      unambiguous.

  Returns:
    The choice; T5Score with its default model if nothing is given.

  Raises:
    ChoiceError: The folder holds an encoder, which several metrics read; a
      metric's name is also the name of a model's folder; or no metric has
      this name.
  """
  name = None if model is None else _spelt(model)
  if metric is not None:
    _source(metric)
    return Choice(metric, name)
  if name is None:
    return Choice(_T5SCORE, DEFAULT_MODEL)
  if is_metric(name):
    if not has_model:
      _check_one_meaning(name)
    if _plain(name) != _T5SCORE:
      return Choice(name)
    return Choice(_T5SCORE, None if has_model else DEFAULT_MODEL)
  try:
    kind = kinds.of(kinds.folder(name))
  except FileNotFoundError:
    kind = ''  # T5Score reports it.
  meant = [m for m, d in _declared().items() if kind in d.MODELS]
  readers = [m for m, d in _declared().items() if kind in d.READS]
  if readers and not meant:
    raise ChoiceError(
      f'{name}: {kinds.WORDS[kind]}, which several metrics read; choose '
      f'--metric {" or --metric ".join(readers)}'
    )
  return Choice((meant or [_T5SCORE])[0], name)


def _declared() -> dict[str, declarations.Declared]:
  return {
    name: source.declared() for name, source in declarations.sources().items()
  }


def _spelt(model: str | os.PathLike[str]) -> str:
  """Returns the model as text; adds a folder to a `Path` without one."""
  text = os.fspath(model)
  if not text:
    raise ChoiceError("the model is '': give a name or a folder (. for here)")
  if isinstance(model, str) or os.path.dirname(text):
    return text
  return os.path.join(os.curdir, text)


def _check_one_meaning(name: str) -> None:
  """Raises ChoiceError if a metric's name could also mean a model."""
  if kinds.looks_like_a_model(name):
    raise ChoiceError(
      f'{name}: the name of a metric, and here of a folder with a model; give '
      f'./{name} for the folder, or --metric {name} for the metric'
    )
  close = difflib.get_close_matches(name, kinds.names(), 1, cutoff=0.8)
  if close:
    try:
      _find(name)
    except ChoiceError:
      raise ChoiceError(
        f'no model or metric {name!r}; did you mean {close[0]!r}? The embedded '
        f'models are {", ".join(kinds.embedded())}; the metrics '
        + ', '.join(available_metrics(variants=True))
      ) from None


def is_metric(name: str) -> bool:
  """Whether a name means a metric, not a model."""
  if '/' in name or name in kinds.names():
    return False
  stems = {_plain(file) for file in available_metrics()}
  if _plain(name) in stems:
    return True
  known = _plain(name).startswith(tuple(stems - {_T5SCORE}))
  return known and not os.path.isdir(name)


def load(
  model: str | os.PathLike[str] | None = None,
  metric: str | None = None,
  **options: Any,
) -> base.Metric:
  """Loads the metric that a name, a folder or both select; see `choose`.

  Raises:
    ValueError: There is no such metric, or an option has an invalid value.
    TypeError: The metric has no such option.
    FileNotFoundError: There is no such model.
  """
  choice = choose(model, metric, 'model' in options)
  return load_metric(choice.metric, **choice.options, **options)


def available_metrics(
  without_model: bool = False, variants: bool = False
) -> list[str]:
  """Lists the names of the metrics.

  Args:
    without_model: Whether to list only metrics that read no model.
    variants: Whether to list variants too, such as `chrf++`.
  """
  return [
    name + suffix
    for name, declared in _declared().items()
    if not (without_model and declared.kinds)
    for suffix in ('', *(declared.VARIANTS if variants else ()))
  ]


def readers(kind: str) -> list[str]:
  """The metrics that read models of a kind."""
  return [name for name, d in _declared().items() if kind in d.kinds]


def own_flags() -> dict[str, Mapping[str, Mapping[str, Any]]]:
  """The flags that metrics declare, `base.Metric.FLAGS`, by metric."""
  return {name: d.FLAGS for name, d in _declared().items() if d.FLAGS}


def load_metric(name: str, **options: Any) -> base.Metric:
  """Loads a metric by its name: the name of its file or entry point.

  A name may end in one of the metric's variants: `chrf++` is `chrf` with
  `word_order=2`, `rouge-2` is `rouge` with `variant='2'`. Case and hyphens
  are ignored.

  Args:
    name: `'bleu'`, `'chrf++'`, `'t5score'`, ...
    **options: Options of the metric's class; they override the variant's.

  Returns:
    The metric.

  Raises:
    OptionError: An option has an invalid value.
    ValueError: There is no such metric or variant, or the model is damaged.
    TypeError: The metric has no such option.
  """
  metric: base.Metric = _find(name)[0](**checked_options(name, options))
  return metric


def checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
  """Checks options and adds those of the variant; raises as `load_metric`."""
  kind, variant = _find(name)
  accepted = _parameters(kind)
  for option in options:
    if option not in accepted:
      close = difflib.get_close_matches(option, accepted, 1)
      meant = _option_of_flag(name, option) or next(iter(close), '')
      hint = f' Did you mean {meant!r}?' if meant in accepted else ''
      raise UnknownOptionError(
        f'metric {name!r} has no option {option!r}.{hint} It has '
        + (', '.join(accepted) if accepted else 'none')
      )
  checked: dict[str, Any] = {}
  for constructor in _constructors(kind):
    own = inspect.signature(constructor).parameters
    checked |= validation.check_arguments(
      constructor,
      {n: v for n, v in options.items() if n in own and n not in checked},
      OptionError,
      lambda option, value: f'option {option}={value} of {name}',
    )
  check_kind(name, checked.get('model'))
  return {**variant, **checked}


def _option_of_flag(metric: str, word: str) -> str | None:
  """The option whose flag has this name: 'several'."""
  flags = {**base.COMMON_FLAGS, **_source(metric)[0].declared().FLAGS}
  for option, flag in flags.items():
    if '--' + word.replace('_', '-') in flag['flags']:
      return option
  return None


def check_kind(metric: str, model: str | os.PathLike[str] | None) -> None:
  """Raises OptionError for a model of a kind that only other metrics read.

  A metric without declarations reads any model, and every metric may read
  folders of unknown kind (T5X's, Hugging Face's T5).
  """
  reads = _source(metric)[0].declared().kinds
  if not model or not reads:
    return
  try:
    kind = kinds.of(kinds.folder(model))
  except FileNotFoundError:
    return  # The metric reports it.
  if kind and kind not in reads:
    raise OptionError(
      f'{os.fspath(model)}: {kinds.WORDS[kind]}, which {metric} does not read; '
      f'{" and ".join(readers(kind))} can (--metric)'
    )


def options_of(name: str) -> dict[str, Any]:
  """Returns a metric's options and their defaults; imports the metric.

  Raises:
    ValueError: There is no such metric or variant.
  """
  kind, variant = _find(name)
  return {**_parameters(kind), **variant}


@functools.cache
def _parameters(kind: type) -> dict[str, Any]:
  """Returns a constructor's parameters and their defaults."""
  named = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
  )
  parameters: dict[str, Any] = {}
  for constructor in _constructors(kind):
    # The first is `self`.
    for parameter in list(inspect.signature(constructor).parameters.values())[
      1:
    ]:
      if parameter.kind in named:
        parameters.setdefault(parameter.name, parameter.default)
  return parameters


def _constructors(kind: type) -> Iterator[Callable[..., Any]]:
  """A class's constructor and those to which it passes `**options`."""
  for cls in kind.__mro__:
    if constructor := vars(cls).get('__init__'):
      yield constructor
      kinds = {
        p.kind for p in inspect.signature(constructor).parameters.values()
      }
      if inspect.Parameter.VAR_KEYWORD not in kinds:
        return


def _find(name: str) -> tuple[Any, Mapping[str, Any]]:
  """Returns a metric's class and the options of its variant."""
  source, stem = _source(name)
  try:
    kind = source.load()
  except (ImportError, AttributeError) as error:
    if source.module.startswith('t5score_jax.'):
      raise
    raise ChoiceError(
      f'metric {source.name!r}: its entry point {source.module}:'
      f'{source.attribute} cannot be imported: {error}'
    ) from error
  variant = _plain(name)[len(stem) :]
  if variant and variant not in kind.VARIANTS:
    raise ChoiceError(_unknown(name))
  return kind, kind.VARIANTS[variant] if variant else {}


def _source(name: str) -> tuple[declarations.Source, str]:
  """The metric that a name starts with, and that start in plain form."""
  stems = {_plain(n): source for n, source in declarations.sources().items()}
  fitting = [stem for stem in stems if _plain(name).startswith(stem)]
  if not fitting:
    raise ChoiceError(_unknown(name))
  stem = max(fitting, key=len)
  return stems[stem], stem


def _unknown(name: str) -> str:
  plain = {_plain(one): one for one in available_metrics(variants=True)}
  close = difflib.get_close_matches(_plain(name), plain, 1)
  advice = peers.advice(name)
  # `bert` is the beginning of a metric's name before it is a peer's.
  if advice and not (close and close[0].startswith(_plain(name))):
    return f'no metric {name!r}: {advice}'
  return (
    f'no metric {name!r};'
    + (f' did you mean {plain[close[0]]!r}?' if close else '')
    + f' There are: {", ".join(plain.values())}'
  )


def _plain(name: str) -> str:
  return name.lower().replace('-', '').replace('_', '')
