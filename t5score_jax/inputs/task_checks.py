"""Checks that a SeqIO task, its feature lengths and a converter fit together.

SeqIO reports a misfit from deep inside the pipeline, or repeats a task without
examples forever; these checks run before the first batch. Imports TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf

from t5score_jax.errors import InputError, T5ScoreError, one_line
from t5score_jax.inputs import feature_converters


class NoExamplesError(InputError):
  """There are no examples in a task or in any task of a mixture."""


#: Feature converters by the names that gin files use.
CONVERTERS: Mapping[str, Any] = {
  'encoder_decoder': feature_converters.EncDecFeatureConverter,
  'pair': feature_converters.PairFeatureConverter,
  'group': feature_converters.GroupFeatureConverter,
}
_LONGEST = 300


def find_converter(converter: Any) -> Any:
  """Returns a feature converter, which may be given by its name.

  Raises:
    InputError: It is not a feature converter, nor the name of one.
  """
  if isinstance(converter, str) and converter in CONVERTERS:
    return CONVERTERS[converter]()
  features = getattr(converter, 'TASK_FEATURES', None)
  if (
    not isinstance(features, Mapping)
    or isinstance(converter, type)
    or not callable(converter)
  ):
    raise InputError(
      f'feature_converter = {converter!r}: use one of {sorted(CONVERTERS)}, or '
      'a SeqIO feature converter, in gin with brackets: @NAME()'
    )
  return converter


def check_features(source: seqio.Task | seqio.Mixture, converter: Any) -> None:
  """Checks that a task has the features that a converter reads.

  Raises:
    InputError: A feature is missing or has another rank.
  """
  wanted = _features_of(converter)
  present = source.output_features
  name = type(converter).__name__
  for feature, spec in wanted.items():
    if feature not in present:
      raise InputError(
        f'{source.name} has no feature {feature!r}, which {name} reads; it has '
        f'{", ".join(sorted(present))}{_advice(present)}'
      )
    if present[feature].rank != spec.rank:
      raise InputError(
        f'{source.name}: the feature {feature!r} has rank '
        f'{present[feature].rank}, {name} reads rank {spec.rank}'
        f'{_advice(present)}'
      )


def _advice(present: Mapping[str, seqio.Feature]) -> str:
  """Names the converter of a task's features, if there is one."""
  ranks = {name: feature.rank for name, feature in present.items()}
  for name, converter in CONVERTERS.items():
    wanted = converter.TASK_FEATURES
    if ranks == {feature: spec.rank for feature, spec in wanted.items()}:
      return f"; the task needs the feature converter '{name}'"
  return ''


def check_lengths(lengths: Mapping[str, Any], converter: Any) -> None:
  """Checks that there is a length for each feature that a converter reads.

  Raises:
    InputError: A length is missing, superfluous or not a positive integer.
  """
  wanted = _features_of(converter)
  optional = {'ratings'} if hasattr(converter, 'RATINGS') else set()
  name = type(converter).__name__
  given = f'TASK_FEATURE_LENGTHS = {dict(lengths)}'
  for feature in wanted:
    if feature not in lengths and feature not in optional:
      raise InputError(f'{given}: lacks the length of {feature!r} ({name})')
  for feature, length in lengths.items():
    if feature not in wanted:
      raise InputError(
        f'{given}: {name} reads no feature {feature!r}, only '
        f'{", ".join(wanted)}; remove it'
      )
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
      raise InputError(f'{given}: {feature} must be an integer of 1 or more')


def _features_of(converter: Any) -> dict[str, Any]:
  # SeqIO has no public name for the features that it only copies.
  copied = getattr(converter, '_passthrough_features', None)
  return {**converter.TASK_FEATURES, **(copied or {})}


def check_examples(
  source: seqio.Task | seqio.Mixture,
  split: str,
  lengths: Mapping[str, int],
  use_cached: bool,
) -> None:
  """Checks that a split has an example after preprocessing.

  Raises:
    NoExamplesError: It has none.
    InputError: A file is invalid, or preprocessing fails.
  """
  try:
    dataset = source.get_dataset(
      sequence_length=dict(lengths),
      split=split,
      use_cached=use_cached,
      shuffle=False,
      num_epochs=1,
    )
    empty = next(iter(dataset), None) is None
  except NoExamplesError:
    empty = True
  except T5ScoreError:
    raise
  except (KeyError, TypeError, ValueError, tf.errors.OpError) as error:
    problem = one_line(str(error))[:_LONGEST]
    raise InputError(
      f'{source.name}, split {split!r}: {type(error).__name__}: {problem}'
    ) from error
  if empty:
    raise NoExamplesError(
      f'{source.name}: the split {split!r} has no examples{_why(source, split)}'
    )


def _why(source: seqio.Task | seqio.Mixture, split: str) -> str:
  """Explains why a split has no examples after preprocessing."""
  features = source.output_features
  if 'ratings' in features:
    return (
      ': none of its judgments form a pair, which takes two hypotheses with '
      'the same reference (or source), segment and document, and different '
      'ratings. For records with one hypothesis per segment fit a regressor '
      '(t5score fit), or train on their texts without ratings (runs/train.gin)'
    )
  read = sum(
    task.source.num_input_examples(split) or 0
    for task in seqio.get_subtasks(source)
  )
  return f', because preprocessing removes all {read} of them' if read else ''
