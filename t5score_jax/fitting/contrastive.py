"""Sentence embeddings of two languages by rounds of mining and training.

UScore's sentence-based part (Belouadi and Eger 2023, section 3.2). Each round
mines sentence pairs from monolingual texts by the ratio margin of the current
encoder's vectors, and trains the initial encoder on them with the contrastive
loss. If pairs are given, from parallel text or mined elsewhere, the encoder is
trained only once (appendix C).

    FOLDER/
      contrast.json   what the run depends on
      round_0/        precision.json of the initial encoder
      round_N/        pairs.jsonl, precision.json, and model/: the encoder
        mining/       vectors and neighbours, until there are pairs
        arrays/ run/  tokens and MODEL_DIR, until there is an encoder

A stopped run resumes there, also within a round. Not here: the loss
(`models/losses.py`), the command line (`commands/contrast.py`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import kinds, selection
from t5score_jax.checkpoints.formats import orbax
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.crosslingual import corpus, filters, matching, mining
from t5score_jax.crosslingual import runs as mining_runs
from t5score_jax.data import files, folders, runs, translations
from t5score_jax.errors import STOPPED, InputError, OptionError
from t5score_jax.fitting.fit import Say, Stopped
from t5score_jax.inference import encoding
from t5score_jax.inputs import sentence_pairs, texts
from t5score_jax.models import contrastive
from t5score_jax.training import loop, optimizers, partitioning

MODEL = 'model'
_MANIFEST, _PAIRS, _PRECISION = 'contrast.json', 'pairs.jsonl', 'precision.json'
_MINING, _ARRAYS, _RUN, _INITIAL = 'mining', 'arrays', 'run', 'initial'

Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Training:
  """How an encoder is trained on pairs; the defaults are the paper's.

  Defaults follow appendix D. What it leaves open follows the published program:
  warm-up and linear decay, weight decay, both directions.

  Attributes:
    learning_rate: Peak learning rate of AdamW.
    batch_size: Pairs per batch; all other pairs of the batch are negatives.
    epochs: Epochs over the pairs.
    temperature: tau of equation 4.
    include_positive: Whether the denominator of equation 4 includes j = i, as
      in the published program.
    warmup: Share of the steps in which the rate rises from 0.
    weight_decay: Weight decay of AdamW, on kernels and embeddings.
    dropout_rate: Dropout in the encoder; None for its own rate.
    max_length: Tokens per text in training, special tokens included; None for
      the encoder's number of positions. Longer texts are truncated.
    parts: See `models/contrastive.py`; saves memory.
    dtype: 'float32' or 'bfloat16', for activations.
    seed: Seed of the order and of dropout.
    save_every: Steps between checkpoints.
  """

  learning_rate: float = 5e-5
  batch_size: int = 256
  epochs: float = 1.0
  temperature: float = 0.05
  include_positive: bool = False
  warmup: float = 0.1
  weight_decay: float = 0.01
  dropout_rate: float | None = None
  max_length: int | None = None
  parts: int = 1
  dtype: str = 'float32'
  seed: int = 0
  save_every: int = 100

  def __post_init__(self) -> None:
    # All of it: a value that is found wrong after the mining costs hours.
    for name in ('learning_rate', 'epochs', 'temperature', 'parts'):
      if not 0 < getattr(self, name) < math.inf:
        raise OptionError(f'{name} {getattr(self, name)}: must be positive')
    if not 0 <= self.weight_decay < math.inf:
      raise OptionError(f'weight_decay {self.weight_decay}: at least 0')
    if self.batch_size < 2:
      raise OptionError(
        f'batch_size {self.batch_size}: at least 2, as the negatives of a pair '
        'are the other pairs of its batch'
      )
    if not 0 <= self.warmup <= 1:
      raise OptionError(f'warmup {self.warmup}: must be from 0 to 1')
    if self.dropout_rate is not None and not 0 <= self.dropout_rate < 1:
      raise OptionError(
        f'dropout_rate {self.dropout_rate}: must be from 0 to below 1'
      )


@dataclasses.dataclass(frozen=True)
class Mining:
  """How the pairs of a round are mined; the defaults are the paper's.

  Attributes:
    rounds: Number of rounds.
    best: Number of best pairs to train on.
    k: Number of neighbours for the ratio margin.
    max_overlap: Maximum similarity of a pair's texts by edit distance.
    dtype: 'float32' or 'bfloat16', for the encoder's activations.
    backend: See `neighbours.nearest`.
    batch_tokens: Tokens per batch on one device; bounds memory only.
  """

  rounds: int = 6
  best: int = 100_000
  k: int = mining.MARGIN_NEIGHBOURS
  max_overlap: float = filters.MOST_OVERLAP
  dtype: str = 'float32'
  backend: str = 'auto'
  batch_tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class Round:
  """A finished round.

  Attributes:
    number: From 1; 0 is the initial encoder.
    folder: The Hugging Face folder of its encoder.
    pairs: Number of pairs that it was trained on.
    precision: P@1 of sentence matching on the held-out sentences, from source
      to target and back; None without held-out sentences.
  """

  number: int
  folder: Path
  pairs: int
  precision: tuple[float, float] | None


def rounds(
  folder: Path,
  sources: Sequence[str],
  targets: Sequence[str],
  start: str | Path,
  training: Training = Training(),  # noqa: B008 (frozen)
  how: Mining = Mining(),  # noqa: B008
  *,
  layer: int | None = None,
  held_out: tuple[Sequence[str], Sequence[str]] | None = None,
  progress: mining_runs.Progress | None = None,
  say: Say = lambda line: None,
  quiet: bool = True,
) -> list[Round]:
  """Mines and trains, round after round, or resumes such a run.

  Args:
    folder: The run's folder, created if absent.
    sources: Sentences of the source language, filtered, each once.
    targets: Sentences of the target language, likewise.
    start: The initial encoder: a folder, or the name of an installed one.
    training: How each round trains the initial encoder.
    how: How pairs are mined.
    layer: Number of the initial encoder's layers to keep; None for all.
    held_out: Aligned sentences for measuring the precision of matching, which
      is only reported.
    progress: Called from time to time while mining.
    say: Called with a line for each finished step.
    quiet: Whether training prints nothing.

  Returns:
    The initial encoder as round 0, and every round.

  Raises:
    RunError: The folder belongs to another run.
    InputError: Fewer than two pairs were mined.
    Stopped: A signal stopped the run; the next call resumes it.
  """
  run = _Run(folder, start, training, layer, held_out, say, quiet)
  identity = dataclasses.asdict(how)
  del identity['batch_tokens']
  run.claim(
    mining=identity,
    texts=[runs.digest_texts(side) for side in (sources, targets)],
  )
  done = [run.measure(0, run.start, 0)]
  for number in range(1, how.rounds + 1):
    place = run.place(number)
    if not (place / _PAIRS).is_file():
      current = done[-1].folder
      mined = _mine(place, sources, targets, current, how, progress)
      if len(mined) < 2:
        raise InputError(
          f'round {number}: {len(mined)} pairs were mined from {len(sources)} '
          f'and {len(targets)} sentences; at least 2 are needed to train'
        )
      _write_pairs(place / _PAIRS, mined, sources, targets)
      shutil.rmtree(place / _MINING, ignore_errors=True)
    pairs = list(translations.read_pairs(place / _PAIRS))
    done.append(run.measure(number, run.train(number, pairs), len(pairs)))
  return done


def fine_tune(
  folder: Path,
  pairs: Sequence[Pair],
  start: str | Path,
  training: Training = Training(),  # noqa: B008 (frozen)
  *,
  layer: int | None = None,
  held_out: tuple[Sequence[str], Sequence[str]] | None = None,
  say: Say = lambda line: None,
  quiet: bool = True,
) -> list[Round]:
  """Trains an encoder on given pairs, or resumes training (appendix C).

  Args:
    folder: See `rounds`, as for the others.
    pairs: At least two pairs of texts. Those that share a text are not
      negatives of each other.
    start: The encoder to start from, which may come from `rounds`.
    training: How it is trained.
    layer: See `rounds`.
    held_out: Likewise.
    say: Likewise.
    quiet: Likewise.

  Returns:
    The initial encoder as round 0, and the trained one as round 1.
  """
  if len(pairs) < 2:
    raise InputError(f'{len(pairs)} pairs: at least 2 are needed to train')
  run = _Run(folder, start, training, layer, held_out, say, quiet)
  run.claim(pairs=runs.digest_texts([text for pair in pairs for text in pair]))
  done = [run.measure(0, run.start, 0)]
  return [*done, run.measure(1, run.train(1, pairs), len(pairs))]


class _Run:
  """What the rounds of a run share."""

  def __init__(
    self,
    folder: Path,
    start: str | Path,
    training: Training,
    layer: int | None,
    held_out: tuple[Sequence[str], Sequence[str]] | None,
    say: Say,
    quiet: bool,
  ):
    self._folder = folder
    self._training = training
    self._held_out = held_out
    self._say = say
    self._quiet = quiet
    self.start = kinds.folder(start)
    whole = encoders.load_encoder(self.start)
    self._bundle = whole
    if layer is not None:
      self._bundle = encoders.truncated(whole, layer)
    self._is_cut = self._bundle is not whole
    self._max_length = self._bundle.config.max_length
    if training.max_length is not None:
      if not 3 <= training.max_length <= self._max_length:
        raise OptionError(
          f'max_length {training.max_length}: the encoder takes 3 to '
          f'{self._max_length} tokens'
        )
      self._max_length = training.max_length
    self._checkpoint = bundles.checkpoint_hash(self._bundle.params)

  def claim(self, **identity: Any) -> None:
    """Creates the folder for this run, or checks that it is this run's."""
    runs.claim(
      self._folder,
      _MANIFEST,
      {**self._about(), **identity},
      'choose another --work or remove it',
    )
    if self._is_cut:
      self.start = self._folder / _INITIAL
      if not self.start.is_dir():
        with folders.new_folder(self.start) as new:
          encoders.save_encoder(self._bundle, new)

  def _about(self) -> dict[str, Any]:
    """What every round starts from, and how it trains."""
    training = dataclasses.asdict(self._training)
    del training['save_every']
    return {
      'encoder': self._bundle.name,
      'checkpoint': self._checkpoint,
      'training': training,
    }

  def place(self, number: int) -> Path:
    """The folder of a round."""
    place = self._folder / f'round_{number}'
    place.mkdir(exist_ok=True)
    return place

  def train(self, number: int, pairs: Sequence[Pair]) -> Path:
    """Trains the initial encoder on pairs; returns the folder of the result."""
    place = self.place(number)
    if not (place / MODEL).is_dir():
      cut = sentence_pairs.write(
        place / _ARRAYS,
        pairs,
        self._bundle.tokenizer,
        self._bundle.config.pad_id,
        self._max_length,
      )
      self._say(
        f'round {number}: {len(pairs)} pairs'
        + (f', {cut} texts cut' if cut else '')
      )
      step = self._train(place, len(pairs))
      self._export(place, {'round': number, 'pairs': len(pairs)})
      self._say(f'round {number}: trained for {step} steps')
    for rest in (_ARRAYS, _RUN):
      shutil.rmtree(place / rest, ignore_errors=True)
    return place / MODEL

  def measure(self, number: int, encoder: Path, pairs: int) -> Round:
    """The record of a round, with its precision of sentence matching."""
    if self._held_out is None:
      return Round(number, encoder, pairs, None)
    file = self.place(number) / _PRECISION
    identity = [runs.digest_texts(side) for side in self._held_out]
    found = runs.read_json(file) if file.is_file() else {}
    if found.get('texts') != identity:
      forward, backward = match(*self._held_out, encoder)
      found = {
        'texts': identity,
        'source_to_target': forward,
        'target_to_source': backward,
      }
      runs.write_json(file, found)
    both = found['source_to_target'], found['target_to_source']
    self._say(
      f'round {number}: P@1 {both[0]:.4f} from source to target, '
      f'{both[1]:.4f} back'
    )
    return Round(number, encoder, pairs, both)

  def _train(self, place: Path, count: int) -> int:
    """Trains in `place/run`; returns the number of steps."""
    training = self._training
    rate = training.dropout_rate
    config = dataclasses.replace(
      self._bundle.config,
      dtype=training.dtype,
      dropout_rate=self._bundle.config.dropout_rate if rate is None else rate,
    )
    partitioner = partitioning.Partitioner()
    # A batch that is larger than the corpus would only repeat pairs.
    size = min(training.batch_size, count)
    steps = texts.count_steps(count, size, training.epochs)
    schedule = optimizers.linear(
      training.learning_rate, steps, math.ceil(steps * training.warmup)
    )
    result = loop.train(
      model=contrastive.ContrastiveModel(
        config,
        training.temperature,
        training.include_positive,
        training.parts,
      ),
      model_dir=place / _RUN,
      dataset=sentence_pairs.PairDataset(
        place / _ARRAYS,
        size,
        config.pad_id,
        partitioner.mesh.shape['data'] * training.parts,
        training.seed,
      ),
      optimizer=optimizers.adamw(schedule, weight_decay=training.weight_decay),
      train_steps=steps,
      intervals=loop.Intervals(
        log_every=max(1, min(100, steps // 10)), save_every=training.save_every
      ),
      partitioner=partitioner,
      initial_checkpoint_path=self.start,
      random_seed=training.seed,
      keep_checkpoints=1,
      quiet=self._quiet,
    )
    if result.reason in STOPPED:
      raise Stopped(result.reason)
    return result.step

  def _export(self, place: Path, about: Mapping[str, Any]) -> None:
    stored = orbax.open_weights(selection.find_checkpoint(place / _RUN))
    params = bundles.nest(
      {name: np.asarray(a.read(), np.float32) for name, a in stored.items()}
    )
    trained = dataclasses.replace(self._bundle, params=params['encoder'])
    with folders.new_folder(place / MODEL) as new:
      encoders.save_encoder(trained, new)
      encoders.write_mean_pooling(trained.config, new)
      runs.write_json(new / _MANIFEST, {**self._about(), **about})


def match(
  sources: Sequence[str], targets: Sequence[str], encoder: str | Path
) -> tuple[float, float]:
  """P@1 of sentence matching by cosine, from source to target and back.

  Args:
    sources: Sentences.
    targets: Their translations.
    encoder: The folder of an encoder, or the name of an installed one.
  """
  model = encoding.TextEncoder(encoders.load_encoder(kinds.folder(encoder)))
  x, y = (corpus.sentence_vectors(model, side) for side in (sources, targets))
  return (
    matching.precision(x, y, targets),
    matching.precision(y, x, sources),
  )


def _mine(
  place: Path,
  sources: Sequence[str],
  targets: Sequence[str],
  encoder: Path,
  how: Mining,
  progress: mining_runs.Progress | None,
) -> mining.Pairs:
  """The best pairs by the ratio margin of an encoder's vectors."""
  work = place / _MINING
  work.mkdir(exist_ok=True)
  mined = mining_runs.by_margin(
    work,
    sources,
    targets,
    encoding.TextEncoder(
      encoders.load_encoder(encoder),
      batch_tokens=how.batch_tokens,
      dtype=how.dtype,
    ),
    how.k,
    how.backend,
    progress,
  )
  kept = filters.pairs(
    [sources[n] for n in mined.sources],
    [targets[n] for n in mined.targets],
    how.max_overlap,
  )
  return mined.take(kept).first(how.best)


def _write_pairs(
  path: Path,
  pairs: mining.Pairs,
  sources: Sequence[str],
  targets: Sequence[str],
) -> None:
  files.write_lines(
    path,
    (
      json.dumps(
        {
          'source': sources[source],
          'target': targets[target],
          'score': round(float(score), 6),
        },
        ensure_ascii=False,
      )
      for source, target, score in zip(
        pairs.sources, pairs.targets, pairs.scores, strict=True
      )
    ),
  )
