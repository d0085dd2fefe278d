"""Trains a regressor on rated records, as configured by gin.

One folder holds the arrays to train and to select the checkpoint on, the runs
of `training.loop.train` (a head on the vectors of a frozen encoder, optionally
followed by fine-tuning of the whole network), and finally the complete
regressor. A stopped run resumes there. `t5score fit` trains one regressor,
`fitting/crossvalidation.py` one for each fold. Not here: the command lines and
agreement with human judgments (`evaluation/`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import regressors, selection
from t5score_jax.checkpoints.formats import orbax
from t5score_jax.data import folders, instances, runs
from t5score_jax.data.records import Segment
from t5score_jax.errors import STOPPED, T5ScoreError, UsageError
from t5score_jax.fitting import text_cache
from t5score_jax.fitting.text_cache import Encoding
from t5score_jax.inference import encoding as encodings
from t5score_jax.inputs import datasets
from t5score_jax.nn import heads
from t5score_jax.runtime import configurables
from t5score_jax.training import loop

TRAIN, VALIDATION = PARTS = ('train', 'validation')
MODEL, TEXTS, TOKENS = 'model', 'texts', 'tokens'
# MODEL_DIRs of the first and the second phase.
RUN, FINE_TUNE = 'run', 'fine_tune'
_PLAN = 'plan.json'
# With fewer steps a regressor hardly differs from its start.
_FEW_STEPS = 20

# Rebuilds gin's configuration. Arguments: bindings that override the user's,
# and whether the whole network is tuned.
Configure = Callable[[Sequence[str], bool], None]
Say = Callable[[str], None]


class Stopped(T5ScoreError):
  """A signal ended a run; the same command resumes it."""

  def __init__(self, reason: str):
    """Takes `reason` of `loop.Result`."""
    super().__init__(f'{reason}; the same command resumes the run')
    self.exit_code = STOPPED[reason]


@dataclasses.dataclass(frozen=True)
class FineTuning:
  """Fine-tuning after a head is trained on vectors; bound by gin.

  Attributes:
    epochs: Epochs of the whole network (runs/comes_fine_tune.gin); 0: none.
  """

  epochs: float = 0


@dataclasses.dataclass(frozen=True)
class Targets:
  """Scale of the ratings in training; bound by gin.

  Attributes:
    standardized: Whether the training ratings of each dimension are
      standardized to mean 0 and deviation 1. All dimensions then have equal
      weight, and no step is spent on the mean. The last layer is scaled back,
      so the regressor predicts ratings. Not part of the paper.
  """

  standardized: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
  """Identifies the run that owns a work folder.

  Attributes:
    folder: The folder, which holds `plan.json`.
    identity: What the run depends on besides gin's configuration, JSON.
  """

  folder: Path
  identity: Mapping[str, Any]

  def claim(self, configuration: str) -> None:
    """Creates the folder for this run, or checks that it is this run's.

    Raises:
      UsageError: The folder belongs to another run.
    """
    identity = {**self.identity, 'configuration': configuration}
    try:
      runs.claim(self.folder, _PLAN, identity, 'choose another --work')
    except runs.RunError as error:
      raise UsageError(str(error)) from error


def digest(segments: Sequence[Segment]) -> str:
  """Returns the SHA-256 of records, in hexadecimal."""
  sha256 = hashlib.sha256()
  for segment in segments:
    sha256.update(repr(segment).encode('utf-8', 'surrogatepass'))
  return sha256.hexdigest()


class Fitting:
  """Trains regressors on instances, with one configuration and encoder.

  Attributes:
    encoding: How texts are encoded.
    start: The encoder or regressor to start from.
    epochs: Epochs of the whole network after the head; 0: none.
    notes: Warnings about finished runs.
  """

  def __init__(
    self,
    configure: Configure,
    ratings: Sequence[str],
    plan: Plan,
    *,
    say: Say = lambda line: None,
    quiet: bool = True,
  ):
    """Reads the configuration and claims the folder.

    Args:
      configure: Sets gin's configuration.
      ratings: The rated dimensions, one for each output.
      plan: The run that owns the folder.
      say: Called with a line for each finished step.
      quiet: Whether the training loop prints nothing.

    Raises:
      UsageError: The folder belongs to another run.
      ValueError: Ratings and configuration do not fit.
      CheckpointError: The folder's encoder has another shape.
    """
    self._configure = configure
    self._plan = plan
    self._say = say
    self._quiet = quiet
    self.notes: list[str] = []
    configure((), False)
    self.encoding: Encoding = configurables.call(Encoding)
    self._standardized = configurables.call(Targets).standardized
    if self._standardized and self.encoding.config.final_activation:
      raise UsageError(
        'STANDARDIZED = True: outputs go through final_activation = '
        f'{self.encoding.config.final_activation!r}, and cannot be scaled back'
      )
    self.epochs = 0.0
    if self.encoding.form == 'vectors':
      self.epochs = configurables.call(FineTuning).epochs
    if self.epochs and self.encoding.windows:
      raise UsageError(
        'WINDOWS = True: the whole network, which FINE_TUNE_EPOCHS trains, '
        'reads texts that are cut'
      )
    outputs = self.encoding.config.outputs
    if len(outputs) != len(ratings):
      raise UsageError(
        f'the regressor has {len(outputs)} outputs ({", ".join(outputs)}), '
        f'but there are {len(ratings)} ratings ({", ".join(ratings)}): give '
        f'--gin.OUTPUTS="{tuple(ratings)!r}"'
      )
    plan.claim(gin.config_str())
    self.start = text_cache.load_start(self.encoding)

  def fit(
    self,
    place: Path,
    parts: Mapping[str, instances.Instances],
    texts: instances.Texts,
    table: Path,
    tokens: Path,
    *,
    name: str = '',
    about: Mapping[str, Mapping[str, Any]] | None = None,
  ) -> str:
    """Trains a regressor into `place/model`, or resumes its training.

    Args:
      place: The folder of this regressor.
      parts: Instances to train ('train') and to select the checkpoint on
        ('validation'). Rows without any rating are left out.
      texts: The texts of the instances.
      table: Folder of `texts`, prepared as `encoding` says.
      tokens: Folder of the texts as tokens, for fine-tuning.
      name: The regressor's name in progress lines.
      about: Further entries of each part's `info.json`.

    Returns:
      A description of the selected checkpoint; '' if none was selected.

    Raises:
      Stopped: A signal stopped the run; the next call resumes it.
    """
    self.write_arrays(place, parts, about or {})
    bindings = self.bindings(place, table)
    run = place / RUN
    chosen = self._run(name, run, bindings, False)
    if self.epochs:
      wanted = dataclasses.replace(self.encoding, form='tokens')
      made = text_cache.table(tokens, texts, wanted, self.start)
      whole = place / FINE_TUNE
      more = _bindings(MODEL_DIR=whole, HEAD=run, TEXTS=made.folder)
      chosen = self._run(name, whole, [*bindings, *more], True)
      run = whole
    with folders.new_folder(place / MODEL) as new:
      regressors.save(self._assemble(place, run), new)
    return chosen

  def bindings(self, place: Path, table: Path) -> list[str]:
    """Returns gin's bindings of the first phase, as `NAME = value`."""
    return _bindings(
      ARRAYS=place / TRAIN,
      VALIDATION_ARRAYS=place / VALIDATION,
      TEXTS=table,
      MODEL_DIR=place / RUN,
    )

  def write_arrays(
    self,
    place: Path,
    parts: Mapping[str, instances.Instances],
    about: Mapping[str, Mapping[str, Any]],
  ) -> None:
    """Writes the arrays of `fit` that do not exist yet."""
    rated = {part: rows.rated() for part, rows in parts.items()}
    mean, deviation = self._scale(rated[TRAIN].ratings)
    for part, rows in rated.items():
      folder = place / part
      if folder.is_dir():
        continue
      arrays = rows.arrays()
      arrays['ratings'] = (arrays['ratings'] - mean) / deviation
      described = {
        'instances': len(rows),
        **about.get(part, {}),
        'mean': mean.tolist(),
        'deviation': deviation.tolist(),
      }
      with datasets.new_array_folder(folder) as new:
        for name, array in arrays.items():
          np.save(new / f'{name}.npy', array)
        (new / datasets.INFO_FILE).write_text(json.dumps(described) + '\n')

  def _run(
    self, name: str, run: Path, bindings: Sequence[str], fine_tune: bool
  ) -> str:
    # Gin files edited since the start would mix two configurations.
    self._configure((), False)
    self._plan.claim(gin.config_str())
    self._configure(bindings, fine_tune)
    result = configurables.call(loop.train, quiet=self._quiet)
    if result.reason in STOPPED:
      raise Stopped(result.reason)
    best = result.best_step
    chosen = f'; best at step {best}' if best is not None else ''
    what = 'tuned whole' if fine_tune else 'trained'
    before = f'{name}: ' if name else ''
    if not fine_tune:  # By article: a step has all of its instances.
      self._note_short_run(before, run.parent / TRAIN, result.step)
    self._say(f'{before}{what}, {result.reason} at step {result.step}{chosen}')
    numbers = selection.numbers(selection.find_checkpoint(run))
    values = [f'{key} {numbers[key]:.4f}' for key in sorted(numbers)]
    return f'step {best or result.step}: {", ".join(values)}' if values else ''

  def _note_short_run(self, before: str, arrays: Path, step: int) -> None:
    """Notes a run too short to learn much."""
    try:
      batch = gin.query_parameter('%BATCH_SIZE')
    except ValueError:
      return  # A configuration without the macro.
    if not batch:  # Batches of a number of tokens.
      return
    count = len(np.load(arrays / 'ratings.npy', mmap_mode='r'))
    if step < _FEW_STEPS or step * batch < count:
      self.notes.append(
        f'{before}only {step} steps of {batch} instances, '
        f'{step * batch / count:.1f} epochs of {count}: too few to learn much; '
        'raise EPOCHS, lower BATCH_SIZE, or give more records'
      )

  def _scale(self, ratings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the deviation of each dimension."""
    width = ratings.shape[1]
    mean, deviation = np.zeros(width), np.ones(width)
    if self._standardized:
      for n, column in enumerate(ratings.T):
        rated = column[~np.isnan(column)].astype(np.float64)
        if len(rated) and np.ptp(rated):
          mean[n], deviation[n] = rated.mean(), rated.std()
    return mean.astype(np.float32), deviation.astype(np.float32)

  def _assemble(self, place: Path, run: Path) -> regressors.Regressor:
    """Assembles a complete regressor from the best checkpoint of a run."""
    stored = orbax.open_weights(selection.find_checkpoint(run))
    params: dict[str, Any] = bundles.nest(
      {n: np.asarray(a.read(), np.float32) for n, a in stored.items()}
    )
    # A head alone uses the encoder whose vectors it was trained on.
    parts = heads.ENCODER_PARTS
    kept = {n: part for n, part in self.start.params.items() if n in parts}
    params = {**kept, **params}
    config = dataclasses.replace(
      self.encoding.config, encoder=self.start.config.encoder
    )
    info = place / TRAIN / datasets.INFO_FILE
    scale = json.loads(info.read_text('utf-8'))
    last = params['estimator'][f'layers_{len(config.hidden_sizes)}']
    deviation = np.float32(scale['deviation'])
    last['kernel'] = last['kernel'] * deviation
    last['bias'] = last['bias'] * deviation + np.float32(scale['mean'])
    settings = self.encoding.settings
    return regressors.Regressor(config, params, self.start.tokenizer, settings)


@dataclasses.dataclass(frozen=True)
class Fitted:
  """Result of `fit`.

  Attributes:
    folder: The regressor's folder; None if training was only prepared.
    table: The folder of texts.
    instances: Number of instances of each part.
    chosen: Description of the selected checkpoint.
    notes: Warnings.
    bindings: Gin bindings for `t5score train`, as `NAME = value`.
  """

  folder: Path | None
  table: text_cache.Table
  instances: Mapping[str, int]
  chosen: str
  notes: Sequence[str]
  bindings: Sequence[str]


def fit(
  parts: Mapping[str, Sequence[Segment]],
  ratings: Sequence[str],
  work: str | Path,
  configure: Configure,
  *,
  prepare_only: bool = False,
  say: Say = lambda line: None,
  progress: encodings.Progress | None = None,
  quiet: bool = True,
) -> Fitted:
  """Trains a regressor into `WORK/model`.

  Args:
    parts: Records to train ('train') and to select the checkpoint on
      ('validation'). Each annotator's rating of an output is a separate row.
    ratings: The dimensions, one for each output, in order.
    work: The folder; created if needed.
    configure: Sets gin's configuration.
    prepare_only: Whether only texts and arrays are written, so that
      `training.loop.train` can train elsewhere, into `WORK/run`. Another call
      then assembles the regressor.
    say: Called with a line for each finished step.
    progress: Called with the number of encoded texts.
    quiet: Whether training prints nothing.

  Raises:
    UsageError: The folder belongs to another run.
    RecordError: A record lacks what is needed.
    Stopped: A signal stopped the run; the next call resumes it.
    ValueError: Ratings and configuration do not fit, or a part has none.
  """
  place = Path(work)
  identity: dict[str, Any] = {'ratings': list(ratings)}
  identity |= {f'{part} records': digest(parts[part]) for part in PARTS}
  plan = Plan(place, identity)
  fitting = Fitting(configure, ratings, plan, say=say, quiet=quiet)
  texts = instances.Texts()
  reference = fitting.encoding.config.reference
  built = {
    part: instances.build(parts[part], ratings, texts, reference)
    for part in PARTS
  }
  for part, rows in built.items():
    if not len(rows.rated()):
      raise UsageError(f'no record for {part} has a rating')
  table = text_cache.table(
    place / TEXTS, texts, fitting.encoding, fitting.start, progress
  )
  say(table.about())
  counts = {part: len(rows.rated()) for part, rows in built.items()}
  bindings = fitting.bindings(place, table.folder)
  chosen = ''
  if prepare_only:
    fitting.write_arrays(place, built, {})
    return Fitted(None, table, counts, chosen, (), bindings)
  if not (place / MODEL).is_dir():
    chosen = fitting.fit(place, built, texts, table.folder, place / TOKENS)
  return Fitted(place / MODEL, table, counts, chosen, fitting.notes, bindings)


def _bindings(**values: Path) -> list[str]:
  return [f'{name} = {str(value)!r}' for name, value in values.items()]
