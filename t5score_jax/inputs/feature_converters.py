"""SeqIO feature converters: from a task's examples to a model's batches.

There are three kinds of example, with one converter each. All tasks name their
features `inputs` and `targets`, so that T5X's `TASK_FEATURE_LENGTHS` is
`{'inputs': 64, 'targets': 64}` for all of them:

    kind       inputs           targets             ratings
    enc-dec    [L] text         [L] text
    pair       [2, L] texts     [2, L] texts        [2] better, worse
    group      [L] shared text  [n, L] hypotheses   [n]

The lengths may also contain `ratings`: the maximum group size, by default
`GROUP_SIZE` (and always 2 for pairs). The tasks' own steps before the converter
are in `inputs/preprocessors.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf

from t5score_jax.errors import OptionError

#: Default maximum group size.
GROUP_SIZE = 16

_Spec = seqio.FeatureConverter.FeatureSpec
_TOKENS = _Spec(dtype=tf.int32)
_TOKEN_ROWS = _Spec(dtype=tf.int32, rank=2, sequence_dim=1)
_NUMBERS = _Spec(dtype=tf.float32)

Example = Mapping[str, Any]
Lengths = Mapping[str, int]


class EncDecFeatureConverter(seqio.EncDecFeatureConverter):
  """SeqIO's encoder-decoder converter, by default without packing.

  T5Score is a mean over the target tokens of one example.
  """

  def __init__(self, pack: bool = False, **kwargs: Any):
    """See `seqio.EncDecFeatureConverter`."""
    super().__init__(pack=pack, **kwargs)


class _JudgmentConverter(seqio.FeatureConverter):
  """Base class of the pair and the group converter."""

  PACKING_FEATURE_DTYPES = None
  #: Default length of `ratings`.
  RATINGS = GROUP_SIZE

  def __init__(self, pack: bool = False, **kwargs: Any):
    """See `seqio.FeatureConverter`; packing is an error."""
    if pack:
      raise OptionError(
        f'{type(self).__name__} cannot pack: set pack = False (in T5X,'
        ' train/utils.DatasetConfig.pack = False)'
      )
    super().__init__(pack=False, **kwargs)

  def __call__(
    self, ds: tf.data.Dataset, task_feature_lengths: Lengths
  ) -> tf.data.Dataset:
    """Converts a dataset; see `seqio.FeatureConverter`."""
    return super().__call__(
      ds, {'ratings': self.RATINGS, **task_feature_lengths}
    )

  def _convert_features(
    self, ds: tf.data.Dataset, task_feature_lengths: Lengths
  ) -> tf.data.Dataset:
    convert = functools.partial(self._convert, lengths=task_feature_lengths)
    return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)

  def _convert(
    self, example: Example, lengths: Lengths
  ) -> dict[str, tf.Tensor]:
    raise NotImplementedError


class PairFeatureConverter(_JudgmentConverter):
  """Converts pairs of equation 3, one example per direction.

  In: `inputs`, `targets` int32 [2, at most L], padded with 0, with the better
  hypothesis in row 0; `ratings` float32 [2]. Out, for lengths Li and Lt:
  `encoder_input_tokens` [2, Li], `decoder_input_tokens`,
  `decoder_target_tokens`, `decoder_loss_weights` [2, Lt], `ratings` [2].
  """

  TASK_FEATURES = {
    'inputs': _TOKEN_ROWS,
    'targets': _TOKEN_ROWS,
    'ratings': _NUMBERS,
  }
  MODEL_FEATURES = {
    'encoder_input_tokens': _TOKEN_ROWS,
    'decoder_input_tokens': _TOKEN_ROWS,
    'decoder_target_tokens': _TOKEN_ROWS,
    'decoder_loss_weights': _TOKEN_ROWS,
    'ratings': _NUMBERS,
  }
  RATINGS = 2

  def _convert(
    self, example: Example, lengths: Lengths
  ) -> dict[str, tf.Tensor]:
    targets = _pad(example['targets'], [2, lengths['targets']])
    return {
      'encoder_input_tokens': _pad(example['inputs'], [2, lengths['inputs']]),
      # Shifted right; every target begins with 0.
      'decoder_input_tokens': tf.pad(targets, [[0, 0], [1, 0]])[:, :-1],
      'decoder_target_tokens': targets,
      'decoder_loss_weights': tf.cast(targets != 0, tf.int32),
      'ratings': tf.ensure_shape(example['ratings'], [2]),
    }

  def get_model_feature_lengths(
    self, task_feature_lengths: Lengths
  ) -> dict[str, int]:
    """Returns the length of the last axis by model feature."""
    return {
      'encoder_input_tokens': task_feature_lengths['inputs'],
      'decoder_input_tokens': task_feature_lengths['targets'],
      'decoder_target_tokens': task_feature_lengths['targets'],
      'decoder_loss_weights': task_feature_lengths['targets'],
      'ratings': 2,
    }


class GroupFeatureConverter(_JudgmentConverter):
  """Converts groups: a shared text with all its hypotheses.

  In: `inputs` int32 [at most Ls], `targets` int32 [n, at most Lh], ragged or
  padded with 0, `ratings` float32 [n], n at most G. Out, for lengths inputs =
  Ls, targets = Lh, ratings = G: `shared_tokens` [Ls], `hypothesis_tokens`
  [G, Lh], `ratings` [G], `group_mask` float32 [G], 1 for hypotheses, 0 for
  padding. The model computes both directions.
  """

  TASK_FEATURES = {
    'inputs': _TOKENS,
    'targets': _TOKEN_ROWS,
    'ratings': _NUMBERS,
  }
  MODEL_FEATURES = {
    'shared_tokens': _TOKENS,
    'hypothesis_tokens': _TOKEN_ROWS,
    'ratings': _NUMBERS,
    'group_mask': _NUMBERS,
  }

  def _convert(
    self, example: Example, lengths: Lengths
  ) -> dict[str, tf.Tensor]:
    size = lengths['ratings']
    ratings = example['ratings']
    return {
      'shared_tokens': _pad(example['inputs'], [lengths['inputs']]),
      'hypothesis_tokens': _pad(example['targets'], [size, lengths['targets']]),
      'ratings': _pad(ratings, [size]),
      'group_mask': _pad(tf.ones_like(ratings), [size]),
    }

  def get_model_feature_lengths(
    self, task_feature_lengths: Lengths
  ) -> dict[str, int]:
    """Returns the length of the last axis by model feature."""
    size = task_feature_lengths.get('ratings', self.RATINGS)
    return {
      'shared_tokens': task_feature_lengths['inputs'],
      'hypothesis_tokens': task_feature_lengths['targets'],
      'ratings': size,
      'group_mask': size,
    }


def _pad(tensor: tf.Tensor | tf.RaggedTensor, shape: list[int]) -> tf.Tensor:
  """Pads with zeros to a static shape."""
  if isinstance(tensor, tf.RaggedTensor):
    tensor = tensor.to_tensor()
  padding = tf.constant(shape) - tf.shape(tensor)
  tensor = tf.pad(tensor, tf.stack([tf.zeros_like(padding), padding], axis=1))
  return tf.ensure_shape(tensor, shape)
