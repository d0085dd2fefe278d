"""SeqIO preprocessors of judgments: groups of texts to pairs and groups of ids.

`tokenize_judgments` encodes texts (its result can be cached offline), then
`pair_examples` or `group_examples` makes the examples of
`inputs/feature_converters.py`. Truncated texts still end with `</s>`. Corpora
are read in `tasks/`; `data/judgments.py` selects the judgments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5score_jax.errors import OptionError
from t5score_jax.inputs.feature_converters import GROUP_SIZE, Example, Lengths

#: Precision: shared text -> hypothesis. Recall: hypothesis -> shared text.
DIRECTIONS = ('precision', 'recall')


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
  """Encodes the texts of a group; offline caches store the result.

  Args:
    example: `shared`, a string; `hypotheses`, strings [n]; `ratings`,
      float32 [n].
    output_features: The task's output features.

  Returns:
    `shared` int32 [length] and `hypotheses` int32 ragged [n, lengths], both
    without `</s>`, and `ratings`.
  """
  vocabulary = output_features['targets'].vocabulary
  texts = example['hypotheses']
  if isinstance(vocabulary, seqio.ByteVocabulary):
    # It encodes texts of equal length only: join all bytes, then split.
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
  """Truncates rows to a length and ends each with `</s>`.

  Args:
    rows: Ids, ragged [n, lengths].
    length: Maximum number of ids per row, `</s>` included; None for any.
    eos_id: The id of `</s>`.

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
  """Makes an example of every pair of a group, in every direction.

  The pairs are those of `judgments.pairs`. Precision: inputs = the shared text
  twice, targets = the two hypotheses; recall: the reverse.

  Args:
    dataset: Groups from `tokenize_judgments`.
    output_features: The task's output features.
    sequence_length: Maximum lengths of `inputs` and `targets`; None for any.
    directions: One or both of `DIRECTIONS`.
    min_gap: The difference that a pair's ratings must exceed.

  Returns:
    Examples `inputs`, `targets` int32 [2, lengths] and `ratings` float32 [2],
    the better hypothesis first.

  Raises:
    OptionError: No or unknown directions, or a negative gap.
  """
  check_directions(directions)
  if min_gap < 0:
    raise OptionError(f'min_gap is {min_gap}; it must be 0 or more')

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
  """Raises OptionError if there are no directions or unknown ones."""
  if not directions or not set(directions) <= set(DIRECTIONS):
    raise OptionError(f'directions must be of {DIRECTIONS}, not {directions!r}')


def list_pairs(
  shared: tf.Tensor | tf.RaggedTensor,
  hypotheses: tf.RaggedTensor,
  ratings: tf.Tensor,
  pairs: tf.Tensor,
  output_features: Mapping[str, seqio.Feature],
  sequence_length: Lengths | None,
  directions: Sequence[str],
) -> dict[str, tf.Tensor]:
  """Makes examples of pairs, stacked for `unbatch`.

  Args:
    shared: Ids [1, length] of the text that all hypotheses share, or ragged
      [n, lengths], one text per hypothesis.
    hypotheses: Ids, ragged [n, lengths].
    ratings: float32 [n].
    pairs: int64 [pairs, 2], indices of hypotheses, the better first.
    output_features: The task's output features.
    sequence_length: Maximum lengths of `inputs` and `targets`; None for any.
    directions: One or both of `DIRECTIONS`.

  Returns:
    `inputs`, `targets` int32 [pairs x directions, 2, length], 0 on padding,
    and `ratings` float32 [pairs x directions, 2].
  """
  lengths = sequence_length or {}
  eos_id = output_features['targets'].vocabulary.eos_id
  if not isinstance(shared, tf.RaggedTensor):
    shared = tf.RaggedTensor.from_tensor(shared)
  # A single shared text is row 0 for every pair.
  rows = tf.minimum(pairs, shared.nrows() - 1)

  def side(feature: str) -> list[tf.Tensor]:
    """Rows of one feature for each direction, [pairs, 2, length]."""
    sides = []
    for direction in directions:
      is_shared = (direction == 'precision') == (feature == 'inputs')
      texts, index = (shared, rows) if is_shared else (hypotheses, pairs)
      padded = fit(texts, lengths.get(feature), eos_id).to_tensor()
      sides.append(tf.gather(padded, index))
    width = tf.reduce_max([tf.shape(x)[2] for x in sides])
    return [
      tf.pad(x, [[0, 0], [0, 0], [0, width - tf.shape(x)[2]]]) for x in sides
    ]

  def interleave(sides: list[tf.Tensor]) -> tf.Tensor:
    """[pairs, 2, ...] per direction -> [pairs x directions, 2, ...]."""
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
  """Makes examples of groups, dividing those that are too large.

  A group of n hypotheses, more than the maximum G, is shuffled and divided into
  ceil(n / G) parts of nearly equal size. The shuffle is seeded and differs
  between epochs, so that every pair occurs in some epoch. For every pair in
  each epoch, set G to the size of the largest group.

  Args:
    dataset: Groups from `tokenize_judgments`.
    output_features: The task's output features.
    sequence_length: Maximum lengths of `inputs` and `targets`, and as `ratings`
      the maximum group size G, by default `GROUP_SIZE`.

  Returns:
    Examples `inputs` int32 [length], `targets` int32 [at most G, lengths],
    padded with 0, and `ratings` float32 [at most G].

  Raises:
    OptionError: G is less than 2, or greater than the length of `targets`, to
      which SeqIO would truncate the group.
  """
  lengths = sequence_length or {}
  size = lengths.get('ratings', GROUP_SIZE)
  if size < 2:
    raise OptionError(f"the length of 'ratings' (the group size) is {size} < 2")
  if lengths.get('targets', size) < size:
    raise OptionError(
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
