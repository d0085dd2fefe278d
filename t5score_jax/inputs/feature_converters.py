"""SeqIO feature converters: from a task's examples to a model's batches.

Three kinds of example, one converter each; all tasks name their features
`inputs` and `targets`, so that T5X's `TASK_FEATURE_LENGTHS` stays
`{'inputs': 64, 'targets': 64}` whichever is trained:

    kind       inputs           targets             ratings
    enc-dec    [L] text         [L] text
    pair       [2, L] texts     [2, L] texts        [2] better, worse
    group      [L] shared text  [n, L] hypotheses   [n]

The lengths may also name `ratings`: the maximum group size, which is
`GROUP_SIZE` otherwise (and always 2 for pairs).

Before the converter come the task's own steps, also here: `tokenize_judgments`
(to be cached offline), then `pair_examples` or `group_examples`. They cut texts
so that `</s>` is always the last id. Not for reading corpora (`tasks/`) nor for
choosing judgments (`judgments`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

#: Hypotheses of a group example where the lengths do not say.
GROUP_SIZE = 16

#: Precision: shared text -> hypothesis. Recall: hypothesis -> shared text.
DIRECTIONS = ('precision', 'recall')

_Spec = seqio.FeatureConverter.FeatureSpec
_TOKENS = _Spec(dtype=tf.int32)
_TOKEN_ROWS = _Spec(dtype=tf.int32, rank=2, sequence_dim=1)
_NUMBERS = _Spec(dtype=tf.float32)

Example = Mapping[str, Any]
Lengths = Mapping[str, int]


class EncDecFeatureConverter(seqio.EncDecFeatureConverter):
  """SeqIO's encoder-decoder converter, without packing unless asked for.

  T5Score is a mean over the target of one example, so examples are not packed
  by default.
  """

  def __init__(self, pack: bool = False, **kwargs: Any):
    """See `seqio.EncDecFeatureConverter`."""
    super().__init__(pack=pack, **kwargs)


class _JudgmentConverter(seqio.FeatureConverter):
  """What the pair and the group converter have in common."""

  PACKING_FEATURE_DTYPES = None
  #: Length of `ratings` where the task's lengths leave it out.
  RATINGS = GROUP_SIZE

  def __init__(self, pack: bool = False, **kwargs: Any):
    """See `seqio.FeatureConverter`; packing is refused."""
    if pack:
      raise ValueError(
        f'{type(self).__name__} cannot pack: set pack = False (in T5X,'
        ' train/utils.DatasetConfig.pack = False)'
      )
    super().__init__(pack=False, **kwargs)

  def __call__(
    self, ds: tf.data.Dataset, task_feature_lengths: Lengths
  ) -> tf.data.Dataset:
    """Converts; lengths without `ratings` get the default."""
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
  """Pairs of equation 3, in one direction each; the task lists both.

  In: `inputs`, `targets` int32 [2, at most L], padded with 0, row 0 the better
  hypothesis; `ratings` float32 [2]. Out, for lengths Li and Lt:
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
      # Shifted right; 0 begins every target.
      'decoder_input_tokens': tf.pad(targets, [[0, 0], [1, 0]])[:, :-1],
      'decoder_target_tokens': targets,
      'decoder_loss_weights': tf.cast(targets != 0, tf.int32),
      'ratings': tf.ensure_shape(example['ratings'], [2]),
    }

  def get_model_feature_lengths(
    self, task_feature_lengths: Lengths
  ) -> dict[str, int]:
    """Lengths of the last axis by model feature."""
    return {
      'encoder_input_tokens': task_feature_lengths['inputs'],
      'decoder_input_tokens': task_feature_lengths['targets'],
      'decoder_target_tokens': task_feature_lengths['targets'],
      'decoder_loss_weights': task_feature_lengths['targets'],
      'ratings': 2,
    }


class GroupFeatureConverter(_JudgmentConverter):
  """Groups: a shared text once, with all its hypotheses.

  In: `inputs` int32 [at most Ls], `targets` int32 [n, at most Lh], ragged or
  padded with 0, `ratings` float32 [n], n at most G. Out, for lengths inputs =
  Ls, targets = Lh, ratings = G: `shared_tokens` [Ls], `hypothesis_tokens`
  [G, Lh], `ratings` [G], `group_mask` float32 [G], 1 for a hypothesis, 0 for
  padding. The model computes both directions from these.
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
    """Lengths of the last axis by model feature."""
    size = task_feature_lengths.get('ratings', self.RATINGS)
    return {
      'shared_tokens': task_feature_lengths['inputs'],
      'hypothesis_tokens': task_feature_lengths['targets'],
      'ratings': size,
      'group_mask': size,
    }


def _pad(tensor: tf.Tensor | tf.RaggedTensor, shape: list[int]) -> tf.Tensor:
  """Pads with zeros to a shape that is known when the graph is built."""
  if isinstance(tensor, tf.RaggedTensor):
    tensor = tensor.to_tensor()
  padding = tf.constant(shape) - tf.shape(tensor)
  tensor = tf.pad(tensor, tf.stack([tf.zeros_like(padding), padding], axis=1))
  return tf.ensure_shape(tensor, shape)


def text_features(vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
  """Output features of an encoder-decoder task."""
  feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)
  return {'inputs': feature, 'targets': feature}


def pair_features(vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
  """Output features of a pair task; `pair_examples` adds `</s>`."""
  rows = seqio.Feature(vocabulary=vocabulary, add_eos=False, rank=2)
  return {'inputs': rows, 'targets': rows, 'ratings': _ratings_feature()}


def group_features(vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
  """Output features of a group task; `group_examples` adds `</s>`."""
  row = seqio.Feature(vocabulary=vocabulary, add_eos=False)
  rows = seqio.Feature(vocabulary=vocabulary, add_eos=False, rank=2)
  return {'inputs': row, 'targets': rows, 'ratings': _ratings_feature()}


def _ratings_feature() -> seqio.Feature:
  return seqio.ContinuousFeature(
    vocabulary=seqio.PassThroughVocabulary(size=0),
    add_eos=False,
    dtype=tf.float32,
    rank=1,
  )


@seqio.map_over_dataset
def tokenize_judgments(
  example: Example, output_features: Mapping[str, seqio.Feature]
) -> dict[str, Any]:
  """Encodes the texts of a group; the step whose output is cached offline.

  Args:
    example: `shared`, a string; `hypotheses`, strings [n]; `ratings`,
      float32 [n].
    output_features: The task's, for the vocabulary.

  Returns:
    `shared` int32 [length], `hypotheses` int32 ragged [n, lengths], both
    without `</s>`, and `ratings`.
  """
  vocabulary = output_features['targets'].vocabulary
  texts = example['hypotheses']
  if isinstance(vocabulary, seqio.ByteVocabulary):
    # It takes texts of one length only, so: all bytes as one text, then cut.
    hypotheses = tf.RaggedTensor.from_row_lengths(
      vocabulary.encode_tf(tf.strings.reduce_join(texts)),
      tf.strings.length(texts),
    )
  else:
    hypotheses = vocabulary.encode_tf(texts)
  return {
    'shared': vocabulary.encode_tf(example['shared']),
    'hypotheses': hypotheses,
    'ratings': example['ratings'],
  }


def fit(
  rows: tf.RaggedTensor, length: int | None, eos_id: int
) -> tf.RaggedTensor:
  """Cuts each row so that it ends in `</s>` and is no longer than `length`.

  Args:
    rows: ids, ragged [n, lengths].
    length: the most ids a row may have, `</s>` among them; None for any.
    eos_id: the id of `</s>`.

  Returns:
    Ragged [n, lengths].
  """
  if length is not None:
    rows = rows[:, : length - 1]
  ends = tf.fill([rows.nrows(), 1], tf.cast(eos_id, rows.dtype))
  return tf.concat([rows, ends], axis=1)


def pair_examples(
  dataset: tf.data.Dataset,
  output_features: Mapping[str, seqio.Feature],
  sequence_length: Lengths | None = None,
  *,
  directions: Sequence[str] = DIRECTIONS,
  min_gap: float = 0.0,
) -> tf.data.Dataset:
  """All pairs of each group, each in each direction as an example of its own.

  The pairs are those of `judgments.pairs`. Precision: inputs = the shared text
  twice, targets = the two hypotheses; recall: the other way round.

  Args:
    dataset: groups, as `tokenize_judgments` leaves them.
    output_features: the task's.
    sequence_length: the most ids of `inputs` and `targets`; None for any.
    directions: which directions.
    min_gap: pairs count whose ratings differ by more than this.

  Returns:
    Examples `inputs`, `targets` int32 [2, lengths] and `ratings` float32 [2],
    the better hypothesis first.

  Raises:
    ValueError: An unknown direction, none, or a negative gap.
  """
  check_directions(directions)
  if min_gap < 0:
    raise ValueError(f'min_gap is {min_gap}; it must be 0 or more')

  def expand(example: Example) -> dict[str, tf.Tensor]:
    ratings = example['ratings']
    gap = ratings[:, tf.newaxis] - ratings[tf.newaxis, :]
    return list_pairs(
      example['shared'][tf.newaxis],
      example['hypotheses'],
      ratings,
      tf.where(gap > min_gap),
      output_features,
      sequence_length,
      directions,
    )

  return dataset.map(expand, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def check_directions(directions: Sequence[str]) -> None:
  """Raises ValueError unless there are directions, all of them known."""
  if not directions or not set(directions) <= set(DIRECTIONS):
    raise ValueError(f'directions must be of {DIRECTIONS}, not {directions!r}')


def list_pairs(
  shared: tf.Tensor | tf.RaggedTensor,
  hypotheses: tf.RaggedTensor,
  ratings: tf.Tensor,
  pairs: tf.Tensor,
  output_features: Mapping[str, seqio.Feature],
  sequence_length: Lengths | None,
  directions: Sequence[str],
) -> dict[str, tf.Tensor]:
  """Writes pairs out, to be unbatched into examples.

  Args:
    shared: ids [1, length] of the text that all hypotheses share, or ragged
      [n, lengths], one text a hypothesis.
    hypotheses: ids, ragged [n, lengths].
    ratings: float32 [n].
    pairs: int64 [pairs, 2], indices of hypotheses, the better first.
    output_features: the task's.
    sequence_length: the most ids of `inputs` and `targets`; None for any.
    directions: which directions.

  Returns:
    `inputs`, `targets` int32 [pairs x directions, 2, length], 0 on padding,
    and `ratings` float32 [pairs x directions, 2].
  """
  lengths = sequence_length or {}
  eos_id = output_features['targets'].vocabulary.eos_id
  if not isinstance(shared, tf.RaggedTensor):
    shared = tf.RaggedTensor.from_tensor(shared)
  # With one shared text every index means row 0.
  rows = tf.minimum(pairs, shared.nrows() - 1)

  def side(feature: str) -> list[tf.Tensor]:
    """Rows of one feature for each direction, [pairs, 2, length]."""
    both = {
      True: (shared, rows),
      False: (hypotheses, pairs),
    }
    sides = []
    for direction in directions:
      is_shared = (direction == 'precision') == (feature == 'inputs')
      texts, index = both[is_shared]
      padded = fit(texts, lengths.get(feature), eos_id).to_tensor()
      sides.append(tf.gather(padded, index))
    width = tf.reduce_max([tf.shape(x)[2] for x in sides])
    return [
      tf.pad(x, [[0, 0], [0, 0], [0, width - tf.shape(x)[2]]]) for x in sides
    ]

  def interleave(sides: list[tf.Tensor]) -> tf.Tensor:
    """[pairs, 2, ...] a direction -> [pairs x directions, 2, ...]."""
    stacked = tf.stack(sides, axis=1)
    shape = tf.shape(stacked)
    merged = tf.reshape(stacked, tf.concat([[-1], shape[2:]], axis=0))
    return tf.ensure_shape(merged, [None, 2, *stacked.shape[3:]])

  gathered = tf.gather(ratings, pairs)
  return {
    'inputs': interleave(side('inputs')),
    'targets': interleave(side('targets')),
    'ratings': interleave([gathered] * len(directions)),
  }


def group_examples(
  dataset: tf.data.Dataset,
  output_features: Mapping[str, seqio.Feature],
  sequence_length: Lengths | None = None,
) -> tf.data.Dataset:
  """Groups, those with too many hypotheses in parts.

  A group of n hypotheses, more than the maximum G, is shuffled and dealt into
  ceil(n / G) parts of nearly equal size: each hypothesis is in exactly one of
  them. The shuffle is seeded and differs from epoch to epoch, so that over the
  epochs every pair occurs; nothing is left out. Where every pair of an epoch is
  wanted, let G be the largest group's size.

  Args:
    dataset: groups, as `tokenize_judgments` leaves them.
    output_features: the task's.
    sequence_length: the most ids of `inputs` and `targets`, and as `ratings`
      the maximum group size G; `GROUP_SIZE` by default.

  Returns:
    Examples `inputs` int32 [length], `targets` int32 [at most G, lengths],
    padded with 0, and `ratings` float32 [at most G].

  Raises:
    ValueError: G is less than 2, or larger than the length of `targets`, by
      which SeqIO would cut the group.
  """
  lengths = sequence_length or {}
  size = lengths.get('ratings', GROUP_SIZE)
  if size < 2:
    raise ValueError(f"the length of 'ratings' (the group size) is {size} < 2")
  if lengths.get('targets', size) < size:
    raise ValueError(
      f"the length of 'targets' is {lengths['targets']}, less than the group"
      f" size {size}; give a smaller group size as the length of 'ratings'"
    )
  eos_id = output_features['targets'].vocabulary.eos_id

  @seqio.map_over_dataset(num_seeds=1)
  def deal(example: Example, seed: tf.Tensor) -> dict[str, Any]:
    total = tf.size(example['ratings'])
    shuffled = tf.argsort(tf.random.stateless_uniform([total], seed))
    order = tf.where(total > size, shuffled, tf.range(total))
    order = tf.ensure_shape(order, [None])
    parts = tf.maximum(-(-total // size), 1)
    return {**example, 'order': order, 'parts': parts}

  def split(example: Example) -> tf.data.Dataset:
    inputs = fit(
      tf.RaggedTensor.from_tensor(example['shared'][tf.newaxis]),
      lengths.get('inputs'),
      eos_id,
    )[0]
    targets = fit(example['hypotheses'], lengths.get('targets'), eos_id)

    def part(number: tf.Tensor) -> dict[str, Any]:
      members = tf.ensure_shape(
        example['order'][number :: example['parts']], [None]
      )
      return {
        'inputs': inputs,
        # Padded: T5X's inference takes no ragged tensors.
        'targets': tf.gather(targets, members).to_tensor(),
        'ratings': tf.gather(example['ratings'], members),
      }

    return tf.data.Dataset.range(tf.cast(example['parts'], tf.int64)).map(
      lambda number: part(tf.cast(number, tf.int32))
    )

  return deal(dataset).flat_map(split)
