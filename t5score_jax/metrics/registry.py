"""Which metric a name or a model's folder means, and how it is loaded.

A metric is a file of this folder, found by its name; a model's folder says by
itself what it is. Nothing here imports JAX before a metric is loaded that
needs it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import pkgutil
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from t5score_jax import metrics
from t5score_jax.checkpoints import kinds
from t5score_jax.errors import OptionError, T5ScoreError
from t5score_jax.runtime import validation

if typing.TYPE_CHECKING:
  from t5score_jax.metrics.base import Metric

DEFAULT_MODEL = 't5score-tiny'

_T5SCORE = 't5score'
_METRIC_OF_KIND = {
  kinds.REGRESSOR: 'comes',
  kinds.COMET: 'comes',
  kinds.CROSS_ENCODER: 'frugalscore',
}
# Kinds of models by metric; a metric that is not here reads what it likes, and
# so does each of a folder of no known kind (T5X's, Hugging Face's T5).
_READS = {
  't5score': (kinds.BUNDLE,),
  'comes': (kinds.REGRESSOR, kinds.COMET),
  'frugalscore': (kinds.CROSS_ENCODER,),
  'bertscore': (kinds.ENCODER, kinds.CROSS_ENCODER),
  'moverscore': (kinds.ENCODER, kinds.CROSS_ENCODER),
}
# Flags of the command line that are called otherwise than their options.
_FLAGS = {'several': 'reference_rule', 'tokens': 'token_log_probs'}
#: Metrics that stand on an encoder without a head of its own.
_ON_ENCODERS = ('bertscore', 'moverscore')


class ChoiceError(T5ScoreError, ValueError):
  """It is not clear which metric is meant; the message says why."""


@dataclasses.dataclass(frozen=True)
class Choice:
  """A metric and its model.

  Attributes:
    metric: for ``load_metric``.
    model: its option ``model``; None for the metric's own default, and for
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
  """Finds out which metric is meant.

  Args:
    model: the name of an embedded model, or a path; where ``metric`` is None,
      the name of a metric as well. A ``Path`` is always a path. A folder that
      holds an estimator or a COMET checkpoint means COMES, a miniature
      FrugalScore, any other T5Score.
    metric: the metric's name; None finds it out.
    has_model: whether an option names the model, so that a metric's name can
      mean nothing else.

  Returns:
    The choice; T5Score with its default model where nothing is said.

  Raises:
    ChoiceError: an encoder's folder, which does not say what to do with it; a
      metric's name that is the name of a model's folder as well; or no metric
      has such a name.
  """
  name = None if model is None else _spelt(model)
  if metric is not None:
    _stem(metric)
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
    kind = ''  # T5Score says what there is.
  if kind == kinds.ENCODER:
    raise ChoiceError(
      f'{name}: an encoder, on which several metrics can stand; choose '
      f'--metric {" or --metric ".join(_ON_ENCODERS)}'
    )
  return Choice(_METRIC_OF_KIND.get(kind, _T5SCORE), name)


def _spelt(model: str | os.PathLike[str]) -> str:
  """What a text would say: a path without a folder is no name."""
  text = os.fspath(model)
  if isinstance(model, str) or os.path.dirname(text):
    return text
  return os.path.join(os.curdir, text)


def _check_one_meaning(name: str) -> None:
  """Raises ChoiceError for a metric's name that may mean a model."""
  if kinds.looks_like_a_model(name):
    raise ChoiceError(
      f'{name}: the name of a metric, and here of a folder with a model; give '
      f'./{name} for the folder, or --metric {name} for the metric'
    )
  close = difflib.get_close_matches(name, kinds.embedded(), 1, cutoff=0.8)
  if close:
    try:
      _find(name)
    except ChoiceError:
      raise ChoiceError(
        f'no model or metric {name!r}; did you mean {close[0]!r}? The embedded '
        f'models are {", ".join(kinds.embedded())}; the metrics '
        + ', '.join(available_metrics())
      ) from None


def is_metric(name: str) -> bool:
  """Whether a name means a metric, not a model of T5Score's or another's."""
  if '/' in name or name in kinds.embedded():
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
) -> Metric:
  """Loads the metric that a name, a folder or both mean, see ``choose``.

  Raises:
    ValueError: There is no such metric, or an option can't have its value.
    TypeError: The metric has no such option.
    FileNotFoundError: There is no such model.
  """
  choice = choose(model, metric, 'model' in options)
  return load_metric(choice.metric, **choice.options, **options)


def available_metrics() -> list[str]:
  """The names of the metrics, without their variants: this folder's files."""
  return sorted(
    module.name
    for module in pkgutil.iter_modules(metrics.__path__)
    if module.name != 'base' and not module.name.startswith('_')
  )


def load_metric(name: str, **options: Any) -> Metric:
  """Loads a metric by its name, which is that of its file.

  A name may end in one of the metric's variants: `chrf++` is `chrf` with
  `word_order=2`, `rouge-2` is `rouge` with `variant='2'`. Case and hyphens
  don't matter.

  Args:
    name: `'bleu'`, `'chrf++'`, `'t5score'`, ...
    **options: Options of the metric's class; they go before the variant's.

  Returns:
    The metric.

  Raises:
    OptionError: An option has a value that it can't have.
    ValueError: There is no such metric or variant, or the model is damaged.
    TypeError: The metric has no such option.
  """
  made: Metric = _find(name)[0](**checked_options(name, options))
  return made


def checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
  """A metric's options with those of its variant; raises as `load_metric`."""
  kind, variant = _find(name)
  accepted = _parameters(kind)
  for option in options:
    if option not in accepted:
      close = difflib.get_close_matches(option, accepted, 1)
      meant = _FLAGS.get(option) or next(iter(close), '')
      hint = f' Did you mean {meant!r}?' if meant in accepted else ''
      raise TypeError(
        f'metric {name!r} has no option {option!r}.{hint} It has '
        + (', '.join(accepted) if accepted else 'none')
      )
  found = validation.check_arguments(
    kind,
    options,
    OptionError,
    lambda option, value: f'option {option}={value} of {name}',
  )
  check_kind(name, found.get('model'))
  return {**variant, **found}


def check_kind(metric: str, model: str | os.PathLike[str] | None) -> None:
  """Raises OptionError for a model of a kind that other metrics read."""
  reads = _READS.get(_stem(metric)[0])
  if not model or reads is None:
    return
  try:
    kind = kinds.of(kinds.folder(model))
  except FileNotFoundError:
    return  # The metric says what there is.
  if kind and kind not in reads:
    others = [name for name, those in _READS.items() if kind in those]
    raise OptionError(
      f'{os.fspath(model)}: {kinds.WORDS[kind]}, which {metric} does not read; '
      f'{" and ".join(others)} can (--metric)'
    )


def options_of(name: str) -> dict[str, Any]:
  """A metric's options and their defaults; imports it.

  Raises:
    ValueError: There is no such metric or variant.
  """
  kind, variant = _find(name)
  return {**_parameters(kind), **variant}


@functools.cache
def _parameters(kind: type) -> dict[str, Any]:
  return {
    parameter.name: parameter.default
    for parameter in inspect.signature(kind).parameters.values()
    if parameter.kind
    in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
  }


def _find(name: str) -> tuple[Any, Mapping[str, Any]]:
  """A metric's class, and the options that its variant stands for."""
  stem, known = _stem(name)
  kind = importlib.import_module(f't5score_jax.metrics.{known[stem]}').Metric
  variant = _plain(name)[len(stem) :]
  if variant and variant not in kind.VARIANTS:
    variants = [stem + suffix for suffix in kind.VARIANTS]
    close = difflib.get_close_matches(_plain(name), [*known, *variants], 1)
    raise ChoiceError(_unknown(name, close, [*known.values(), *variants]))
  return kind, kind.VARIANTS[variant] if variant else {}


def _stem(name: str) -> tuple[str, dict[str, str]]:
  """The metric that a name begins with; files by what all are called."""
  known = {_plain(file): file for file in available_metrics()}
  stems = [stem for stem in known if _plain(name).startswith(stem)]
  if not stems:
    close = difflib.get_close_matches(_plain(name), known, 1)
    raise ChoiceError(_unknown(name, close, known.values()))
  return max(stems, key=len), known


def _unknown(name: str, close: list[str], known: Iterable[str]) -> str:
  return (
    f'no metric {name!r};'
    + (f' did you mean {close[0]!r}?' if close else '')
    + f' There are: {", ".join(known)}'
  )


def _plain(name: str) -> str:
  return name.lower().replace('-', '').replace('_', '')
