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
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.checkpoints import regressors
from t5score_jax.data import files, instances
from t5score_jax.data.records import Segment
from t5score_jax.fitting import fit, text_cache
from t5score_jax.inference import encoding, prediction
from t5score_jax.inference.embedding import TextEmbedder

PARTS = ('test', 'validation')


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
  table: text_cache.Table


@dataclasses.dataclass(frozen=True)
class _Data:
  """Records, made ready for an estimator."""

  segments: list[Segment]
  rows: instances.Instances
  texts: instances.Texts
  table: text_cache.Table


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
    configure: fit.Configure,
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
      RunError: The folder belongs to something else.
      RecordError: A record lacks what is needed.
      ValueError: The question and the configuration do not fit.
    """
    self._work = Path(work)
    self._say = say
    self._progress = progress
    self.question = question
    self._segments = list(segments)
    self._keys = instances.keys(self._segments, question.by)
    self.folds = instances.folds(self._keys, question.folds, question.seed)
    rated = self._segments, question.ratings
    instances.check_folds(self.folds, self._keys, *rated)
    asked = json.loads(json.dumps(dataclasses.asdict(question)))
    # Predictions of either part come from the same models.
    del asked['part']
    identity = {**asked, 'records': fit.digest(self._segments)}
    plan = fit.Plan(self._work, identity)
    self._fitting = fit.Fitting(
      configure, question.ratings, plan, say=say, quiet=quiet
    )
    self.encoding = self._fitting.encoding
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

  def model(self, number: int) -> regressors.Regressor:
    """The estimator of a fold, trained if need be.

    Args:
      number: Of the fold, from 1.

    Raises:
      Stopped: By a signal; the next call goes on.
    """
    folder = self._fold(number) / fit.MODEL
    if not folder.is_dir():
      self._train(number)
    return regressors.load(folder)

  def _fold(self, number: int) -> Path:
    return self._work / f'fold_{number}'

  def _prepare(self, segments: Sequence[Segment], folder: Path) -> _Data:
    judged = instances.averaged(segments)
    texts = instances.Texts()
    found = instances.build(
      judged, self.question.ratings, texts, self.encoding.config.reference
    )
    table = text_cache.table(
      folder, texts, self.encoding, self._fitting.start, self._progress
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

  def _train(self, number: int) -> None:
    """Trains a fold's estimator, or goes on with it."""
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
    documents = {part: getattr(fold, part) for part in fit.PARTS}
    self._fitting.fit(
      self._fold(number),
      {
        part: found.of_records(np.isin(keys, names))
        for part, names in documents.items()
      },
      data.texts,
      data.table.folder,
      self._work / 'tokens',
      name=f'fold {number}',
      about={part: {'documents': names} for part, names in documents.items()},
    )
