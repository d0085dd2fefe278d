"""Batches whose examples name texts by number: each text is stored once.

SummEval's 44,880 training instances of COMES (section 4.1) hold fewer than
3,000 distinct texts: an instance is a row of numbers, of a hypothesis, a source
and a reference. A text comes into a batch as its tokens, or as the vectors of a
frozen encoder. Not here: who writes the arrays, and what is made of a batch
(`models/regression.py`).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from t5score_jax.inputs import datasets, shares
from t5score_jax.runtime import validation

ROLES = ('hypothesis', 'source', 'reference')
FORMS = ('tokens', 'vectors')
# Of instances: the number of the system whose output is rated.
SYSTEM_KEY = 'system'


def steps(
  path: str | os.PathLike[str], batch_size: int, epochs: float = 1.0
) -> int:
  """How many steps some epochs are, for gin, which doesn't compute.

  Args:
    path: Folder of the instances.
    batch_size: Instances a step.
    epochs: How often each instance is seen.

  Returns:
    At least 1, unless `epochs` is 0.

  Raises:
    datasets.DatasetError: There are no instances, or a number is wrong.
  """
  validation.check(
    validation.Positive, datasets.DatasetError, batch_size=batch_size
  )
  validation.check(validation.Finite, datasets.DatasetError, epochs=epochs)
  if epochs < 0:
    raise datasets.DatasetError(f'epochs = {epochs}: at least 0')
  file = Path(path) / 'ratings.npy'
  if not file.is_file():
    raise datasets.DatasetError(f'{file}: there is no such array of instances')
  count = len(np.load(file, mmap_mode='r'))
  return math.ceil(round(count * epochs / batch_size, 6))


class TextsDataset:
  """A folder of instances beside a folder of texts.

  `PATH/hypothesis.npy`, `source.npy` and perhaps `reference.npy` hold int [N],
  numbers of texts; `ratings.npy` float [N, outputs], NaN where not rated; other
  arrays, such as `system.npy`, go into the batches as they are.
  `TEXTS/tokens.npy` holds int [T, length], padded at the end, with
  `TEXTS/lengths.npy` int [T]; or `TEXTS/vectors.npy` float [T, layers,
  emb_dim].

  Attributes:
    batch_size: Instances a batch over all processes.
    num_examples: Instances in an epoch.
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
      batch_size: Instances a batch over all processes.
      form: 'tokens' gives `ROLE_tokens` int32 [B, length], as long as the
        longest text in that role; 'vectors' gives `ROLE_vectors` float32
        [B, layers, emb_dim].
      seed: Of the order.
      shuffle: Whether to shuffle, anew each epoch.

    Raises:
      datasets.DatasetError: Arrays are missing, or name texts that are not
        there.
    """
    if form not in FORMS:
      raise datasets.DatasetError(f'form = {form!r}: use one of {list(FORMS)}')
    self._rows = datasets.ArrayDataset(path, batch_size, seed, shuffle)
    self.batch_size = batch_size
    self.num_examples = self._rows.num_examples
    self._form = form
    self._instances = Instances(path, texts, form)

  def examples(self, positions: np.ndarray) -> datasets.Batch:
    """Gathers instances; see `datasets.ArrayDataset.examples`."""
    return self._with_texts(self._rows.examples(positions))

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[datasets.Batch]:
    """See `datasets.Dataset`."""
    rows = share.rows(self.batch_size)
    for step in itertools.count(start_step):
      yield self.examples(step * self.batch_size + rows)

  def epoch(self) -> Iterator[datasets.Batch]:
    """Yields every instance once in stored order; the last batch is short."""
    yield from map(self._with_texts, self._rows.epoch())

  def _with_texts(self, rows: datasets.Batch) -> datasets.Batch:
    instances = self._instances
    batch = {k: v for k, v in rows.items() if k not in instances.rows}
    for role in instances.rows:
      batch[f'{role}_{self._form}'] = instances.texts(role, rows[role])
    return batch


class Instances:
  """Instances and the table of their texts, opened and checked.

  Attributes:
    rows: int [N] for each role, numbers of texts.
    ratings: float32 [N, outputs].
    system: int [N], whose output it is; None where nobody says.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    texts: str | os.PathLike[str],
    form: str = 'tokens',
  ):
    """Opens the arrays; see `TextsDataset`.

    Raises:
      datasets.DatasetError: Arrays are missing, or name texts that are not
        there.
    """
    self._table = _open(Path(texts) / f'{form}.npy')
    self._lengths: np.ndarray | None = None
    if form == 'tokens':
      self._lengths = _open(Path(texts) / 'lengths.npy')
    # Read once: which texts each role has, and how long they are.
    count = datasets.ArrayDataset(path, 1).num_examples
    whole = next(datasets.ArrayDataset(path, count, shuffle=False).epoch())
    self.rows = {role: whole[role] for role in ROLES if role in whole}
    if list(self.rows)[:2] != list(ROLES[:2]) or 'ratings' not in whole:
      raise datasets.DatasetError(
        f'{path}: hypothesis.npy, source.npy and ratings.npy are needed; '
        f'found {sorted(whole)}'
      )
    self.ratings = whole['ratings']
    self.system: np.ndarray | None = whole.get(SYSTEM_KEY)
    self._kind = np.int32 if form == 'tokens' else np.float32
    self._longest: dict[str, int | None] = dict.fromkeys(self.rows)
    for role, numbers in self.rows.items():
      used = np.unique(numbers)
      if used[0] < 0 or used[-1] >= len(self._table):
        raise datasets.DatasetError(
          f'{path}: {role}.npy names text {used[0]} to {used[-1]}; {texts} '
          f'has {len(self._table)}'
        )
      if self._lengths is not None:
        self._longest[role] = int(self._lengths[used].max())

  def texts(
    self, role: str, numbers: np.ndarray, width: int | None = None
  ) -> np.ndarray:
    """What stands for texts in a role: [n, ...].

    Args:
      role: The role.
      numbers: The texts.
      width: Of tokens; as long as the role's longest text by default.
    """
    found = self._table[numbers]
    width = width or self._longest[role]
    if width is not None:
      found = found[:, :width]
    return np.asarray(found, self._kind)

  def width(self, role: str, numbers: np.ndarray) -> int:
    """A width that holds some texts as tokens.

    There are two: of the role's longest text, and three quarters of it. An XLA
    program belongs to each, and batches that hold every text of a document
    rarely need less.

    Args:
      role: The role.
      numbers: The texts.
    """
    longest = self._longest[role]
    assert self._lengths is not None and longest is not None
    short = -(-3 * longest // 4)
    return short if int(self._lengths[numbers].max()) <= short else longest


def _open(file: Path) -> np.ndarray:
  if not file.is_file():
    raise datasets.DatasetError(f'{file}: there is no such array of texts')
  return np.load(file, mmap_mode='r')
