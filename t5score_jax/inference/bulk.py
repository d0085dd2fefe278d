"""Inference over many inputs, from files or from a task.

Two modes: 'predict' generates texts (`inference/generation.py`), 'score'
computes the log-probability of targets (`inference/scoring.py`). With several
processes, each computes its share of every shard. Not here: shards and the
output (`inference/shards.py`), flags (`commands/infer.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import loading
from t5score_jax.data import files
from t5score_jax.errors import OptionError, T5ScoreError
from t5score_jax.inference import generation, scoring, shards
from t5score_jax.inference.placement import Text
from t5score_jax.inference.search import Method
from t5score_jax.runtime import processes

MODES = ('predict', 'score')


class InferenceError(T5ScoreError, ValueError):
  """A task and a model do not fit together."""


@dataclasses.dataclass(frozen=True)
class Example:
  """One input of inference.

  Attributes:
    inputs: A text, or its ids.
    targets: Likewise; None in mode 'predict'.
    shown: Columns of the output that describe the example, by name.
  """

  inputs: Text
  targets: Text | None
  shown: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of inference; see `scoring.Scorer` and `search.Method`.

  Attributes:
    mode: 'predict' or 'score'.
    method: How tokens are chosen.
    max_length: Tokens per text; by default the model's own.
    batch_tokens: Tokens per batch on one replica of the model.
    dtype: 'float32' or 'bfloat16'.
    num_partitions: Number of devices over which the weights are sharded.
  """

  mode: str = 'predict'
  method: Method = dataclasses.field(default_factory=Method)
  max_length: int | None = None
  batch_tokens: int | None = None
  dtype: str = 'float32'
  num_partitions: int = 1

  def __post_init__(self) -> None:
    if self.mode not in MODES:
      raise OptionError(f'mode {self.mode!r}: use one of {", ".join(MODES)}')

  @property
  def placing(self) -> dict[str, Any]:
    """The options shared by scorer and generator."""
    return {
      'max_length': self.max_length,
      'batch_tokens': self.batch_tokens,
      'dtype': self.dtype,
      'num_partitions': self.num_partitions,
      'spread': processes.count() > 1,
    }


class Predict:
  """Generates texts for inputs."""

  #: Batches of generation depend on the inputs alone.
  shapes: tuple[tuple[int, ...], ...] = ()

  def __init__(self, bundle: bundles.Bundle, options: Options):
    self._generator = generation.Generator(
      bundle, options.method, **options.placing
    )
    self._method = options.method

  def identity(self) -> dict[str, Any]:
    """The settings on which the results depend."""
    return {
      **dataclasses.asdict(self._method),
      'max_length': self._generator.max_length,
    }

  def expect(self, shapes: Iterable[Any]) -> None:
    """See `scoring.Scorer.expect`."""

  def rows(
    self, examples: list[Example]
  ) -> tuple[list[dict[str, Any]], shards.Totals]:
    """Computes the output row of each example."""
    made = self._generator.generate([e.inputs for e in examples])
    rows = []
    for example, outputs in zip(examples, made.outputs, strict=True):
      columns = [_columns(output) for output in outputs]
      several = self._method.outputs > 1
      rows.append(
        {
          **example.shown,
          **({'predictions': columns} if several else columns[0]),
        }
      )
    unfinished = sum(not o.finished for some in made.outputs for o in some)
    return rows, shards.Totals(len(rows), made.truncated, unfinished)


def _columns(output: generation.Output) -> dict[str, Any]:
  return {
    'prediction': output.text,
    'score': _digits(output.score),
    'log_prob': _digits(output.log_prob),
    'tokens': output.tokens,
    'finished': output.finished,
  }


class Score:
  """Computes log-probabilities of targets given inputs; see `Predict`."""

  def __init__(self, bundle: bundles.Bundle, options: Options):
    self._scorer = scoring.Scorer(bundle, **options.placing)

  @property
  def shapes(self) -> tuple[tuple[int, ...], ...]:
    """Shapes of the batches so far."""
    return tuple(self._scorer.shapes)

  def identity(self) -> dict[str, Any]:
    """The settings on which the results depend."""
    return {'max_length': self._scorer.max_length}

  def expect(self, shapes: Iterable[Any]) -> None:
    """See `scoring.Scorer.expect`."""
    self._scorer.expect([tuple(shape) for shape in shapes])

  def rows(
    self, examples: list[Example]
  ) -> tuple[list[dict[str, Any]], shards.Totals]:
    """Computes the output row of each example."""
    scores = self._scorer.score_pairs(
      [(e.inputs, e.targets or '') for e in examples]
    )
    rows = [
      {
        **example.shown,
        'score': _digits(value),
        'log_prob': _digits(float(value) * length),
        'tokens': int(length),
      }
      for example, value, length in zip(
        examples, scores.values, scores.lengths, strict=True
      )
    ]
    return rows, shards.Totals(len(rows), scores.truncated)


def work(bundle: bundles.Bundle, options: Options) -> Predict | Score:
  """Prepares a model for the mode of `options`.

  Raises:
    OptionError: An option is out of range.
  """
  kind = Predict if options.mode == 'predict' else Score
  return kind(bundle, options)


def _digits(value: Any) -> float:
  # str() gives a float32 its shortest digits; float() alone adds noise.
  return float(str(np.float32(value)))


def from_files(
  inputs: str, targets: str | None = None, lowercase: bool = False
) -> Iterator[Example]:
  """Reads examples from text files, one per line, as they are needed.

  Args:
    inputs: A file, compressed or not, or '-'.
    targets: A file with as many lines; None for none.
    lowercase: Whether the model reads lower case.

  Raises:
    RecordError: A file is not readable text, or the numbers of lines differ.
  """

  def read(text: str) -> str:
    return text.lower() if lowercase else text

  if targets is None:
    with files.open_text(inputs) as lines:
      for line in lines:
        yield Example(read(line), None, {'inputs': line})
    return
  with files.open_text(inputs) as ins, files.open_text(targets) as outs:
    for number, pair in enumerate(itertools.zip_longest(ins, outs), 1):
      line, target = pair
      if line is None or target is None:
        raise files.RecordError(
          'the file ends early: inputs and targets need the same number of '
          'lines',
          path=inputs if line is None else targets,
          line=number,
        )
      yield Example(
        read(line), read(target), {'inputs': line, 'targets': target}
      )


def infer(
  mixture_or_task_name: str,
  task_feature_lengths: Mapping[str, int],
  checkpoint_path: str,
  output_dir: str,
  options: Options | None = None,
  split: str = 'test',
  use_cached: bool = False,
  shard_size: int = shards.DEFAULT_SHARD,
  module: str | None = None,
  *,
  restart: bool = False,
  progress: shards.Progress | None = None,
) -> dict[str, shards.Totals]:
  """Infers over a SeqIO task, or over each task of a mixture; for gin.

  Writes OUTPUT_DIR/TASK-MODE.jsonl.

  Args:
    mixture_or_task_name: The registered name.
    task_feature_lengths: Feature -> maximum number of tokens, `</s>` included.
    checkpoint_path: A model; see `checkpoints.loading.load_model`.
    output_dir: The output folder; created if needed.
    options: Options of inference.
    split: The task's split.
    use_cached: Whether to read SeqIO's cache.
    shard_size: See `shards.run`.
    module: The Python module that registers the task; None if a gin file
      imports it.
    restart: See `shards.run`.
    progress: See `shards.run`.

  Returns:
    The totals of each output file.

  Raises:
    TaskError: There is no such task or split.
    InferenceError: The model lacks ids of the task's vocabulary.
    RunError: See `shards.run`.
  """
  from t5score_jax.inputs import datasets  # TensorFlow: only here.

  datasets.import_tasks(module)
  from t5score_jax.inputs import task_examples

  names = task_examples.tasks_of(mixture_or_task_name)
  bundle = loading.load_model(checkpoint_path)
  for name in names:
    if (size := task_examples.vocab_size(name)) > bundle.config.vocab_size:
      raise InferenceError(
        f'{name} has a vocabulary of {size} ids, the model in '
        f'{checkpoint_path} only {bundle.config.vocab_size}'
      )
  options = dataclasses.replace(
    options or Options(), max_length=max(task_feature_lengths.values())
  )
  model = work(bundle, options)
  processes.on_first(
    lambda: Path(output_dir).mkdir(parents=True, exist_ok=True)
  )
  totals = {}
  for name in names:
    path = str(Path(output_dir) / f'{name}-{options.mode}.jsonl')
    examples = (
      Example(
        example.inputs,
        example.targets,
        {'inputs': example.inputs_text, 'targets': example.targets_text},
      )
      for example in task_examples.read(
        name, task_feature_lengths, split, use_cached
      )
    )
    totals[path] = shards.run(
      examples,
      model,
      path,
      {
        **identity_of(bundle, options),
        'task': name,
        'split': split,
        'lengths': dict(task_feature_lengths),
      },
      shard_size=shard_size,
      restart=restart,
      progress=progress,
    )
  return totals


def identity_of(bundle: bundles.Bundle, options: Options) -> dict[str, Any]:
  """Identifies the model and mode of a run."""
  return {
    'mode': options.mode,
    'dtype': options.dtype,
    'checkpoint': bundles.checkpoint_hash(bundle.params),
    'vocabulary': bundle.vocabulary.fingerprint()[:12],
  }
