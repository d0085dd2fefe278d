"""BARTScore: its formula by recomputation, folders, errors."""

import json
import math

import numpy as np
import pytest
import safetensors.numpy
import tiny_bart

from t5score_jax import cli
from t5score_jax.checkpoints.formats.huggingface import bart
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.errors import OptionError
from t5score_jax.metrics import registry

HYPOTHESES = ['the cat sat', '', 'birds \u732b ' * 30]
REFERENCES = ['a cat sat on the hill', 'the mat .', 'a bird']
SOURCES = ['x', 'y z', '']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny_bart.make(tmp_path_factory.mktemp('models') / 'bart')


def _log_prob(folder, first, second):
  """The mean log-probability of `second` given `first`, in NumPy."""
  weights = {
    name: array.astype(np.float64)
    for name, array in safetensors.numpy.load_file(
      folder / 'model.safetensors'
    ).items()
  }
  settings = json.loads((folder / 'config.json').read_text())
  pieces = tiny_bart.tokenizer()
  pieces.enable_truncation(settings['max_position_embeddings'])
  given, target = (pieces.encode(text).ids for text in (first, second))
  x = _embed(weights, 'encoder', given)
  for n in range(settings['encoder_layers']):
    name = f'model.encoder.layers.{n}'
    x = _norm(
      weights,
      f'{name}.self_attn_layer_norm',
      x + _attend(weights, f'{name}.self_attn', x, x),
    )
    x = _feed_forward(weights, name, x)
  y = _embed(weights, 'decoder', [2, *target[:-1]])
  for n in range(settings['decoder_layers']):
    name = f'model.decoder.layers.{n}'
    z = _attend(weights, f'{name}.self_attn', y, y, causal=True)
    y = _norm(weights, f'{name}.self_attn_layer_norm', y + z)
    z = _attend(weights, f'{name}.encoder_attn', y, x)
    y = _norm(weights, f'{name}.encoder_attn_layer_norm', y + z)
    y = _feed_forward(weights, name, y)
  logits = y @ weights['model.shared.weight'].T
  logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
  return logits[np.arange(len(target)), target].mean()


def _linear(weights, name, x):
  return x @ weights[f'{name}.weight'].T + weights[f'{name}.bias']


def _norm(weights, name, x):
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
  return x * weights[f'{name}.weight'] + weights[f'{name}.bias']


def _embed(weights, side, ids):
  places = weights[f'model.{side}.embed_positions.weight']
  x = weights['model.shared.weight'][ids] + places[2 : 2 + len(ids)]
  return _norm(weights, f'model.{side}.layernorm_embedding', x)


def _feed_forward(weights, name, x):
  y = _linear(weights, f'{name}.fc1', x)
  y = y * 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
  y = _linear(weights, f'{name}.fc2', y)
  return _norm(weights, f'{name}.final_layer_norm', x + y)


def _attend(weights, name, x, y, causal=False):
  q = _linear(weights, f'{name}.q_proj', x)
  k, v = (_linear(weights, f'{name}.{part}_proj', y) for part in 'kv')
  heads = []
  for h in range(2):
    part = slice(8 * h, 8 * h + 8)
    logits = q[:, part] @ k[:, part].T / math.sqrt(8)
    if causal:
      logits[np.triu_indices(len(x), 1)] = -np.inf
    p = np.exp(logits)
    heads.append(p / p.sum(-1, keepdims=True) @ v[:, part])
  return _linear(weights, f'{name}.out_proj', np.concatenate(heads, -1))


def test_scores_are_mean_log_probabilities(folder):
  metric = registry.load(folder)
  assert metric.name == 'BARTScore'
  scores = metric.score(HYPOTHESES, REFERENCES)
  pairs = list(zip(HYPOTHESES, REFERENCES, strict=True))
  precision = [_log_prob(folder, r, h) for h, r in pairs]
  recall = [_log_prob(folder, h, r) for h, r in pairs]
  np.testing.assert_allclose(
    scores.components['precision'], precision, atol=1e-5
  )
  np.testing.assert_allclose(scores.components['recall'], recall, atol=1e-5)
  np.testing.assert_allclose(
    scores.values, np.mean([precision, recall], axis=0), atol=1e-5
  )
  assert scores.truncated == 1
  faithful = registry.load(folder, direction='precision', source_based=True)
  np.testing.assert_allclose(
    faithful.score(HYPOTHESES, None, SOURCES).values,
    [_log_prob(folder, s, h) for h, s in zip(HYPOTHESES, SOURCES, strict=True)],
    atol=1e-5,
  )


def test_tokens_are_those_of_the_target_with_begin_and_end(folder):
  metric = registry.load(folder, direction='precision', token_log_probs=True)
  scores = metric.score(HYPOTHESES[:1], REFERENCES[:1])
  (tokens,) = scores.token_log_probs['precision']
  assert len(tokens) == len(tiny_bart.tokenizer().encode(HYPOTHESES[0]).ids)
  assert np.mean(tokens) == pytest.approx(scores.values[0], abs=1e-6)


def test_convert_writes_the_same_model(folder, tmp_path):
  target = str(tmp_path / 'again')
  assert (
    cli.main(['convert', '--to', 'hf', '--quiet', str(folder), target]) == 0
  )
  for loaded in (bart.load(folder), bart.load(target)):
    assert loaded.config == bart.load(folder).config
  first, second = (
    registry.load(path).score(['the cat'], ['a cat']).values
    for path in (folder, target)
  )
  np.testing.assert_array_equal(first, second)


def test_other_models_are_refused(folder, tmp_path):
  other = tmp_path / 'other'
  other.mkdir()
  for path in folder.iterdir():
    (other / path.name).write_bytes(path.read_bytes())
  settings = json.loads((folder / 'config.json').read_text())
  for change, problem in (
    ({'normalize_before': True}, 'normalize_before'),
    ({'decoder_ffn_dim': 99}, 'ffn_dim'),
    ({'activation_function': 'swoosh'}, 'swoosh'),
  ):
    (other / 'config.json').write_text(json.dumps({**settings, **change}))
    with pytest.raises(CheckpointError, match=problem):
      registry.load(other)
  (other / 'config.json').write_text(json.dumps(settings))
  tensors = safetensors.numpy.load_file(other / 'model.safetensors')
  tensors['final_logits_bias'] += 1
  safetensors.numpy.save_file(tensors, other / 'model.safetensors')
  with pytest.raises(CheckpointError, match='final_logits_bias'):
    registry.load(other)
  with pytest.raises(OptionError, match='needs a model'):
    registry.load(metric='bartscore')
  with pytest.raises(OptionError, match='max_length'):
    registry.load(folder, max_length=4000)
