"""Pairs of tokenized sentences, for training sentence embeddings.

`write` creates the arrays, `PairDataset` the batches that
`models/contrastive.py` reads. Not here: the origin of pairs
(`fitting/contrastive.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from t5score_jax.data import runs
from t5score_jax.data.subwords import SubwordTokenizer
from t5score_jax.inputs import datasets, shares

# Batches are padded to multiples of this, so that few shapes are compiled.
_LENGTH_STEP = 32


def write(
  folder: Path,
  pairs: Sequence[tuple[str, str]],
  tokenizer: SubwordTokenizer,
  pad_id: int,
  max_length: int,
) -> int:
  """Writes the tokens of pairs for `PairDataset`, unless they exist.

  Args:
    folder: The folder, which appears whole.
    pairs: At least one pair of texts.
    tokenizer: Encodes texts as ids.
    pad_id: Id of padding.
    max_length: Tokens per text, special ones included; longer texts are cut.

  Returns:
    The number of texts that were cut.
  """
  if folder.is_dir():
    return int(runs.read_json(folder / datasets.INFO_FILE)['cut'])
  cut = 0
  with datasets.new_array_folder(folder) as new:
    for name, column in (('source', 0), ('target', 1)):
      side = [pair[column] for pair in pairs]
      encoded = tokenizer.encode_batch(side, max_length)
      cut += sum(text.cut for text in encoded)
      width = max(len(text.ids) for text in encoded)
      tokens = np.full((len(side), width), pad_id, np.int32)
      for row, text in zip(tokens, encoded, strict=True):
        row[: len(text.ids)] = text.ids
      np.save(new / f'{name}_tokens.npy', tokens)
    runs.write_json(new / datasets.INFO_FILE, {'cut': cut})
  return cut


class PairDataset(datasets.ArrayDataset):
  """Pairs as tokens, each batch cut to its longest text.

  Lengths are multiples of 32, so that few shapes are compiled. Rows of padding
  fill a batch up so that it can be divided over devices.
  """

  def __init__(
    self,
    path: Path,
    batch_size: int,
    pad_id: int,
    row_multiple: int = 1,
    seed: int = 0,
  ):
    """Opens 'source_tokens' and 'target_tokens'.

    Args:
      path: See `ArrayDataset`, as for the others.
      batch_size: Pairs per batch.
      pad_id: Id of padding.
      row_multiple: Batches have a multiple of this number of rows.
      seed: Seed of the order.
    """
    super().__init__(path, batch_size, seed)
    self._pad_id = pad_id
    self._row_multiple = row_multiple

  def batches(
    self, start_step: int = 0, share: shares.Share = shares.WHOLE
  ) -> Iterator[datasets.Batch]:
    """See `Dataset`; every process must truncate a batch equally."""
    for batch in super().batches(start_step):
      whole = self._fitted(batch)
      rows = share.rows(len(next(iter(whole.values()))))
      yield {key: tokens[rows] for key, tokens in whole.items()}

  def _fitted(self, batch: datasets.Batch) -> datasets.Batch:
    longest = max(
      int(np.max(np.sum(tokens != self._pad_id, axis=1)))
      for tokens in batch.values()
    )
    length = -(-longest // _LENGTH_STEP) * _LENGTH_STEP
    missing = -self.batch_size % self._row_multiple
    return {
      key: np.pad(
        tokens[:, :length],
        ((0, missing), (0, 0)),
        constant_values=self._pad_id,
      )
      for key, tokens in batch.items()
    }
