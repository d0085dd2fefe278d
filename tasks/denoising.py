"""Span corruption over plain text (Raffel et al. 2020, T5, section 3.1.4).

15% of the tokens, in spans with a mean length of 3, are removed from the
inputs, and one sentinel replaces each span. The targets are the sentinels, each
followed by the tokens it replaces. Sentinels are the vocabulary's last ids,
`<extra_id_0>` first.

Layout of a folder: `NAME.txt`, `NAME.validation.txt`, `NAME.test.txt` (each
also with `.gz`), one text per line. For each NAME the task `denoising_NAME`,
and the mixture `denoising` of all, sampled by p^0.5. With `T5SCORE_DATA` set,
importing this module registers `T5SCORE_DATA/denoising` (`environment`).

Not for pairs of texts (`parallel`).
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping

import seqio
import tensorflow as tf

from t5score_jax.data import files
from t5score_jax.inputs import preprocessors
from t5score_jax.tasks import (
  environment,
  mixtures,
  parallel,
  sources,
  vocabularies,
)

NOISE_DENSITY = 0.15
MEAN_SPAN_LENGTH = 3.0
# Tokens per piece if no lengths are given.
_UNLIMITED = 2**15


def read(path: str) -> Iterator[dict[str, str]]:
  """Reads one text per line; empty lines, which end documents, are skipped."""
  with files.open_text(path) as lines:
    for line in lines:
      if line.strip():
        yield {'targets': line}


def noise_lengths(
  length: int | tf.Tensor,
  sentinels: int,
  density: float = NOISE_DENSITY,
  mean_span: float = MEAN_SPAN_LENGTH,
) -> tuple[tf.Tensor, tf.Tensor]:
  """The numbers of noise tokens and of noise spans of a text.

  Args:
    length: Number of tokens of the text, at least 2.
    sentinels: The maximum number of spans.
    density: The share of tokens that are noise.
    mean_span: The mean length of a span.

  Returns:
    int32 scalars: noise tokens from 1 to length - 1, spans from 1 to both the
    noise tokens and the others.
  """
  total = tf.cast(length, tf.float32)
  noise = tf.cast(tf.round(total * density), tf.int32)
  noise = tf.clip_by_value(noise, 1, tf.cast(length, tf.int32) - 1)
  spans = tf.cast(tf.round(tf.cast(noise, tf.float32) / mean_span), tf.int32)
  most = tf.minimum(noise, tf.cast(length, tf.int32) - noise)
  return noise, tf.clip_by_value(spans, 1, tf.minimum(most, sentinels))


def longest_text(
  sentinels: int,
  sequence_length: Mapping[str, int] | None,
  density: float = NOISE_DENSITY,
  mean_span: float = MEAN_SPAN_LENGTH,
) -> int:
  """The maximum number of tokens whose corrupted inputs and targets fit.

  Args:
    sentinels: The number of sentinels.
    sequence_length: Maximum length of `inputs` and `targets`, with `</s>`.
    density: The share of tokens that are noise.
    mean_span: The mean length of a span.

  Returns:
    At least 2.

  Raises:
    ValueError: Fewer than two tokens fit.
  """
  if sequence_length is None:
    return _UNLIMITED

  def fits(length: int) -> bool:
    noise, spans = noise_lengths(length, sentinels, density, mean_span)
    inputs = length - int(noise) + int(spans) + 1
    targets = int(noise) + int(spans) + 1
    return (
      inputs <= sequence_length['inputs']
      and targets <= sequence_length['targets']
    )

  if not fits(2):
    raise ValueError(
      f'lengths {dict(sequence_length)} are too short for span corruption;'
      ' both must be at least 3'
    )
  length = 2
  # Inputs are at least 1 - `density` of a text, so that few steps remain.
  while fits(length + 1):
    length += 1
  return length


def random_partition(
  total: tf.Tensor, parts: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
  """Splits `total` into `parts` positive summands, all splits equally likely.

  Args:
    total: int32 scalar.
    parts: int32 scalar, at most `total`.
    seed: int32 [2].

  Returns:
    int32 [parts].
  """
  order = tf.argsort(tf.random.stateless_uniform([total - 1], seed))
  cuts = tf.sort(order[: parts - 1]) + 1
  edges = tf.concat([[0], cuts, [total]], axis=0)
  return edges[1:] - edges[:-1]


def corrupt(
  tokens: tf.Tensor,
  seeds: tf.Tensor,
  *,
  vocab_size: int,
  sentinels: int,
  density: float = NOISE_DENSITY,
  mean_span: float = MEAN_SPAN_LENGTH,
) -> dict[str, tf.Tensor]:
  """Corrupts one text.

  Kept stretches and noise spans alternate; the first is kept, the last is noise
  (as in T5).

  Args:
    tokens: int32 [length], at least 2, without `</s>`.
    seeds: int32 [2, 2].
    vocab_size: Ids of the vocabulary; sentinel k is `vocab_size - 1 - k`.
    sentinels: The number of sentinels.
    density: The share of tokens that are noise.
    mean_span: The mean length of a span.

  Returns:
    `inputs`, `targets` int32, without `</s>`.
  """
  noise, spans = noise_lengths(tf.size(tokens), sentinels, density, mean_span)
  noise_spans = random_partition(noise, spans, seeds[0])
  kept_spans = random_partition(tf.size(tokens) - noise, spans, seeds[1])
  # [spans, 2] -> stretches in their order: kept, noise, kept, noise, ...
  stretches = tf.reshape(tf.stack([kept_spans, noise_spans], axis=1), [-1])
  texts = tf.RaggedTensor.from_row_lengths(tokens, stretches)
  marks = (vocab_size - 1 - tf.range(spans))[:, tf.newaxis]
  marks = tf.cast(marks, tokens.dtype)
  return {
    'inputs': tf.concat([texts[::2], marks], axis=1).flat_values,
    'targets': tf.concat([marks, texts[1::2]], axis=1).flat_values,
  }


def span_corruption(
  dataset: tf.data.Dataset,
  output_features: Mapping[str, seqio.Feature],
  sequence_length: Mapping[str, int] | None = None,
) -> tf.data.Dataset:
  """SeqIO preprocessor: cuts texts into pieces that fit and corrupts each.

  All of a text is used, except a last piece of a single token, which cannot be
  corrupted.

  Args:
    dataset: `targets` int32 [length], without `</s>`.
    output_features: The task's.
    sequence_length: Maximum length of `inputs` and `targets`; None: no limit.

  Returns:
    `inputs` and `targets`, without `</s>`.
  """
  vocabulary = output_features['targets'].vocabulary
  sentinels = vocabularies.sentinels(vocabulary)
  longest = longest_text(sentinels, sequence_length)

  def pieces(example: Mapping[str, tf.Tensor]) -> tf.data.Dataset:
    tokens = example['targets']
    starts = tf.range(0, tf.size(tokens, tf.int64), longest)
    return tf.data.Dataset.from_tensor_slices(starts).map(
      lambda start: tokens[start : start + longest]
    )

  @seqio.map_over_dataset(num_seeds=2)
  def noisy(tokens: tf.Tensor, seeds: tf.Tensor) -> dict[str, tf.Tensor]:
    return corrupt(
      tokens,
      tf.convert_to_tensor(seeds),
      vocab_size=vocabulary.vocab_size,
      sentinels=sentinels,
    )

  dataset = dataset.flat_map(pieces).filter(lambda t: tf.size(t) > 1)
  return noisy(dataset)


def register(
  folder: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  extra_ids: int | None = None,
  name: str = 'denoising',
) -> dict[str, str]:
  """Registers the tasks and the mixture of a folder.

  Args:
    folder: The folder; see the module's docstring for its layout.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    extra_ids: The number of sentinels; by default ByT5's 125 for bytes, and
      for SentencePiece as many as the model has.
    name: Prefix of the tasks, and the mixture's name.

  Returns:
    The language of each task (here each NAME is one), by task name.

  Raises:
    FileNotFoundError: No such folder, no text in it, or no vocabulary.
    ValueError: The vocabulary has no sentinels, or a name is taken.
  """
  found = parallel.split_files(list(pathlib.Path(folder).iterdir()), ('txt',))
  if not found:
    raise FileNotFoundError(
      f'{folder}: no NAME.txt; put plain text there, one text per line'
    )
  encoder = vocabularies.seqio_vocabulary(vocabulary, extra_ids)
  if not vocabularies.sentinels(encoder):
    raise ValueError(
      f'{vocabulary} has no sentinels, which span corruption needs; give'
      ' extra_ids, or train the vocabulary with --extra-ids'
    )
  languages = {}
  for stem, paths in found.items():
    task = parallel.task_name(name, stem)
    seqio.TaskRegistry.add(
      task,
      source=sources.FileSource(
        paths, read, {'targets': tf.TensorSpec([], tf.string)}
      ),
      preprocessors=[
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        span_corruption,
        seqio.preprocessors.append_eos_after_trim,
      ],
      output_features=preprocessors.text_features(encoder),
      shuffle_buffer_size=20_000,
    )
    languages[task] = stem
  mixtures.add_mixture(name, languages)
  return languages


if _folder := environment.corpus('denoising'):
  register(_folder, environment.vocabulary())
