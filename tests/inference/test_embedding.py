"""Vectors of texts: layers before the mix, long texts in windows."""

import dataclasses
import functools

import numpy as np
import pytest
import tiny_encoder
import tiny_regressor
from hypothesis import given
from hypothesis import strategies as st

from t5score_jax.checkpoints import regressors
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data import subwords, windows
from t5score_jax.inference import embedding, placement
from t5score_jax.metrics import registry
from t5score_jax.nn import heads

LONG = 'the cat sat on the mat . a small dog ran over the green hill !'
make = functools.partial(
  tiny_regressor.make, hidden_sizes=(6,), layer_transformation='softmax'
)
TEXTS = ['the cat sat', LONG, '', 'a dog', LONG + ' ' + LONG, 'the cat sat']


@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
  folder = tiny_encoder.make(tmp_path_factory.mktemp('encoder'))
  return encoders.load_encoder(folder)


@given(length=st.integers(0, 200), room=st.integers(1, 30), data=st.data())
def test_windows_cover_a_text(length, room, data):
  stride = data.draw(st.integers(0, room - 1))
  body = list(range(length))
  special = [True] + [False] * length + [True, True]
  ids = [-1, *body, -2, -3]
  text = subwords.Encoded(ids, [0] * len(ids), [''] * len(ids), special, False)
  found = windows.split(text, room + 3, stride)
  assert (length > room) == (len(found) > 1)
  if len(found) == 1:
    assert found == [ids]
    return
  parts = [w[1:-2] for w in found]
  assert all([w[0], *w[-2:]] == [-1, -2, -3] for w in found)
  assert len({len(p) for p in parts}) == 1 and len(parts[0]) <= room
  assert parts[0][0] == 0 and parts[-1][-1] == length - 1
  for one, two in zip(parts, parts[1:], strict=False):
    assert one == list(range(one[0], one[-1] + 1))
    assert one[-1] - two[0] + 1 >= stride
    assert one[0] < two[0]
  # One window fewer would not do.
  assert stride + (len(parts) - 1) * (room - stride) < length


def test_marks_within_a_text_stay_in_it(encoder):
  text = '[SEP] the cat [CLS] sat on the mat [SEP]'
  (whole,) = encoder.tokenizer.encode_batch([text], 99)
  found = windows.split(whole, 5)
  assert sum((w[1:-1] for w in found), []) == whole.ids[1:-1]


def by_numpy(model, text, length, stride):
  """A text's vector window by window, in NumPy."""
  c, p = model.config, model.params
  (whole,) = model.tokenizer.encode_batch([text], 10**6)
  pieces = windows.split(whole, length, stride)
  scalars = p.get('mix', {}).get('scalars', np.zeros(1)).astype(float)
  weights = np.exp(scalars) / np.exp(scalars).sum()
  total = []
  for ids in pieces:
    states = tiny_encoder.numpy_states(p['encoder'], c.encoder, ids)
    if c.layer != 'mix':
      total.append(states[c.layer])
      continue
    if c.layer_norm:
      states = states - states.mean((1, 2), keepdims=True)
      states = states / states.std((1, 2), keepdims=True)
    total.append(p['mix']['gamma'] * np.einsum('l,lte->te', weights, states))
  if c.pooling == 'cls':
    return np.mean([x[0] for x in total], 0)
  tokens = np.concatenate(total)
  return tokens.max(0) if c.pooling == 'max' else tokens.mean(0)


@pytest.mark.parametrize(
  ('changes', 'stride'),
  [
    ({}, 0),
    ({'layer_norm': True}, 3),
    pytest.param({'pooling': 'cls'}, 3, marks=pytest.mark.slow),
    pytest.param({'pooling': 'max'}, 0, marks=pytest.mark.slow),
    ({'layer': 2, 'pooling': 'max'}, 3),
  ],
)
def test_windows_by_numpy(encoder, changes, stride):
  model = make(encoder, **changes)
  embedder = embedding.TextEmbedder(
    model, max_length=9, windows=True, stride=stride, batch_tokens=40
  )
  calls = []
  found = embedder.vectors(TEXTS, lambda *call: calls.append(call))
  want = np.stack([by_numpy(model, text, 9, stride) for text in TEXTS])
  np.testing.assert_allclose(found.values, want, atol=2e-5)
  assert (found.texts, found.cut, found.windowed) == (5, 0, 2)
  assert calls[-1] == (5, 5) and calls == sorted(calls)


@pytest.mark.parametrize(
  ('changes', 'windowed'),
  [
    ({'layer_norm': True, 'layer_transformation': 'sparsemax'}, False),
    ({'layer': 1, 'pooling': 'max'}, True),
    *(
      pytest.param(*row, marks=pytest.mark.slow)
      for row in (
        ({}, True),
        ({'pooling': 'cls', 'layer_norm': True}, True),
        ({'layer': 2}, False),
        ({'layer': 3, 'pooling': 'pooler'}, True),
      )
    ),
  ],
)
def test_mixed_layer_vectors_are_the_vectors(encoder, changes, windowed):
  model = make(encoder, **changes)
  embedder = embedding.TextEmbedder(model, max_length=9, windows=windowed)
  layers = embedder.layer_vectors(TEXTS)
  vectors = embedder.vectors(TEXTS)
  depth = 4 if model.config.layer == 'mix' else 1
  assert layers.values.shape == (6, depth, 16)
  assert layers.values.dtype == vectors.values.dtype == np.float32
  mixed = heads.mix_vectors(model.params, model.config, layers.values)
  np.testing.assert_allclose(mixed, vectors.values, rtol=0, atol=1e-6)
  assert dataclasses.replace(layers, values=0) == dataclasses.replace(
    vectors, values=0
  )
  assert (vectors.cut, vectors.windowed) == ((0, 2) if windowed else (2, 0))


def test_maxima_depend_on_the_mix(encoder):
  embedder = embedding.TextEmbedder(make(encoder, pooling='max'))
  with pytest.raises(ValueError, match="'max' of mixed layers"):
    embedder.layer_vectors(TEXTS)


def test_no_texts(encoder):
  embedder = embedding.TextEmbedder(make(encoder), windows=True)
  assert embedder.vectors([]).values.shape == (0, 16)
  assert embedder.layer_vectors([]).values.shape == (0, 4, 16)


@pytest.mark.parametrize(
  ('options', 'words'),
  [
    ({'stride': 2}, 'stride 2'),
    ({'windows': True, 'stride': -1}, 'stride -1: 0 to 21'),
    ({'windows': True, 'stride': 22}, 'stride 22: 0 to 21'),
    ({'windows': 'yes'}, "windows 'yes': use True or False"),
  ],
)
def test_options_out_of_range(encoder, options, words):
  with pytest.raises(ValueError, match=words):
    embedding.TextEmbedder(make(encoder), **options)


def test_metric_says_what_was_cut_or_windowed(encoder, tmp_path):
  regressors.save(make(encoder), tmp_path)
  texts = [LONG, 'a cat'], ['the mat', LONG + LONG], ['a dog', 'a dog']
  plain = registry.load_metric('comes', model=tmp_path)
  whole = registry.load_metric('comes', model=tmp_path, max_length=12)
  cut = whole.score(*texts)
  assert (cut.truncated, cut.texts) == (2, 5)
  assert cut.cut == '2 of 5 texts (40.0%)' and 'windows' not in cut.signature
  read = registry.load_metric(
    'comes', model=tmp_path, max_length=12, windows=True, stride=4
  ).score(*texts)
  assert (read.truncated, read.texts) == (0, 5)
  assert read.notes == ('2 of 5 texts (40.0%) were read in several windows',)
  assert '|length:12|windows:stride4|' in read.signature
  assert abs(read.values - cut.values).max() > 1e-3
  # Where nothing is long, windows change nothing but the signature.
  short = ['a cat'], ['the mat'], ['a dog']
  wide = registry.load_metric('comes', model=tmp_path, windows=True).score(
    *short
  )
  np.testing.assert_array_equal(wide.values, plain.score(*short).values)
  assert wide.notes == ()


@pytest.mark.parametrize('options', [{}, {'windows': True, 'stride': 1}])
def test_what_is_in_memory_at_once_does_not_matter(
  encoder, options, monkeypatch
):
  embedder = embedding.TextEmbedder(make(encoder), max_length=9, **options)
  whole = embedder.vectors(TEXTS)
  monkeypatch.setattr(embedding.encoding, 'WINDOW', 2)
  calls = []
  found = embedder.vectors(TEXTS, lambda *call: calls.append(call))
  np.testing.assert_allclose(found.values, whole.values, atol=1e-6)
  assert dataclasses.replace(found, values=0) == dataclasses.replace(
    whole, values=0
  )
  assert calls[-1] == (5, 5) and calls == sorted(calls)


def test_weights_that_are_not_numbers_are_said(encoder):
  model = make(encoder)
  model.params['mix']['gamma'][:] = np.nan
  embedder = embedding.TextEmbedder(model)
  with pytest.raises(placement.ScoringError, match='not finite'):
    embedder.vectors(TEXTS)
