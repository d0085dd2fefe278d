"""An estimator, trained on records that people rated, as gin describes it.

One folder holds what leads to it: arrays of what is learned from and of what
it is chosen by, the runs of `training.loop.train` (a head on the vectors of a
frozen encoder, perhaps the whole network after it), and the estimator at last,
which scores by itself. A run that was stopped goes on there. `t5score fit`
makes one estimator, `fitting/crossvalidation.py` one a fold. Not here: the
command lines, and agreement with people (`evaluation/`).
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
from t5score_jax.errors import STOPPED, T5ScoreError
from t5score_jax.fitting import text_cache
from t5score_jax.fitting.text_cache import Encoding
from t5score_jax.inference import encoding as encodings
from t5score_jax.inputs import datasets
from t5score_jax.runtime import configurables
from t5score_jax.training import loop

TRAIN, VALIDATION = PARTS = ('train', 'validation')
MODEL, TEXTS, TOKENS = 'model', 'texts', 'tokens'
# MODEL_DIRs of the first and the second phase.
RUN, FINE_TUNE = 'run', 'fine_tune'
_PLAN = 'plan.json'

# Makes gin's configuration anew: bindings that win over those of the user, and
# whether the whole network is to be tuned.
Configure = Callable[[Sequence[str], bool], None]
Say = Callable[[str], None]


class Stopped(T5ScoreError):
  """A signal ended a run; the same command resumes it."""

  def __init__(self, reason: str):
    """Takes `reason` of `loop.Outcome`."""
    super().__init__(f'{reason}; the same command resumes the run')
    self.exit_code = STOPPED[reason]


@dataclasses.dataclass(frozen=True)
class FineTuning:
  """What follows the training of a head on vectors; gin binds it.

  Attributes:
    epochs: Of the whole network, by runs/comes_fine_tune.gin; 0 for none.
  """

  epochs: float = 0


@dataclasses.dataclass(frozen=True)
class Targets:
  """In which unit ratings are learned; gin binds it.

  Attributes:
    standardized: Whether each dimension is brought to mean 0 and deviation 1 of
      the training ratings while it trains, so that all weigh alike and no step
      is spent on the mean. The estimator's last layer is scaled back, so that
      it says ratings. The paper says nothing about it.
  """

  standardized: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
  """Whose a folder is, so that a command goes on with nothing but its own.

  Attributes:
    folder: Where `plan.json` says it.
    identity: What was asked, JSON.
  """

  folder: Path
  identity: Mapping[str, Any]

  def claim(self, configuration: str) -> None:
    """Writes whose the folder is, or checks it.

    Raises:
      RunError: It belongs to something else.
    """
    runs.claim(
      self.folder,
      _PLAN,
      {**self.identity, 'configuration': configuration},
      'choose another --work',
    )


def digest(segments: Sequence[Segment]) -> str:
  """A name for records, 64 hexadecimal digits."""
  found = hashlib.sha256()
  for segment in segments:
    found.update(repr(segment).encode('utf-8', 'surrogatepass'))
  return found.hexdigest()


class Fitting:
  """How estimators are made of instances: gin's words, and an encoder.

  Attributes:
    encoding: What texts become.
    start: The encoder or estimator to start from.
    epochs: Of the whole network after the head; 0 for none.
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
    """Reads the configuration, and claims the folder.

    Args:
      configure: Makes gin's configuration.
      ratings: The dimensions that people rated, an output each.
      plan: Whose the folder is.
      say: Told what was done, a line each.
      quiet: Whether training prints nothing.

    Raises:
      RunError: The folder belongs to something else.
      ValueError: Ratings and configuration do not fit.
      CheckpointError: The encoder's folder is of another shape.
    """
    self._configure = configure
    self._plan = plan
    self._say = say
    self._quiet = quiet
    configure((), False)
    self.encoding: Encoding = configurables.call(Encoding)
    self._standardized = configurables.call(Targets).standardized
    if self._standardized and self.encoding.config.final_activation:
      raise ValueError(
        'STANDARDIZED = True: outputs go through final_activation = '
        f'{self.encoding.config.final_activation!r}, and cannot be scaled back'
      )
    self.epochs = 0.0
    if self.encoding.form == 'vectors':
      self.epochs = configurables.call(FineTuning).epochs
    if self.epochs and self.encoding.windows:
      raise ValueError(
        'WINDOWS = True: the whole network, which FINE_TUNE_EPOCHS trains, '
        'reads texts that are cut'
      )
    outputs = self.encoding.config.outputs
    if len(outputs) != len(ratings):
      raise ValueError(
        f'the estimator has {len(outputs)} outputs ({", ".join(outputs)}), '
        f'but there are {len(ratings)} ratings ({", ".join(ratings)}): set '
        'OUTPUTS'
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
    """Trains an estimator into `place/model`, or goes on with it.

    Args:
      place: The folder of this estimator.
      parts: What is learned from ('train') and chosen by ('validation'). Rows
        without any rating are left out.
      texts: Those of the instances.
      table: Folder of `texts`, prepared as `encoding` says.
      tokens: Where they are kept as tokens, if the whole network follows.
      name: Of the estimator, for what is said.
      about: What `info.json` of each part says besides.

    Returns:
      How the choice came out, for a person; '' where none was made.

    Raises:
      Stopped: By a signal; the next call goes on.
    """
    self.write_arrays(place, parts, about or {})
    bindings = self.bindings(place, table)
    run = place / RUN
    said = self._run(name, run, bindings, False)
    if self.epochs:
      wanted = dataclasses.replace(self.encoding, form='tokens')
      made = text_cache.table(tokens, texts, wanted, self.start)
      whole = place / FINE_TUNE
      more = _bindings(MODEL_DIR=whole, HEAD=run, TEXTS=made.folder)
      said = self._run(name, whole, [*bindings, *more], True)
      run = whole
    with folders.new_folder(place / MODEL) as new:
      regressors.save(self._assemble(place, run), new)
    return said

  def bindings(self, place: Path, table: Path) -> list[str]:
    """What gin has to know of the first phase, as `NAME = value`."""
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
    """Writes the arrays of `fit`, those that are not there yet."""
    rated = {part: found.rated() for part, found in parts.items()}
    mean, deviation = self._scale(rated[TRAIN].ratings)
    for part, found in rated.items():
      folder = place / part
      if folder.is_dir():
        continue
      arrays = found.arrays()
      arrays['ratings'] = (arrays['ratings'] - mean) / deviation
      described = {
        'instances': len(found),
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
    # Files that were edited meanwhile would mix two configurations.
    self._configure((), False)
    self._plan.claim(gin.config_str())
    self._configure(bindings, fine_tune)
    outcome = configurables.call(loop.train, quiet=self._quiet)
    if outcome.reason in STOPPED:
      raise Stopped(outcome.reason)
    best = outcome.best_step
    chosen = f'; best at step {best}' if best is not None else ''
    what = 'tuned whole' if fine_tune else 'trained'
    before = f'{name}: ' if name else ''
    self._say(
      f'{before}{what}, {outcome.reason} at step {outcome.step}{chosen}'
    )
    numbers = selection.numbers(selection.find_checkpoint(run))
    told = [f'{key} {numbers[key]:.4f}' for key in sorted(numbers)]
    return f'step {best or outcome.step}: {", ".join(told)}' if told else ''

  def _scale(self, ratings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted from each dimension, and what it is divided by."""
    width = ratings.shape[1]
    mean, deviation = np.zeros(width), np.ones(width)
    if self._standardized:
      for n, column in enumerate(ratings.T):
        rated = column[~np.isnan(column)].astype(np.float64)
        if len(rated) and np.ptp(rated):
          mean[n], deviation[n] = rated.mean(), rated.std()
    return mean.astype(np.float32), deviation.astype(np.float32)

  def _assemble(self, place: Path, run: Path) -> regressors.Regressor:
    """The best checkpoint of a run as an estimator that scores by itself."""
    stored = orbax.open_weights(selection.find_checkpoint(run))
    params: dict[str, Any] = bundles.nest(
      {n: np.asarray(a.read(), np.float32) for n, a in stored.items()}
    )
    # A head alone stands on the encoder whose vectors it has learned from.
    params = {'encoder': self.start.params['encoder'], **params}
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
  """What came of `fit`.

  Attributes:
    folder: The estimator's, or None where it was only prepared.
    table: The folder of texts.
    instances: How many there are of each part.
    chosen: The numbers of the checkpoint that was taken, in words.
    bindings: For `t5score train`, as `NAME = value`.
  """

  folder: Path | None
  table: text_cache.Table
  instances: Mapping[str, int]
  chosen: str
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
  """Trains one estimator into `WORK/model`.

  Args:
    parts: Records to learn from ('train') and to choose by ('validation').
      People's ratings of one output are rows of their own.
    ratings: The dimensions, one for each output, in its order.
    work: The folder; made if need be.
    configure: Makes gin's configuration.
    prepare_only: Whether to write texts and arrays and train nothing, so that
      `training.loop.train` does it elsewhere, into `WORK/run`; another call
      makes the estimator of it.
    say: Told what was done, a line each.
    progress: Told how many texts are encoded.
    quiet: Whether training prints nothing.

  Raises:
    RunError: The folder belongs to something else.
    RecordError: A record lacks what is needed.
    Stopped: By a signal; the next call goes on.
    ValueError: Ratings and configuration do not fit, or a part has none.
  """
  place = Path(work)
  identity: dict[str, Any] = {'ratings': list(ratings)}
  identity |= {f'{part} records': digest(parts[part]) for part in PARTS}
  plan = Plan(place, identity)
  fitting = Fitting(configure, ratings, plan, say=say, quiet=quiet)
  texts = instances.Texts()
  reference = fitting.encoding.config.reference
  found = {
    part: instances.build(parts[part], ratings, texts, reference)
    for part in PARTS
  }
  for part, those in found.items():
    if not len(those.rated()):
      raise ValueError(f'no record for {part} has a rating')
  table = text_cache.table(
    place / TEXTS, texts, fitting.encoding, fitting.start, progress
  )
  say(table.about())
  counts = {part: len(those.rated()) for part, those in found.items()}
  bindings = fitting.bindings(place, table.folder)
  chosen = ''
  if prepare_only:
    fitting.write_arrays(place, found, {})
    return Fitted(None, table, counts, chosen, bindings)
  if not (place / MODEL).is_dir():
    chosen = fitting.fit(place, found, texts, table.folder, place / TOKENS)
  return Fitted(place / MODEL, table, counts, chosen, bindings)


def _bindings(**values: Path) -> list[str]:
  return [f'{name} = {str(value)!r}' for name, value in values.items()]
