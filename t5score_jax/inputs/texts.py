"""Batches of instances that refer to texts by index; each text is stored once.

The 44,880 training instances that COMES makes of SummEval (section 4.1) have
fewer than 3,000 distinct texts. An instance is a row of indices of a
hypothesis, a source and a reference; in a batch, texts are tokens or the
vectors of a frozen encoder. `fitting/text_cache.py` writes the arrays,
`models/regression.py` reads the batches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from t5score_jax.inputs import datasets
from t5score_jax.runtime import validation

ROLES = ('hypothesis', 'source', 'reference')
FORMS = ('tokens', 'vectors')
# Array of the index of each instance's system.
SYSTEM_KEY = 'system'


def steps(
  path: str | os.PathLike[str], batch_size: int, epochs: float = 1.0
) -> int:
  """Returns the number of steps of some epochs, for gin files.

  Args:
    path: Folder of the instances.
    batch_size: Instances per step.
    epochs: Number of epochs.

  Returns:
    At least 1, unless `epochs` is 0.

  Raises:
    datasets.DatasetError: There are no instances, or a number is invalid.
  """
  validation.check(
    validation.Positive, datasets.DatasetError, batch_size=batch_size
  )
  return count_steps(len(_open(Path(path) / 'ratings.npy')), batch_size, epochs)


def count_steps(count: int, batch_size: int, epochs: float) -> int:
  """Returns the number of steps in which `count` examples are read."""
  validation.check(validation.Finite, datasets.DatasetError, epochs=epochs)
  if epochs < 0:
    raise datasets.DatasetError(f'epochs = {epochs}: at least 0')
  return math.ceil(round(count * epochs / batch_size, 6))


class TextsDataset(datasets.ArrayDataset):
  """A folder of instances with a folder of texts.

  `PATH/hypothesis.npy`, `source.npy` and optionally `reference.npy` are int
  [N], indices of texts; `ratings.npy` is float [N, outputs], NaN if not rated;
  other arrays, such as `system.npy`, are copied to the batches.
  `TEXTS/tokens.npy` is int [T, length], padded at the end, with
  `TEXTS/lengths.npy` int [T]; or `TEXTS/vectors.npy` is float [T, layers,
  emb_dim]. Beside tokens, `TEXTS/tags.npy` int [T, length] has tags of tokens,
  which batches have for hypotheses (`hypothesis_tags`).

  Attributes:
    batch_size: Instances per batch over all processes.
    num_examples: Instances per epoch.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    texts: str | os.PathLike[str],
    batch_size: int,
    form: str = 'tokens',
    seed: int = 0,
    shuffle: bool = True,
  ):
    """Opens the arrays.

    Args:
      path: Folder of the instances.
      texts: Folder of the texts.
      batch_size: Instances per batch over all processes.
      form: 'tokens' yields `ROLE_tokens` int32 [B, length], as long as the
        longest text in that role; 'vectors' yields `ROLE_vectors` float32
        [B, layers, emb_dim].
      seed: Seed of the order.
      shuffle: Whether to shuffle each epoch.

    Raises:
      datasets.DatasetError: Arrays are missing, or refer to missing texts.
    """
    if form not in FORMS:
      raise datasets.DatasetError(f'form = {form!r}: use one of {list(FORMS)}')
    super().__init__(path, batch_size, seed, shuffle)
    self._form = form
    self._instances = Instances(path, texts, form)
    self._width: int | None = None

  def token_arrays(self) -> Iterator[tuple[Path, np.ndarray]]:
    """See `datasets.ArrayDataset.token_arrays`."""
    if self._form == 'tokens':
      yield self._instances.file, self._instances.table

  def _gather(self, rows: np.ndarray | slice) -> datasets.Batch:
    batch = super()._gather(rows)
    for role in self._instances.rows:
      numbers = batch.pop(role)
      batch[f'{role}_{self._form}'] = self._instances.texts(
        role, numbers, self._width
      )
      if role == 'hypothesis' and self._instances.tags is not None:
        width = batch['hypothesis_tokens'].shape[1]
        tags = self._instances.tags[numbers][:, :width]
        batch['hypothesis_tags'] = np.asarray(tags, np.int32)
    return batch


class Instances:
  """Instances and the table of their texts, opened and checked.

  Attributes:
    rows: Indices of texts for each role, int [N].
    ratings: Ratings, float32 [N, outputs].
    system: Indices of systems, int [N]; None if unknown.
    file: The file of the texts.
    table: The tokens or vectors of all texts.
    tags: Tags of the tokens; None if there are none.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    texts: str | os.PathLike[str],
    form: str = 'tokens',
  ):
    """Opens the arrays; see `TextsDataset`.

    Raises:
      datasets.DatasetError: Arrays are missing, or refer to missing texts.
    """
    self.file = Path(texts) / f'{form}.npy'
    self.table = _open(self.file)
    self._lengths: np.ndarray | None = None
    self.tags: np.ndarray | None = None
    if form == 'tokens':
      self._lengths = _open(Path(texts) / 'lengths.npy')
      if (Path(texts) / 'tags.npy').is_file():
        self.tags = _open(Path(texts) / 'tags.npy')
    count = datasets.ArrayDataset(path, 1).num_examples
    whole = next(datasets.ArrayDataset(path, count, shuffle=False).epoch())
    self.rows = {role: whole[role] for role in ROLES if role in whole}
    if list(self.rows)[:2] != list(ROLES[:2]) or 'ratings' not in whole:
      raise datasets.DatasetError(
        f'{path}: hypothesis.npy, source.npy and ratings.npy are needed; '
        f'there are {sorted(whole)}'
      )
    self.ratings = whole['ratings']
    self.system: np.ndarray | None = whole.get(SYSTEM_KEY)
    self._kind = np.int32 if form == 'tokens' else np.float32
    self._longest: dict[str, int | None] = dict.fromkeys(self.rows)
    for role, numbers in self.rows.items():
      used = np.unique(numbers)
      if used[0] < 0 or used[-1] >= len(self.table):
        raise datasets.DatasetError(
          f'{path}: {role}.npy refers to texts {used[0]} to {used[-1]}; {texts}'
          f' has {len(self.table)}'
        )
      if self._lengths is not None:
        self._longest[role] = int(self._lengths[used].max())

  def texts(
    self, role: str, numbers: np.ndarray, width: int | None = None
  ) -> np.ndarray:
    """Returns the tokens or vectors of texts, [n, ...].

    Args:
      role: The role.
      numbers: Indices of the texts.
      width: Length of tokens; by default of the role's longest text.
    """
    rows = self.table[numbers]
    width = width or self._longest[role]
    if width is not None:
      rows = rows[:, :width]
    return np.asarray(rows, self._kind)

  def lengths(self) -> np.ndarray:
    """Returns the tokens of each instance's longest text, int [N]."""
    assert self._lengths is not None
    found = [self._lengths[numbers] for numbers in self.rows.values()]
    return np.max(found, axis=0)

  def width(self, role: str, numbers: np.ndarray) -> int:
    """Returns a width that fits the tokens of texts.

    It is the length of the role's longest text or three quarters of it, since
    each width costs an XLA program, and batches with every text of a document
    rarely need less.

    Args:
      role: The role.
      numbers: Indices of the texts.
    """
    longest = self._longest[role]
    assert self._lengths is not None and longest is not None
    short = -(-3 * longest // 4)
    return short if int(self._lengths[numbers].max()) <= short else longest


def _open(file: Path) -> np.ndarray:
  if not file.is_file():
    raise datasets.DatasetError(f'{file}: no such array')
  return np.load(file, mmap_mode='r')
