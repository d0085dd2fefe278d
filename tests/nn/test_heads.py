"""COMET's and COMES's regressor: NumPy, folders, COMET's own layout."""

import json

import jax
import numpy as np
import pytest
import tiny_encoder
import tiny_regressor

from t5score_jax import cli
from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import kinds, regressors
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.errors import OptionError
from t5score_jax.metrics import registry
from t5score_jax.nn import heads

HYPOTHESES = ['the cat sat', 'a dog ran over the hill .', '', 'green birds']
REFERENCES = ['a cat sat', 'the dogs ran over', 'the mat', 'the bird , green']
SOURCES = ['the mat', 'a small hill', 'cat', 'dog dog']
DIMENSIONS = ('coherence', 'fluency')


@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
  folder = tiny_encoder.make(tmp_path_factory.mktemp('encoder'))
  return encoders.load_encoder(folder)


def numpy_outputs(model, hypothesis, source, reference):
  """The whole regressor in NumPy, a segment at a time."""
  c, p = model.config, model.params

  def vector(text):
    (found,) = model.tokenizer.encode_batch([text], 24)
    states = tiny_encoder.numpy_states(p['encoder'], c.encoder, found.ids)
    if c.layer == 'mix':
      if c.layer_norm:
        flat = states.reshape(len(states), -1)
        flat = flat - flat.mean(1, keepdims=True)
        flat = flat / flat.std(1, keepdims=True)
        states = flat.reshape(states.shape)
      x = p['mix']['scalars'].astype(float)
      if c.layer_transformation == 'softmax':
        w = np.exp(x) / np.exp(x).sum()
      else:
        # All thresholds that a support could give; the right one is largest.
        ordered = np.sort(x)[::-1]
        t = max((ordered[: k + 1].sum() - 1) / (k + 1) for k in range(len(x)))
        w = np.maximum(x - t, 0)
        assert abs(w.sum() - 1) < 1e-9
      states = p['mix']['gamma'] * np.einsum('l,lte->te', w, states)
    else:
      states = states[c.layer]
    pools = {'mean': lambda: states.mean(0), 'max': lambda: states.max(0)}
    if c.pooling == 'pooler':
      layer = p['pooler']
      return np.tanh(states[0] @ layer['kernel'].astype(float) + layer['bias'])
    return pools.get(c.pooling, lambda: states[0])()

  h, s = vector(hypothesis), vector(source)
  if c.reference:
    r = vector(reference)
    x = np.concatenate([h, r, h * r, abs(h - r), h * s, abs(h - s)])
  else:
    x = np.concatenate([h, s, h * s, abs(h - s)])
  depth = len(c.hidden_sizes)
  for n in range(depth + 1):
    layer = p['estimator'][f'layers_{n}']
    x = x @ layer['kernel'].astype(float) + layer['bias']
    if n < depth:
      x = np.tanh(x) if c.activation == 'tanh' else np.maximum(x, 0)
  return 1 / (1 + np.exp(-x)) if c.final_activation == 'sigmoid' else x


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'layer_transformation': 'softmax', 'layer_norm': True},
    {'reference': False, 'outputs': DIMENSIONS},
    {'layer': 2, 'pooling': 'cls', 'activation': 'relu'},
    {'layer': 0, 'pooling': 'max', 'final_activation': 'sigmoid'},
    {'hidden_sizes': (9,), 'outputs': DIMENSIONS},
    {'layer': 3, 'pooling': 'pooler'},
  ],
)
def test_by_numpy(encoder, tmp_path, changes):
  model = tiny_regressor.make(encoder, **changes)
  regressors.save(model, tmp_path / 'm')
  metric = registry.load_metric('comes', model=tmp_path / 'm')
  found = metric.score(HYPOTHESES, REFERENCES, SOURCES)
  want = np.array(
    [
      numpy_outputs(model, h, s, r)
      for h, s, r in zip(HYPOTHESES, SOURCES, REFERENCES, strict=True)
    ]
  )
  np.testing.assert_allclose(found.values, want.mean(1), atol=2e-5)
  for n, name in enumerate(model.config.outputs):
    if len(model.config.outputs) > 1:
      np.testing.assert_allclose(found.components[name], want[:, n], atol=2e-5)


def test_sparsemax_is_a_projection():
  rng = np.random.default_rng(0)
  for x in rng.normal(size=(50, 6)).astype(np.float32):
    found = np.asarray(heads.sparsemax(x))
    assert found.min() >= 0 and abs(found.sum() - 1) < 1e-5
    # No point of the simplex is nearer.
    for other in rng.dirichlet(np.ones(6), 50):
      assert ((found - x) ** 2).sum() <= ((other - x) ** 2).sum() + 1e-5


def test_batches_and_order_do_not_matter(encoder, tmp_path):
  regressors.save(tiny_regressor.make(encoder), tmp_path / 'm')
  metric = registry.load_metric('comes', model=tmp_path / 'm')
  small = registry.load_metric('comes', model=tmp_path / 'm', batch_tokens=24)
  whole = metric.score(HYPOTHESES, REFERENCES, SOURCES).values
  backwards = small.score(HYPOTHESES[::-1], REFERENCES[::-1], SOURCES[::-1])
  np.testing.assert_allclose(backwards.values[::-1], whole, atol=1e-5)
  for n in range(4):
    one = metric.score([HYPOTHESES[n]], [REFERENCES[n]], [SOURCES[n]])
    np.testing.assert_allclose(one.values[0], whole[n], atol=1e-5)


def test_several_references_each_output_has_its_best(encoder, tmp_path):
  regressors.save(
    tiny_regressor.make(encoder, outputs=DIMENSIONS), tmp_path / 'm'
  )
  metric = registry.load_metric('comes', model=tmp_path / 'm', output='fluency')
  several = list(zip(REFERENCES, REFERENCES[::-1], strict=True))
  found = metric.score(HYPOTHESES, several, SOURCES)
  apart = [
    metric.score(HYPOTHESES, r, SOURCES).components
    for r in (REFERENCES, REFERENCES[::-1])
  ]
  for name in DIMENSIONS:
    best = np.maximum(apart[0][name], apart[1][name])
    np.testing.assert_allclose(found.components[name], best, atol=1e-6)
  np.testing.assert_array_equal(found.values, found.components['fluency'])
  assert 'output:fluency' in found.signature


def test_widening_begins_as_copies(encoder):
  model = tiny_regressor.make(encoder)
  params, config = heads.widen(model.params, model.config, DIMENSIONS)
  x = np.random.default_rng(0).normal(size=(3, config.features)).astype('f4')
  one = heads.feed_forward(model.params['estimator'], model.config, x)
  two = heads.feed_forward(params['estimator'], config, x)
  np.testing.assert_allclose(two, np.repeat(one, 2, axis=1), atol=1e-6)
  with pytest.raises(OptionError, match='can be widened'):
    heads.widen(params, config, DIMENSIONS)


def test_every_parameter_has_axes(encoder):
  params = tiny_regressor.make(encoder).params
  axes = dict(bundles.flatten_names(heads.logical_axes(params)))
  for name, array in bundles.flatten_names(params):
    assert len(axes[name]) == array.ndim, name


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'format': 2}, 'format 2'),
    ({'model': {}}, 'damaged'),
    ({'kind': 'other'}, 'not a regressor'),
  ],
)
def test_damaged_folders(encoder, tmp_path, change, words):
  regressors.save(tiny_regressor.make(encoder), tmp_path)
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  with pytest.raises(CheckpointError, match=words):
    regressors.load(tmp_path)


def test_command(encoder, tmp_path, capsys):
  regressors.save(
    tiny_regressor.make(encoder, outputs=DIMENSIONS), tmp_path / 'm'
  )
  for name, texts in (('h', HYPOTHESES), ('r', REFERENCES), ('s', SOURCES)):
    (tmp_path / name).write_text('\n'.join(texts) + '\n')
  command = ['score', '-m', 'comes', '--quiet', '-t', str(tmp_path / 'h')]
  texts = ['-r', str(tmp_path / 'r'), '-s', str(tmp_path / 's')]
  option = ['--option', f'model={tmp_path / "m"}']
  assert cli.main([*command, *texts, *option]) == 0
  rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert len(rows) == 4 and {'score', *DIMENSIONS} <= set(rows[0])
  assert cli.main([*command, *texts[:2], *option]) == 1
  assert 'needs sources' in capsys.readouterr().err
  assert cli.main([*command, *texts, *option, '--option', 'output=x']) == 2
  assert "output 'x': the model has coherence" in capsys.readouterr().err


def test_convert_both_ways(encoder, tmp_path, capsys):
  model = tiny_regressor.make(encoder)
  regressors.save(model, tmp_path / 'a')
  comet_folder, again = tmp_path / 'comet', tmp_path / 'again'
  there = ['convert', '--to', 'comet', str(tmp_path / 'a'), str(comet_folder)]
  assert cli.main(there) == 0
  assert 'outputs score' in capsys.readouterr().out
  back = ['convert', '--from', 'comet', '--to', 'estimator']
  assert cli.main([*back, str(comet_folder), str(again)]) == 0
  found = regressors.load(again)
  assert found.config == model.config
  jax.tree.map(np.testing.assert_array_equal, found.params, dict(model.params))
  capsys.readouterr()
  assert cli.main([*back, str(comet_folder), str(again)]) == 1
  assert 'is there already' in capsys.readouterr().err


def test_the_encoder_alone_goes_to_hugging_face(encoder, tmp_path, capsys):
  model = tiny_regressor.make(encoder)
  regressors.save(model, tmp_path / 'a')
  places = [str(tmp_path / name) for name in 'abc']
  assert cli.main(['convert', '--to', 'hf', *places[:2]]) == 0
  assert 'BertModel, without the head' in capsys.readouterr().out
  found = encoders.load_encoder(tmp_path / 'b')
  want = model.params['encoder']
  jax.tree.map(np.testing.assert_array_equal, found.params, want)
  assert found.config == encoder.config
  # An encoder by itself, rounded.
  command = ['convert', '--to', 'hf', '--dtype', 'bfloat16']
  assert cli.main([*command, *places[1:]]) == 0
  again = encoders.load_encoder(tmp_path / 'c').params
  np.testing.assert_allclose(
    again['embeddings']['word'], want['embeddings']['word'], rtol=2**-8
  )
  assert cli.main(['convert', '--to', 'comet', *places[1:]]) == 2
  assert 'a model of kind encoder is hf' in capsys.readouterr().err


def test_embedded_models_are_converted_by_name(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert cli.main(['convert', '--to', 'hf', 'frugalscore-tiny', 'out']) == 0
  assert kinds.of(tmp_path / 'out') == kinds.CROSS_ENCODER
  assert 'BertForSequenceClassification' in capsys.readouterr().out


@pytest.mark.parametrize(
  ('arguments', 'code', 'words'),
  [
    (['--to', 'bundle'], 2, '--to bundle: a model of kind estimator is comet'),
    (['--to', 'comet', '--num-heads', '2'], 2, 'is for COMET checkpoints'),
    (['--to', 'comet', '--vocabulary', 'bytes'], 2, 'is for T5 models'),
    (
      ['--to', 'hf', '--max-shard-size', '1KB'],
      2,
      '--max-shard-size is for T5',
    ),
    (['--to', 'comet', '--dtype', 'bfloat16'], 2, 'float32'),
    (['--to', 'estimator', '--from', 'comet'], 2, '--from comet: a model of'),
  ],
)
def test_convert_errors(encoder, tmp_path, capsys, arguments, code, words):
  regressors.save(tiny_regressor.make(encoder), tmp_path / 'a')
  places = [str(tmp_path / 'a'), str(tmp_path / 'b')]
  assert cli.main(['convert', *arguments, *places]) == code
  captured = capsys.readouterr()
  assert words in captured.err and captured.err.count('\n') == 1
  assert not (tmp_path / 'b').exists()
