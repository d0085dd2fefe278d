"""Inference over many inputs: in shards, resumed where it ended, written once.

Two modes: 'predict' writes texts (``inference/generation.py``), 'score' gives
the log-probability of targets (``inference/scoring.py``). Inputs are read in
shards; those that are done lie in OUT.parts, and become one output, in order,
at the end. Many processes each do their share of every shard, and process 0
writes. Not
here: flags (``commands/infer.py``).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import loading
from t5score_jax.data import files, runs
from t5score_jax.errors import T5ScoreError
from t5score_jax.inference import balance, generation, scoring, shards
from t5score_jax.inference.placement import Text
from t5score_jax.inference.search import Method
from t5score_jax.runtime import processes
from t5score_jax.version import __version__

MODES = ('predict', 'score')
DEFAULT_SHARD = 10_000

# Told how many examples are done.
Said = Callable[[int], None]


class InferenceError(T5ScoreError, ValueError):
  """A task and a model don't go together."""


@dataclasses.dataclass(frozen=True)
class Example:
  """What inference is about.

  Attributes:
    inputs: a text, or its ids.
    targets: likewise; None where texts are to be written.
    shown: what the output says of the example, by name.
  """

  inputs: Text
  targets: Text | None
  shown: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Options:
  """How a model is used; see ``scoring.Scorer`` and ``search.Method``.

  Attributes:
    mode: 'predict' or 'score'.
    method: how texts are written.
    max_length: tokens a text; the model's own by default.
    batch_tokens: tokens a batch on one copy of the model.
    dtype: 'float32' or 'bfloat16'.
    num_partitions: devices over which the weights are divided.
  """

  mode: str = 'predict'
  method: Method = dataclasses.field(default_factory=Method)
  max_length: int | None = None
  batch_tokens: int | None = None
  dtype: str = 'float32'
  num_partitions: int = 1

  def __post_init__(self) -> None:
    if self.mode not in MODES:
      raise ValueError(f'mode {self.mode!r}: use one of {", ".join(MODES)}')

  @property
  def placing(self) -> dict[str, Any]:
    """What scorer and generator have in common."""
    return {
      'max_length': self.max_length,
      'batch_tokens': self.batch_tokens,
      'dtype': self.dtype,
      'num_partitions': self.num_partitions,
      'spread': processes.count() > 1,
    }


@dataclasses.dataclass(frozen=True)
class Totals:
  """What is said of a run.

  Attributes:
    examples: how many.
    cut: texts that were longer than the model reads.
    unfinished: texts written that did not come to an end.
  """

  examples: int = 0
  cut: int = 0
  unfinished: int = 0


class Work(Protocol):
  """One of the modes, with a model."""

  shapes: list[tuple[int, ...]]

  def identity(self) -> dict[str, Any]:
    """What the results depend on."""

  def expect(self, shapes: Iterable[Any]) -> None:
    """See ``scoring.Scorer.expect``."""

  def rows(
    self, examples: list[Example]
  ) -> tuple[list[dict[str, Any]], Totals]:
    """What is written of each example."""


def work(bundle: bundles.Bundle, options: Options) -> Work:
  """A model in the mode that ``options`` say.

  Raises:
    ValueError: an option is out of range.
  """
  kind: Any = _Predict if options.mode == 'predict' else _Score
  return kind(bundle, options)


class _Predict:
  """Texts for inputs."""

  def __init__(self, bundle: bundles.Bundle, options: Options):
    self._generator = generation.Generator(
      bundle, options.method, **options.placing
    )
    self._options = options
    # Those of generation depend on the inputs alone.
    self.shapes: list[tuple[int, ...]] = []

  def identity(self) -> dict[str, Any]:
    return {
      **dataclasses.asdict(self._options.method),
      'max_length': self._generator.max_length,
    }

  def expect(self, shapes: Iterable[Any]) -> None:
    del shapes

  def rows(
    self, examples: list[Example]
  ) -> tuple[list[dict[str, Any]], Totals]:
    made = self._generator.generate([e.inputs for e in examples])
    rows = []
    for example, outputs in zip(examples, made.outputs, strict=True):
      said = [_said(output) for output in outputs]
      several = self._options.method.outputs > 1
      rows.append(
        {**example.shown, **({'predictions': said} if several else said[0])}
      )
    unfinished = sum(not o.finished for some in made.outputs for o in some)
    return rows, Totals(len(rows), made.truncated, unfinished)


def _said(output: generation.Output) -> dict[str, Any]:
  return {
    'prediction': output.text,
    'score': _digits(output.score),
    'log_prob': _digits(output.log_prob),
    'tokens': output.tokens,
    'finished': output.finished,
  }


class _Score:
  """Log-probabilities of targets given inputs."""

  def __init__(self, bundle: bundles.Bundle, options: Options):
    self._scorer = scoring.Scorer(bundle, **options.placing)

  @property
  def shapes(self) -> list[tuple[int, ...]]:
    return self._scorer.shapes

  def identity(self) -> dict[str, Any]:
    return {'max_length': self._scorer.max_length}

  def expect(self, shapes: Iterable[Any]) -> None:
    self._scorer.expect([tuple(shape) for shape in shapes])

  def rows(
    self, examples: list[Example]
  ) -> tuple[list[dict[str, Any]], Totals]:
    found = self._scorer.score_pairs(
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
        examples, found.values, found.lengths, strict=True
      )
    ]
    return rows, Totals(len(rows), found.truncated)


def _digits(value: Any) -> float:
  # str() gives a float32 the digits it has; float() alone adds noise.
  return float(str(np.float32(value)))


def from_files(
  inputs: str, targets: str | None = None, lowercase: bool = False
) -> Iterator[Example]:
  """Reads examples from text files, a line each, as they are needed.

  Args:
    inputs: a file, compressed or not, or '-'.
    targets: one with as many lines; None for none.
    lowercase: whether the model reads lower case.

  Raises:
    RecordError: a file is not readable text, or one has more lines.
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
          'the file ends before the other of inputs and targets; they need as '
          'many lines',
          path=inputs if line is None else targets,
          line=number,
        )
      yield Example(
        read(line), read(target), {'inputs': line, 'targets': target}
      )


def run(
  examples: Iterable[Example],
  model: Work,
  output: str | os.PathLike[str],
  identity: Mapping[str, Any],
  *,
  format: str = 'jsonl',
  shard_size: int = DEFAULT_SHARD,
  restart: bool = False,
  said: Said | None = None,
) -> Totals:
  """Infers over all examples; all processes call it alike.

  Args:
    examples: in order; read as they are needed.
    model: from ``work``.
    output: where to write, or '-': as shards are done, nothing kept.
    identity: what tells this run from others, JSON.
    format: 'jsonl', or 'text': the written text or the score alone.
    shard_size: examples that are in memory, and lost when a run breaks off.
    restart: whether what an earlier run left is thrown away.
    said: told how many examples are done.

  Returns:
    The totals, those of an earlier run included.

  Raises:
    RunError: what an earlier run left is of another run.
    ValueError: an argument is out of range.
    OSError: the output can't be written.
  """
  if shard_size < 1:
    raise ValueError(f'shard_size {shard_size}: at least 1')
  if format not in shards.FORMATS:
    raise ValueError(
      f'format {format!r}: use one of {", ".join(shards.FORMATS)}'
    )
  identity = {
    'version': __version__,
    'shard_size': shard_size,
    **identity,
    **model.identity(),
  }
  parts = shards.Parts(os.fspath(output), identity)
  processes.on_first(lambda: parts.open(restart))
  done = processes.broadcast(parts.heads)
  totals = Totals()
  iterator = iter(examples)
  number = 0
  while shard := list(itertools.islice(iterator, shard_size)):
    digest = _digest(shard)
    balance.agree([digest], 'the inputs')
    if number < len(done):
      if done[number]['digest'] != digest:
        raise runs.RunError(parts.changed(totals.examples, len(shard)))
      model.expect(done[number]['shapes'])
      counts = Totals(**done[number]['totals'])
    else:
      rows, counts = model.rows(shard)
      head = {
        'digest': digest,
        'shapes': [list(shape) for shape in model.shapes],
        'totals': dataclasses.asdict(counts),
      }
      processes.on_first(
        functools.partial(parts.add, number, head, rows, format)
      )
    pairs = zip(
      dataclasses.astuple(totals), dataclasses.astuple(counts), strict=True
    )
    totals = Totals(*(a + b for a, b in pairs))
    if said:
      said(totals.examples)
    number += 1
  if number < len(done):
    raise runs.RunError(parts.changed(totals.examples, 0))
  processes.on_first(lambda: parts.merge(number, format))
  return totals


def _digest(shard: list[Example]) -> str:
  digest = hashlib.sha256()
  for example in shard:
    text = repr((example.inputs, example.targets))
    digest.update(text.encode('utf-8', 'surrogatepass'))
  return digest.hexdigest()


def infer(
  mixture_or_task_name: str,
  task_feature_lengths: Mapping[str, int],
  checkpoint_path: str,
  output_dir: str,
  options: Options | None = None,
  split: str = 'test',
  use_cached: bool = False,
  shard_size: int = DEFAULT_SHARD,
  *,
  restart: bool = False,
  said: Said | None = None,
) -> dict[str, Totals]:
  """Infers over a SeqIO task, or over each task of a mixture; for gin.

  Writes OUTPUT_DIR/TASK-MODE.jsonl.

  Args:
    mixture_or_task_name: as registered.
    task_feature_lengths: feature -> most tokens, ``</s>`` included.
    checkpoint_path: a model: see ``checkpoints.loading.load_model``.
    output_dir: is made.
    options: how the model is used.
    split: of the task.
    use_cached: whether to read SeqIO's cache.
    shard_size: see ``run``.
    restart: see ``run``.
    said: see ``run``.

  Returns:
    The totals of each output file.

  Raises:
    TaskError: no such task or split.
    InferenceError: the model lacks ids of the task's vocabulary.
    RunError: see ``run``.
  """
  from t5score_jax.inputs import task_examples  # TensorFlow: only here.

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
  found = {}
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
    found[path] = run(
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
      said=said,
    )
  return found


def identity_of(bundle: bundles.Bundle, options: Options) -> dict[str, Any]:
  """What tells runs of different models and modes apart."""
  return {
    'mode': options.mode,
    'dtype': options.dtype,
    'checkpoint': bundles.checkpoint_hash(bundle.params),
    'vocabulary': bundle.vocabulary.fingerprint()[:12],
  }
