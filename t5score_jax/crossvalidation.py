"""Cross-validation of an estimator: what `t5score crossvalidate` does.

Documents are divided into folds; for each an estimator is trained by
`training.loop.train` as gin describes it, chosen by the next fold and applied
to its own; the predictions of all folds are joined (COMES, section 4.1).
Everything lies in one folder, in which a run that was stopped goes on. Not
here: the command line (`commands/crossvalidate.py`), and agreement with people
(`evaluation/`).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np

from t5score_jax import encoding, estimates, text_tables
from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import estimators, orbax, selection
from t5score_jax.data import files, instances
from t5score_jax.data.records import Segment
from t5score_jax.embedding import TextEmbedder
from t5score_jax.text_tables import Encoding
from t5score_jax.training import inputs, loop

PARTS = ('test', 'validation')
_PLAN = 'plan.json'

# Makes gin's configuration anew: bindings that win over those of the user, and
# whether the whole network is to be tuned.
Configure = Callable[[Sequence[str], bool], None]


class PlanError(ValueError):
  """The folder belongs to another cross-validation."""


class Stopped(Exception):
  """A run was told to stop; `reason` as in `loop.Outcome`."""

  def __init__(self, reason: str):
    """Keeps why."""
    super().__init__(reason)
    self.reason = reason


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
      a fold's training ratings while it trains, so that all weigh alike and no
      step is spent on the mean. The estimator's last layer is scaled back, so
      that it says ratings. The paper says nothing about it.
  """

  standardized: bool = False


@dataclasses.dataclass(frozen=True)
class Question:
  """What is cross-validated.

  Attributes:
    ratings: The dimensions, names of ratings in the records; the estimator has
      an output for each, in this order.
    by: The field that is never divided between folds.
    folds: How many.
    seed: Of the division.
    part: What predictions are made of: 'test', or 'validation' for choosing
      settings without a look at the test.
  """

  ratings: tuple[str, ...]
  by: str = 'document'
  folds: int = 10
  seed: int = 0
  part: str = 'test'

  def __post_init__(self) -> None:
    if self.part not in PARTS:
      raise ValueError(f'part {self.part!r}: use one of {", ".join(PARTS)}')


@dataclasses.dataclass(frozen=True)
class Predictions:
  """What the models of all folds say about records.

  Attributes:
    segments: N records, one for each output of a system, ratings averaged over
      people.
    values: float32 [N, D], each by the model that has not seen its document;
      or [folds, N, D], by every model, for other data.
    fold: The fold whose model it was, int32 [N]; None for other data.
    table: The folder of texts.
  """

  segments: list[Segment]
  values: np.ndarray
  fold: np.ndarray | None
  table: text_tables.Table


@dataclasses.dataclass(frozen=True)
class _Data:
  """Records, made ready for an estimator."""

  segments: list[Segment]
  rows: instances.Instances
  texts: instances.Texts
  table: text_tables.Table


class CrossValidation:
  """The folds of one question in one folder.

  `WORK/plan.json` says whose the folder is; `texts/` and `texts_NAME/` hold
  texts, `fold_K/` the arrays, the runs (`run/`, `fine_tune/`), the estimator
  (`model/`) and the predictions (`test.npz`, ...) of fold K, counted from 1.
  """

  def __init__(
    self,
    segments: Sequence[Segment],
    question: Question,
    work: str | Path,
    configure: Configure,
    *,
    texts: str | Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: encoding.Progress | None = None,
    quiet: bool = True,
  ):
    """Reads the configuration and divides the documents.

    Args:
      segments: Records with a source each; people's ratings of one output are
        rows of their own.
      question: What is asked.
      work: The folder; made if need be.
      configure: Makes gin's configuration.
      texts: Folder of the texts of `segments`, to share it between runs;
        `WORK/texts` by default.
      say: Told what was done, a line each.
      progress: Told how many texts are encoded.
      quiet: Whether training prints nothing.

    Raises:
      PlanError: The folder belongs to something else.
      RecordError: A record lacks what is needed.
      ValueError: The question and the configuration do not fit.
    """
    self._work = Path(work)
    self._configure = configure
    self._say = say
    self._progress = progress
    self._quiet = quiet
    self.question = question
    configure((), False)
    self.encoding: Encoding = gin.get_configurable(Encoding)()
    self._standardized = gin.get_configurable(Targets)().standardized
    if self._standardized and self.encoding.config.final_activation:
      raise ValueError(
        'STANDARDIZED = True: outputs go through final_activation = '
        f'{self.encoding.config.final_activation!r}, and cannot be scaled back'
      )
    self._epochs = 0.0
    if self.encoding.form == 'vectors':
      self._epochs = gin.get_configurable(FineTuning)().epochs
    if self._epochs and self.encoding.windows:
      raise ValueError(
        'WINDOWS = True: the whole network, which FINE_TUNE_EPOCHS trains, '
        'reads texts that are cut'
      )
    outputs = self.encoding.config.outputs
    if len(outputs) != len(question.ratings):
      raise ValueError(
        f'the estimator has {len(outputs)} outputs ({", ".join(outputs)}), '
        f'but there are {len(question.ratings)} ratings '
        f'({", ".join(question.ratings)}): set OUTPUTS'
      )
    self._segments = list(segments)
    self._keys = instances.keys(self._segments, question.by)
    self.folds = instances.folds(self._keys, question.folds, question.seed)
    rated = self._segments, question.ratings
    instances.check_folds(self.folds, self._keys, *rated)
    self._claim(gin.config_str())
    self.start = text_tables.load_start(self.encoding)
    self._texts = Path(texts) if texts else self._work / 'texts'

  @functools.cached_property
  def _judged(self) -> _Data:
    """The records as outputs, each once, with averaged ratings."""
    return self._prepare(self._segments, self._texts)

  def run(self) -> Predictions:
    """Trains what is not trained yet, and predicts.

    Raises:
      Stopped: By a signal; the next call goes on.
    """
    data = self._judged
    self._say(data.table.about())
    keys = np.array(instances.keys(data.segments, self.question.by))
    width = len(self.question.ratings)
    values = np.full((len(keys), width), np.nan, np.float32)
    owner = np.zeros(len(keys), np.int32)
    for number, fold in enumerate(self.folds, 1):
      rows = np.isin(keys, getattr(fold, self.question.part))
      values[rows] = self._kept(
        number, self.question.part, data, rows, self.question.part
      )
      owner[rows] = number
    return Predictions(data.segments, values, owner, data.table)

  def also(self, name: str, segments: Sequence[Segment]) -> Predictions:
    """Applies every fold's model to other records.

    Args:
      name: Of the data, for files.
      segments: The records; those of one output are averaged.
    """
    data = self._prepare(segments, self._work / f'texts_{name}')
    self._say(f'{name}: {data.table.about()}')
    everything = np.ones(len(data.segments), bool)
    found = [
      self._kept(number, f'also_{name}', data, everything, name)
      for number in range(1, len(self.folds) + 1)
    ]
    return Predictions(data.segments, np.stack(found), None, data.table)

  def model(self, number: int) -> estimators.Estimator:
    """The estimator of a fold, trained if need be.

    Args:
      number: Of the fold, from 1.

    Raises:
      Stopped: By a signal; the next call goes on.
    """
    folder = self._fold(number) / 'model'
    if not folder.is_dir():
      self._train(number, folder)
    return estimators.load(folder)

  def _fold(self, number: int) -> Path:
    return self._work / f'fold_{number}'

  def _prepare(self, segments: Sequence[Segment], folder: Path) -> _Data:
    judged = instances.averaged(segments)
    texts = instances.Texts()
    found = instances.build(
      judged, self.question.ratings, texts, self.encoding.config.reference
    )
    table = text_tables.table(
      folder, texts, self.encoding, self.start, self._progress
    )
    return _Data(judged, found, texts, table)

  def _kept(
    self, number: int, name: str, data: _Data, rows: np.ndarray, what: str
  ) -> np.ndarray:
    """Predictions of a fold's model, computed once: float32 [rows, D]."""
    identity = f'{data.texts.digest()} {int(rows.sum())}'
    file = self._fold(number) / f'{name}.npz'
    if file.is_file():
      with np.load(file) as stored:
        if str(stored['identity']) == identity:
          return np.asarray(stored['values'])
    model = self.model(number)
    values = self._predict(model, data, rows)
    with files.write_atomically(file, 'wb') as out:
      np.savez(out, values=values, identity=identity)
    self._say(f'fold {number}: {len(values)} outputs of {what} scored')
    return values

  def _predict(
    self, model: estimators.Estimator, data: _Data, rows: np.ndarray
  ) -> np.ndarray:
    chosen = data.rows.of_records(rows)
    if self.encoding.form == 'vectors' and not self._epochs:
      layers = np.load(data.table.folder / 'vectors.npy', mmap_mode='r')
      vectors = estimates.mixed(model, layers)
    else:
      vectors = self._embedded(model, data, chosen)
    values = estimates.outputs(model, vectors, chosen)
    return estimates.best_reference(values, chosen.record)

  def _embedded(
    self,
    model: estimators.Estimator,
    data: _Data,
    chosen: instances.Instances,
  ) -> np.ndarray:
    """Vectors of the texts that are needed, by a fold's own encoder."""
    arrays = [chosen.hypothesis, chosen.source]
    if chosen.reference is not None:
      arrays.append(chosen.reference)
    needed = np.unique(np.concatenate(arrays))
    texts = list(data.texts)
    embedder = TextEmbedder(model, max_length=self.encoding.max_length)
    found = embedder.vectors([texts[n] for n in needed], self._progress)
    width = model.config.encoder.emb_dim
    vectors = np.zeros((len(texts), width), np.float32)
    vectors[needed] = found.values
    return vectors

  def _train(self, number: int, folder: Path) -> None:
    """Trains a fold's estimator into `folder`, or goes on with it."""
    place = self._fold(number)
    arrays = {part: place / part for part in ('train', 'validation')}
    self._write_arrays(number, arrays)
    bindings = _bindings(
      ARRAYS=arrays['train'],
      VALIDATION_ARRAYS=arrays['validation'],
      TEXTS=self._judged.table.folder,
    )
    run = place / 'run'
    self._run(number, [*bindings, *_bindings(MODEL_DIR=run)], False)
    if self._epochs:
      whole = place / 'fine_tune'
      tokens = self._tokens()
      self._run(
        number,
        [*bindings, *_bindings(MODEL_DIR=whole, HEAD=run, TEXTS=tokens)],
        True,
      )
      run = whole
    # The folder appears whole or not at all.
    new = place / '.model'
    shutil.rmtree(new, ignore_errors=True)
    estimators.save(self._assemble(number, run), new)
    new.rename(folder)

  def _run(self, number: int, bindings: Sequence[str], fine_tune: bool) -> None:
    # Files that were edited meanwhile would mix two configurations.
    self._configure((), False)
    self._claim(gin.config_str())
    self._configure(bindings, fine_tune)
    outcome = gin.get_configurable(loop.train)(quiet=self._quiet)
    if outcome.reason in ('interrupted', 'preempted'):
      raise Stopped(outcome.reason)
    best = outcome.best_step
    chosen = f'; best at step {best}' if best is not None else ''
    what = 'tuned whole' if fine_tune else 'trained'
    self._say(
      f'fold {number}: {what}, {outcome.reason} at step {outcome.step}{chosen}'
    )

  def _tokens(self) -> Path:
    wanted = dataclasses.replace(self.encoding, form='tokens')
    folder = self._work / 'tokens'
    data = self._judged
    return text_tables.table(folder, data.texts, wanted, self.start).folder

  def _write_arrays(self, number: int, places: Mapping[str, Path]) -> None:
    fold = self.folds[number - 1]
    data = self._judged
    before = len(data.texts)
    found = instances.build(
      self._segments,
      self.question.ratings,
      data.texts,
      self.encoding.config.reference,
    )
    assert len(data.texts) == before, 'judged outputs hold all texts'
    keys = np.array(self._keys)
    parts = {
      part: found.of_records(np.isin(keys, getattr(fold, part))).rated()
      for part in places
    }
    mean, deviation = self._scale(parts['train'].ratings)
    for part, folder in places.items():
      if folder.is_dir():
        continue
      arrays = parts[part].arrays()
      arrays['ratings'] = (arrays['ratings'] - mean) / deviation
      described = {
        'instances': len(parts[part]),
        'documents': getattr(fold, part),
        'mean': mean.tolist(),
        'deviation': deviation.tolist(),
      }
      with inputs.new_array_folder(folder) as new:
        for name, array in arrays.items():
          np.save(new / f'{name}.npy', array)
        (new / inputs.INFO_FILE).write_text(json.dumps(described) + '\n')

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

  def _assemble(self, number: int, run: Path) -> estimators.Estimator:
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
    info = self._fold(number) / 'train' / inputs.INFO_FILE
    scale = json.loads(info.read_text('utf-8'))
    last = params['estimator'][f'layers_{len(config.hidden_sizes)}']
    deviation = np.float32(scale['deviation'])
    last['kernel'] = last['kernel'] * deviation
    last['bias'] = last['bias'] * deviation + np.float32(scale['mean'])
    settings = self.encoding.settings
    return estimators.Estimator(config, params, self.start.tokenizer, settings)

  def _claim(self, configuration: str) -> None:
    """Writes whose the folder is, or checks it."""
    digest = hashlib.sha256()
    for segment in self._segments:
      digest.update(repr(segment).encode('utf-8', 'surrogatepass'))
    asked = dataclasses.asdict(self.question)
    # Predictions of either part come from the same models.
    del asked['part']
    plan = {
      **json.loads(json.dumps(asked)),
      'records': digest.hexdigest(),
      'configuration': configuration,
    }
    path = self._work / _PLAN
    if path.is_file():
      _compare(_read_plan(path), plan, self._work)
      return
    if self._work.is_dir() and any(self._work.iterdir()):
      raise PlanError(
        f'{self._work}: is not empty, and no cross-validation began there; '
        'choose another folder'
      )
    self._work.mkdir(parents=True, exist_ok=True)
    with files.write_atomically(path) as out:
      json.dump(plan, out, indent=2)
      out.write('\n')


def _bindings(**values: Path) -> list[str]:
  return [f'{name} = {str(value)!r}' for name, value in values.items()]


def _read_plan(path: Path) -> dict[str, Any]:
  try:
    return dict(json.loads(path.read_text('utf-8')))
  except (ValueError, TypeError) as error:
    raise PlanError(f'{path}: damaged ({error}); choose another') from error


def _compare(
  there: Mapping[str, Any], here: Mapping[str, Any], work: Path
) -> None:
  """Raises PlanError where two plans differ, and says in what."""
  for name, value in here.items():
    before = there.get(name)
    if before == value:
      continue
    said = f'{before!r} there, {value!r} here'
    if name == 'records':
      said = 'the records are others'
    elif name == 'configuration':
      lines = difflib.unified_diff(
        str(before).splitlines(), value.splitlines(), lineterm='', n=0
      )
      told = [line for line in lines if line[:2] not in ('--', '++', '@@')]
      said = 'the configuration is another: ' + '; '.join(told[:4])
    raise PlanError(
      f'{work}: belongs to another cross-validation ({name}: {said}); choose '
      'another --work'
    )
