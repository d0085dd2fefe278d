"""Trains a T5 to translate, on sentence pairs in memory.

UScore's translation system (Belouadi and Eger 2023, section 3.1), which makes
pseudo references. A pre-trained model is trained on mined pairs; trained once
more on parallel text, it is the system of appendix C. A stopped run resumes.
For models that need many devices or processes,
`recipes/uscore_translator_*.gin` train on the same files. Not here: mining
(`crosslingual/mining.py`), translating (`crosslingual/pseudo_references.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import loading, native, selection
from t5score_jax.data import folders, runs, vocab
from t5score_jax.errors import STOPPED, InputError, OptionError
from t5score_jax.fitting import fit
from t5score_jax.inputs import bucketing, datasets, texts
from t5score_jax.models import t5score
from t5score_jax.runtime import validation
from t5score_jax.training import evaluators, loop, optimizers

_MANIFEST = 'translator.json'
_PLAN = 'plan.json'
_ARRAYS, _TRAIN, _HELD_OUT, _RUN = 'arrays', 'train', 'held_out', 'run'
_LOSS = 'held_out/loss'
# Approximate number of examples per evaluation batch.
_ROWS = 64
# Evaluations on the held-out pairs: in an epoch, and in a run at most.
_EVALUATIONS, _MOST_EVALUATIONS = 2, 10
# Lengths of batches, 16, 24, 32, 48, ...; a program is compiled for each.
_LENGTHS = tuple(m * 2**n for n in range(3, 20) for m in (2, 3))
# A length that fewer pairs than this share need is left out.
_FEW = 0.05
_OPTIMIZERS = ('adamw', 'adafactor')

# Ids of the source and of the target of a pair.
_Ids = tuple[Sequence[int], Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings of the training; by default those of appendix D for mBART.

  Attributes:
    epochs: How often each pair is seen, on average.
    batch_size: Pairs per step; a multiple of the number of devices.
    learning_rate: The peak rate; it decays linearly to 0.
    warmup_steps: Steps in which the rate rises.
    optimizer: 'adamw', or 'adafactor' with absolute rates, as in
      `runs/train_generative.gin`. Adafactor needs less memory, and T5 was
      trained with it.
    dropout_rate: Dropout of the network in training.
    max_length: Tokens per text, `</s>` included; longer texts are truncated.
    held_out: Share of pairs, at least one, that are not trained on. Their loss
      selects the checkpoint; with 0 it is the last one.
    seed: Seed of the held-out pairs, the order and dropout.

  Raises:
    OptionError: A value is out of range.
  """

  epochs: float = 3.0
  batch_size: int = 4
  learning_rate: float = 5e-5
  warmup_steps: int = 0
  optimizer: str = 'adamw'
  dropout_rate: float = 0.1
  max_length: int = 128
  held_out: float = 0.02
  seed: int = 0

  def __post_init__(self) -> None:
    for kind, names in (
      (validation.Positive, ('batch_size', 'max_length')),
      (validation.NonNegative, ('warmup_steps', 'seed')),
      (validation.Share, ('dropout_rate', 'held_out')),
      (validation.Finite, ('epochs', 'learning_rate')),
    ):
      for name in names:
        validation.check(kind, OptionError, **{name: getattr(self, name)})
    if self.epochs <= 0 or self.learning_rate <= 0:
      raise OptionError('epochs and learning_rate must be positive')
    if self.max_length < 2:
      raise OptionError('max_length: at least 2 tokens (one and </s>)')
    if self.optimizer not in _OPTIMIZERS:
      raise OptionError(
        f'optimizer {self.optimizer!r}: use one of {", ".join(_OPTIMIZERS)}'
      )


@dataclasses.dataclass(frozen=True)
class Trained:
  """A finished training.

  Attributes:
    folder: The model's folder.
    pairs: Number of distinct pairs.
    held_out: Number of pairs that were not trained on.
    cut: Number of pairs with a text longer than `max_length`.
    step: The step of the chosen checkpoint.
    loss: The mean negative log-probability per target token on the held-out
      pairs at this step; None without such pairs.
  """

  folder: Path
  pairs: int
  held_out: int
  cut: int
  step: int
  loss: float | None


def train(
  pairs: Sequence[tuple[str, str]],
  start: str | Path,
  folder: str | Path,
  settings: Settings = Settings(),  # noqa: B008 (frozen)
  *,
  work: str | Path | None = None,
  say: Callable[[str], None] = lambda line: None,
  quiet: bool = True,
) -> Trained:
  """Trains a model to translate, or resumes the training.

  Args:
    pairs: Sources with their targets; a repeated pair counts once.
    start: The initial model: the name of an embedded one, or a folder.
    folder: Where the complete model is written (a bundle, `-m FOLDER`).
    settings: The settings.
    work: A folder for the training itself; by default `FOLDER.work`, which is
      removed at the end. The same call resumes there.
    say: Called with a line for each finished step.
    quiet: Whether the training loop prints nothing.

  Raises:
    InputError: There are no pairs, or a text is empty.
    RunError: A folder belongs to another run or to none.
    Stopped: A signal stopped the run; the same call resumes it.
    TrainingError: The loss is not finite.
    FileNotFoundError: There is no such model.
  """
  _check(pairs)
  return _train(pairs, start, folder, settings, work, say, quiet)


def train_language_model(
  sentences: Sequence[str],
  start: str | Path,
  folder: str | Path,
  settings: Settings = Settings(),  # noqa: B008
  *,
  work: str | Path | None = None,
  say: Callable[[str], None] = lambda line: None,
  quiet: bool = True,
) -> Trained:
  """Trains a model to predict sentences from empty inputs, or resumes.

  Its decoder is then a language model (`crosslingual/language_model.py`): the
  source of every sentence is empty.

  Args:
    sentences: The sentences; a repeated one counts once.
    start: See `train`, also for the other arguments and the errors raised.
    folder: Likewise.
    settings: Likewise.
    work: Likewise.
    say: Likewise.
    quiet: Likewise.
  """
  for number, sentence in enumerate(sentences, 1):
    if not sentence.strip():
      raise InputError(f'sentence {number} is empty')
  pairs = [('', sentence) for sentence in sentences]
  if not pairs:
    raise InputError('no sentences: a language model cannot be trained')
  return _train(pairs, start, folder, settings, work, say, quiet)


def _train(
  pairs: Sequence[tuple[str, str]],
  start: str | Path,
  folder: str | Path,
  settings: Settings,
  work: str | Path | None,
  say: Callable[[str], None],
  quiet: bool,
) -> Trained:
  pairs = list(dict.fromkeys((source, target) for source, target in pairs))
  model = loading.load_model(start)
  identity = {
    'pairs': _digest(pairs),
    'checkpoint': bundles.checkpoint_hash(model.params),
    'network': bundles.network_hash(model.config),
    'vocabulary': model.vocabulary.fingerprint()[:12],
    'settings': dataclasses.asdict(settings),
  }
  folder = Path(folder)
  if (finished := runs.read_manifest(folder, _MANIFEST)) is not None:
    runs.check_identity(folder, finished['run'], identity)
    return Trained(folder, **finished['result'])
  place = Path(work or f'{folder}.work')
  runs.claim(place, _PLAN, identity, 'choose another folder or remove this one')
  counts = _write_arrays(place / _ARRAYS, pairs, model, settings)
  say(
    f'{counts["pairs"]} pairs, {counts["held_out"]} of them held out'
    + (
      f'; {counts["cut"]} with a text of more than {settings.max_length} tokens'
      if counts['cut']
      else ''
    )
  )
  reason = _run(place, start, model, settings, counts, quiet)
  if reason in STOPPED:
    raise fit.Stopped(reason)
  chosen = selection.find_checkpoint(place / _RUN)
  step = int(chosen.name.rpartition('_')[2])
  loss = selection.numbers(chosen).get(_LOSS)
  result: dict[str, Any] = {**counts, 'step': step, 'loss': loss}
  _save(place / _RUN, folder, {'run': identity, 'result': result})
  if work is None:
    shutil.rmtree(place)
  say(
    f'{folder}: step {step}'
    + ('' if loss is None else f', held-out loss {loss:.4f} per token')
  )
  return Trained(folder, **result)


def _check(pairs: Sequence[tuple[str, str]]) -> None:
  if not len(pairs):
    raise InputError('no sentence pairs: a translator cannot be trained')
  for number, pair in enumerate(pairs, 1):
    if not all(text.strip() for text in pair):
      raise InputError(f'sentence pair {number} has an empty text')


def _digest(pairs: Sequence[tuple[str, str]]) -> str:
  sha256 = hashlib.sha256()
  for pair in pairs:
    sha256.update(json.dumps(pair).encode() + b'\n')
  return sha256.hexdigest()


def _write_arrays(
  folder: Path,
  pairs: Sequence[tuple[str, str]],
  model: bundles.Bundle,
  settings: Settings,
) -> dict[str, int]:
  """Writes the pairs as arrays unless they exist; returns their counts."""
  if not folder.is_dir():
    encoded, cut = [], np.zeros(len(pairs), bool)
    for side in zip(*pairs, strict=True):
      rows, long = vocab.encode_batch_for_model(
        [_cased(text, model) for text in side],
        model.vocabulary,
        settings.max_length,
      )
      encoded.append(rows)
      cut |= long
    ids: list[_Ids] = list(zip(*encoded, strict=True))
    held_out = 0
    if settings.held_out and len(pairs) > 1:
      held_out = max(1, round(settings.held_out * len(pairs)))
      held_out = min(held_out, len(pairs) - 1)
    order = np.random.default_rng(settings.seed).permutation(len(pairs))
    with folders.new_folder(folder) as new:
      if held_out:
        _save_arrays(new / _HELD_OUT, [ids[n] for n in order[:held_out]])
      for length, bucket in _buckets([ids[n] for n in order[held_out:]]):
        _save_arrays(new / _TRAIN / f'{length:06d}', bucket, length)
      counts = {
        'pairs': len(pairs),
        'held_out': held_out,
        'cut': int(cut.sum()),
      }
      runs.write_json(new / datasets.INFO_FILE, counts)
  return runs.read_json(folder / datasets.INFO_FILE)


def _cased(text: str, model: bundles.Bundle) -> str:
  return text.lower() if model.settings.get('lowercase') else text


def _buckets(ids: Sequence[_Ids]) -> list[tuple[int, list[_Ids]]]:
  """Sorts pairs by the smallest of `_LENGTHS` that holds both texts."""
  longest = np.array([max(map(len, pair)) for pair in ids])
  needed = np.array(_LENGTHS)[np.searchsorted(_LENGTHS, longest)]
  # From the shortest up, so that a small bucket goes into the next one.
  lengths = np.unique(needed)
  for length, longer in zip(lengths[:-1], lengths[1:], strict=True):
    if np.sum(needed == length) < _FEW * len(ids):
      needed[needed == length] = longer
  return [
    (int(length), [ids[int(n)] for n in np.flatnonzero(needed == length)])
    for length in np.unique(needed)
  ]


def _save_arrays(
  folder: Path, ids: Sequence[_Ids], length: int | None = None
) -> None:
  """Writes pairs as arrays, each as long as its longest text by default."""
  folder.mkdir(parents=True)
  for side, name in enumerate(
    ('encoder_input_tokens', 'decoder_target_tokens')
  ):
    width = length or max(len(pair[side]) for pair in ids)
    array = np.zeros((len(ids), width), np.int32)
    for row, pair in zip(array, ids, strict=True):
      row[: len(pair[side])] = pair[side]
    np.save(folder / f'{name}.npy', array)


def _run(
  place: Path,
  start: str | Path,
  bundle: bundles.Bundle,
  settings: Settings,
  counts: Mapping[str, int],
  quiet: bool,
) -> str:
  """Trains in `place/run`; returns the reason why training ended."""
  steps = max(
    1,
    texts.count_steps(
      counts['pairs'] - counts['held_out'], settings.batch_size, settings.epochs
    ),
  )
  evaluations = min(_EVALUATIONS * settings.epochs, _MOST_EVALUATIONS)
  every = math.ceil(steps / max(1.0, evaluations))
  network = t5score.GenerativeModel(
    dataclasses.replace(bundle.config, dropout_rate=settings.dropout_rate),
    normalize='tokens',
  )
  arrays = place / _ARRAYS
  chosen, measured = None, []
  if counts['held_out']:
    # As many rows as a multiple of a training batch, which fits the devices.
    rows = settings.batch_size * -(-_ROWS // settings.batch_size)
    measured = [
      evaluators.EvaluationLoss(
        network,
        datasets.ArrayDataset(arrays / _HELD_OUT, rows, shuffle=False),
        num_batches=math.ceil(counts['held_out'] / rows),
      )
    ]
    chosen = native.Selection(_LOSS, 'min')
  return loop.train(
    model=network,
    model_dir=place / _RUN,
    dataset=bucketing.BucketedDataset(
      [
        datasets.ArrayDataset(bucket, settings.batch_size, settings.seed + n)
        for n, bucket in enumerate(sorted((arrays / _TRAIN).iterdir()))
      ],
      seed=settings.seed,
    ),
    optimizer=_optimizer(settings, steps),
    train_steps=steps,
    intervals=loop.Intervals(
      log_every=min(100, every), save_every=every, eval_every=every
    ),
    evaluators=measured,
    selection=chosen,
    initial_checkpoint_path=start,
    random_seed=settings.seed,
    keep_checkpoints=1,
    vocabulary=bundle.vocabulary,
    quiet=quiet,
  ).reason


def _optimizer(settings: Settings, steps: int) -> optimizers.Optimizer:
  schedule = optimizers.linear(
    settings.learning_rate, steps, settings.warmup_steps
  )
  if settings.optimizer == 'adamw':
    return optimizers.adamw(schedule)
  return optimizers.adafactor(schedule, multiply_by_parameter_scale=False)


def _save(run: Path, folder: Path, manifest: Mapping[str, Any]) -> None:
  """Writes the chosen checkpoint as a bundle with a manifest."""
  model = loading.load_model(run)
  settings: dict[str, Any] = {**model.settings, 'name': folder.name}
  with folders.new_folder(folder) as new:
    bundles.save_bundle(
      new, dataclasses.replace(model, settings=settings), 'float32'
    )
    runs.write_json(new / _MANIFEST, manifest)
