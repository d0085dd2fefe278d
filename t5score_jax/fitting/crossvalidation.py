"""Cross-validation of a regressor, for `t5score crossvalidate`.

Documents are split into folds. For each fold, `training.loop.train` trains a
regressor as configured by gin. Its checkpoint is selected on the next fold, and
it is applied to its own fold. The predictions of all folds are joined (COMES,
section 4.1). One folder holds everything, and a stopped run resumes there. Not
here: the command line (`commands/crossvalidate.py`) and agreement with human
judgments (`evaluation/`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.checkpoints import regressors
from t5score_jax.data import files, instances
from t5score_jax.data.records import Segment
from t5score_jax.errors import UsageError
from t5score_jax.fitting import fit, text_cache
from t5score_jax.inference import encoding, prediction
from t5score_jax.inference.embedding import TextEmbedder
from t5score_jax.metrics import registry
from t5score_jax.nn import unified

PARTS = ('test', 'validation')


@dataclasses.dataclass(frozen=True)
class Config:
  """Configuration of a cross-validation.

  Attributes:
    ratings: Names of the ratings in the records; the regressor has one output
      for each, in this order.
    by: The field whose values are kept within one fold.
    folds: Number of folds.
    seed: Seed of the split.
    part: The part that is predicted: 'test', or 'validation' to choose settings
      without using the test part.
  """

  ratings: tuple[str, ...]
  by: str = 'document'
  folds: int = 10
  seed: int = 0
  part: str = 'test'

  def __post_init__(self) -> None:
    if self.part not in PARTS:
      raise UsageError(f'part {self.part!r}: use one of {", ".join(PARTS)}')


@dataclasses.dataclass(frozen=True)
class Predictions:
  """Predictions of the models of all folds.

  Attributes:
    segments: N records, one for each output of a system, ratings averaged over
      annotators.
    values: float32 [N, D], each by the model not trained on its document; or
      [folds, N, D], by every model, for other data.
    fold: The fold of the predicting model, int32 [N]; None for other data.
    table: The folder of texts.
  """

  segments: list[Segment]
  values: np.ndarray
  fold: np.ndarray | None
  table: text_cache.Table


@dataclasses.dataclass(frozen=True)
class _Data:
  """Records prepared for a regressor."""

  segments: list[Segment]
  rows: instances.Instances
  texts: instances.Texts
  table: text_cache.Table


class CrossValidation:
  """A cross-validation in one folder.

  `WORK/plan.json` identifies the run; `texts/` and `texts_NAME/` hold
  texts, `fold_K/` the arrays, the runs (`run/`, `fine_tune/`), the regressor
  (`model/`) and the predictions (`test.npz`, ...) of fold K, counted from 1.
  """

  def __init__(
    self,
    segments: Sequence[Segment],
    config: Config,
    work: str | Path,
    configure: fit.Configure,
    *,
    texts: str | Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: encoding.Progress | None = None,
    quiet: bool = True,
  ):
    """Reads the configuration and splits the documents.

    Args:
      segments: Records with a source each; each annotator's rating of an output
        is a separate row.
      config: The configuration.
      work: The folder; created if needed.
      configure: Sets gin's configuration.
      texts: Folder of the texts of `segments`, to share it between runs;
        `WORK/texts` by default.
      say: Called with a line for each finished step.
      progress: Called with the number of encoded texts.
      quiet: Whether the training loop prints nothing.

    Raises:
      RunError: The folder belongs to another run.
      RecordError: A record lacks what is needed.
      ValueError: The ratings do not fit the configuration.
    """
    self._work = Path(work)
    self._say = say
    self._progress = progress
    self.config = config
    self._segments = list(segments)
    self._keys = instances.keys(self._segments, config.by)
    self.folds = instances.folds(self._keys, config.folds, config.seed)
    rated = self._segments, config.ratings
    instances.check_folds(self.folds, self._keys, *rated)
    identity = json.loads(json.dumps(dataclasses.asdict(config)))
    # Predictions of either part come from the same models.
    del identity['part']
    identity = {**identity, 'records': fit.digest(self._segments)}
    plan = fit.Plan(self._work, identity)
    self._fitting = fit.Fitting(
      configure, config.ratings, plan, say=say, quiet=quiet
    )
    self.encoding = self._fitting.encoding
    self._texts = Path(texts) if texts else self._work / 'texts'

  @property
  def notes(self) -> list[str]:
    """Warnings about the runs that this object finished."""
    return self._fitting.notes

  @functools.cached_property
  def _outputs(self) -> _Data:
    """The distinct outputs, with averaged ratings."""
    return self._prepare(self._segments, self._texts)

  def run(self) -> Predictions:
    """Trains missing models, and predicts.

    Raises:
      Stopped: A signal stopped the run; the next call resumes it.
    """
    data = self._outputs
    self._say(data.table.about())
    keys = np.array(instances.keys(data.segments, self.config.by))
    width = len(self.config.ratings)
    values = np.full((len(keys), width), np.nan, np.float32)
    owner = np.zeros(len(keys), np.int32)
    for number, fold in enumerate(self.folds, 1):
      rows = np.isin(keys, getattr(fold, self.config.part))
      values[rows] = self._kept(
        number, self.config.part, data, rows, self.config.part
      )
      owner[rows] = number
    return Predictions(data.segments, values, owner, data.table)

  def also(self, name: str, segments: Sequence[Segment]) -> Predictions:
    """Applies every fold's model to other records.

    Args:
      name: Name of the data in file names.
      segments: The records; ratings of one output are averaged.
    """
    data = self._prepare(segments, self._work / f'texts_{name}')
    self._say(f'{name}: {data.table.about()}')
    everything = np.ones(len(data.segments), bool)
    values = [
      self._kept(number, f'also_{name}', data, everything, name)
      for number in range(1, len(self.folds) + 1)
    ]
    return Predictions(data.segments, np.stack(values), None, data.table)

  def model(self, number: int) -> regressors.Regressor:
    """Returns the regressor of a fold, trained if needed.

    Args:
      number: The fold, from 1.

    Raises:
      Stopped: A signal stopped the run; the next call resumes it.
    """
    folder = self._fold(number) / fit.MODEL
    if not folder.is_dir():
      self._train(number)
    return regressors.load(folder)

  def _fold(self, number: int) -> Path:
    return self._work / f'fold_{number}'

  def _prepare(self, segments: Sequence[Segment], folder: Path) -> _Data:
    outputs = instances.averaged(segments)
    texts = instances.Texts()
    rows = instances.build(
      outputs, self.config.ratings, texts, self.encoding.config.reference
    )
    table = text_cache.table(
      folder, texts, self.encoding, self._fitting.start, self._progress
    )
    return _Data(outputs, rows, texts, table)

  def _kept(
    self, number: int, name: str, data: _Data, rows: np.ndarray, what: str
  ) -> np.ndarray:
    """Returns a fold model's predictions, float32 [rows, D], cached on disk."""
    identity = f'{data.texts.digest()} {int(rows.sum())}'
    file = self._fold(number) / f'{name}.npz'
    if file.is_file():
      with np.load(file) as stored:
        if str(stored['identity']) == identity:
          return np.asarray(stored['values'])
    model = self.model(number)
    if isinstance(model.config, unified.UnifiedConfig):
      values = self._read(number, data, rows)
    else:
      values = self._predict(model, data, rows)
    with files.write_atomically(file, 'wb') as out:
      np.savez(out, values=values, identity=identity)
    self._say(f'fold {number}: {len(values)} outputs of {what} scored')
    return values

  def _read(self, number: int, data: _Data, rows: np.ndarray) -> np.ndarray:
    """Scores with a network that reads texts jointly."""
    metric = registry.load(self._fold(number) / fit.MODEL)
    chosen = [data.segments[n] for n in np.flatnonzero(rows)]
    return metric.score_segments(chosen).values[:, None]

  def _predict(
    self, model: regressors.Regressor, data: _Data, rows: np.ndarray
  ) -> np.ndarray:
    chosen = data.rows.of_records(rows)
    if self.encoding.form == 'vectors' and not self._fitting.epochs:
      layers = np.load(data.table.folder / 'vectors.npy', mmap_mode='r')
      vectors = prediction.mixed(model, layers)
    else:
      vectors = self._embedded(model, data, chosen)
    values = prediction.outputs(
      model, vectors, chosen.hypothesis, chosen.source, chosen.reference
    )
    return prediction.over_references(values, chosen.record)

  def _embedded(
    self,
    model: regressors.Regressor,
    data: _Data,
    chosen: instances.Instances,
  ) -> np.ndarray:
    """Encodes the needed texts with a fold's own encoder."""
    arrays = [chosen.hypothesis, chosen.source]
    if chosen.reference is not None:
      arrays.append(chosen.reference)
    needed = np.unique(np.concatenate(arrays))
    texts = list(data.texts)
    embedder = TextEmbedder(model, max_length=self.encoding.max_length)
    encoded = embedder.vectors([texts[n] for n in needed], self._progress)
    width = model.config.encoder.emb_dim
    vectors = np.zeros((len(texts), width), np.float32)
    vectors[needed] = encoded.values
    return vectors

  def _train(self, number: int) -> None:
    """Trains a fold's regressor, or resumes its training."""
    fold = self.folds[number - 1]
    data = self._outputs
    before = len(data.texts)
    rows = instances.build(
      self._segments,
      self.config.ratings,
      data.texts,
      self.encoding.config.reference,
    )
    assert len(data.texts) == before, 'the outputs hold all texts'
    keys = np.array(self._keys)
    documents = {part: getattr(fold, part) for part in fit.PARTS}
    self._fitting.fit(
      self._fold(number),
      {
        part: rows.of_records(np.isin(keys, names))
        for part, names in documents.items()
      },
      data.texts,
      data.table.folder,
      self._work / 'tokens',
      name=f'fold {number}',
      about={part: {'documents': names} for part, names in documents.items()},
    )
