"""FrugalScore: the network by NumPy, folders, batches."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tiny_encoder
from flax import traverse_util

import t5score_jax
from t5score_jax import cli
from t5score_jax.checkpoints import bundle, cross_encoders, kinds, native
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.inference import encoding
from t5score_jax.metrics import registry
from t5score_jax.nn import cross_encoder
from t5score_jax.nn.shapes import param_shapes

HYPOTHESES = ['the cat sat', 'a dog ran over the hill .', '', 'green birds']
REFERENCES = ['a cat sat', 'the dogs ran over', 'the mat', 'the bird , green']


def make(folder, **changes):
  config = dataclasses.replace(tiny_encoder.CONFIG, **changes)
  encoder = encoders.load_encoder(tiny_encoder.make(folder / 'encoder', config))
  shapes = param_shapes(cross_encoder.init_params, encoder.config)
  params = {**shapes, 'encoder': encoder.params}
  rng = np.random.default_rng(2)
  for part in ('pooler', 'output'):
    params[part] = {
      name: rng.normal(size=leaf.shape).astype('f4')
      for name, leaf in params[part].items()
    }
  model = cross_encoders.CrossEncoder(
    encoder.config,
    params,
    encoder.tokenizer,
    {'name': 'toy', 'max_length': 20, 'teacher': 'metric:none'},
  )
  cross_encoders.save(model, folder / 'm')
  return model


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('miniature')
  make(folder)
  return folder / 'm'


def by_numpy(model, hypothesis, reference, length):
  (found,) = model.tokenizer.encode_pairs([(hypothesis, reference)], length)
  states = tiny_encoder.numpy_states(
    model.params['encoder'], model.config, found.ids, found.types
  )
  p = model.params['pooler']
  x = np.tanh(states[-1, 0] @ p['kernel'].astype(float) + p['bias'])
  p = model.params['output']
  return float((x @ p['kernel'].astype(float) + p['bias'])[0])


@pytest.mark.parametrize('batch_tokens', [20, 4096])
def test_by_numpy(folder, batch_tokens):
  model = cross_encoders.load(folder)
  metric = registry.load_metric(
    'frugalscore', model=folder, batch_tokens=batch_tokens
  )
  found = metric.score(HYPOTHESES, REFERENCES)
  want = [
    by_numpy(model, h, r, 20)
    for h, r in zip(HYPOTHESES, REFERENCES, strict=True)
  ]
  np.testing.assert_allclose(found.values, want, atol=3e-5)
  assert 'model:toy|' in found.signature and 'length:20' in found.signature


def test_the_longer_text_is_cut_first(folder):
  model = cross_encoders.load(folder)
  metric = registry.load_metric('frugalscore', model=folder, max_length=8)
  found = metric.score(['the cat sat on the mat'], ['dog'])
  want = by_numpy(model, 'the cat sat on', 'dog', 20)
  np.testing.assert_allclose(found.values, [want], atol=3e-5)
  assert found.truncated == 1


def test_what_is_in_memory_at_once_does_not_matter(folder, monkeypatch):
  metric = registry.load_metric('frugalscore', model=folder)
  whole = metric.score(HYPOTHESES, REFERENCES).values
  monkeypatch.setattr(encoding, 'WINDOW', 3)
  calls = []
  metric.progress = lambda *call: calls.append(call)
  found = metric.score(HYPOTHESES, REFERENCES)
  np.testing.assert_allclose(found.values, whole, atol=1e-6)
  assert found.texts == 4 and calls[-1] == (4, 4) and calls == sorted(calls)


@pytest.mark.parametrize(('positions', 'length'), [(200, 128), (24, 24)])
def test_the_papers_length_is_the_default(tmp_path, positions, length):
  model = make(tmp_path, max_positions=positions)
  settings = {'name': 'toy'}
  bare = dataclasses.replace(model, settings=settings)
  cross_encoders.save(bare, tmp_path / 'bare')
  metric = registry.load_metric('frugalscore', model=tmp_path / 'bare')
  assert f'|length:{length}|' in metric.signature()


def test_several_references(folder):
  metric = registry.load_metric('frugalscore', model=folder)
  one = metric.score(HYPOTHESES, REFERENCES).values
  two = metric.score(HYPOTHESES, REFERENCES[::-1]).values
  both = list(zip(REFERENCES, REFERENCES[::-1], strict=True))
  np.testing.assert_allclose(
    metric.score(HYPOTHESES, both).values, np.maximum(one, two), atol=1e-6
  )


def test_round_trip_is_exact(tmp_path):
  model = make(tmp_path)
  again = cross_encoders.load(tmp_path / 'm')
  assert again.config == model.config
  assert again.settings == model.settings
  jax.tree.map(np.testing.assert_array_equal, again.params, dict(model.params))


def test_every_parameter_has_axes(folder):
  params = cross_encoders.load(folder).params
  axes = cross_encoder.logical_axes(params)
  for part in ('pooler', 'output'):
    for name, leaf in params[part].items():
      assert len(axes[part][name]) == leaf.ndim


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'architectures': ['BertModel']}, 'not a BertForSequenceClassification'),
    ({'num_hidden_layers': 9}, 'parameters are missing'),
    ({'vocab_size': 7}, 'the embedding only 7 rows'),
  ],
)
def test_wrong_folders(tmp_path, change, words):
  make(tmp_path)
  path = tmp_path / 'm' / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  with pytest.raises(CheckpointError, match=words):
    cross_encoders.load(tmp_path / 'm')


def test_convert_writes_the_layout_of_hugging_face(folder, tmp_path, capsys):
  out = str(tmp_path / 'out')
  assert cli.main(['convert', '--to', 'hf', str(folder), out]) == 0
  assert 'BertForSequenceClassification' in capsys.readouterr().out
  assert t5score_jax.load(out).signature() == (
    t5score_jax.load(folder).signature()
  )
  assert cli.main(['convert', '--to', 'estimator', str(folder), out]) == 2
  assert 'a model of kind miniature is hf' in capsys.readouterr().err


def test_command(folder, tmp_path, capsys):
  for name, texts in (('h', HYPOTHESES), ('r', REFERENCES)):
    (tmp_path / name).write_text('\n'.join(texts) + '\n')
  texts = ['-t', str(tmp_path / 'h'), '-r', str(tmp_path / 'r')]
  command = ['score', '-m', 'frugalscore', '--quiet', *texts]
  assert cli.main([*command, '--option', f'model={folder}']) == 0
  assert len(capsys.readouterr().out.splitlines()) == 4
  assert cli.main([*command, '--option', 'model=absent']) == 1
  assert "no model 'absent'" in capsys.readouterr().err


def test_the_embedded_model_is_the_default(folder, monkeypatch):
  monkeypatch.setattr(kinds, 'PRETRAINED', folder.parent)
  with pytest.raises(FileNotFoundError, match="no model 'frugalscore-tiny'"):
    registry.load_metric('frugalscore')
  (folder.parent / 'frugalscore-tiny').symlink_to(folder)
  try:
    assert kinds.embedded(kinds.CROSS_ENCODER) == ['frugalscore-tiny', 'm']
    metric = registry.load_metric('frugalscore')
    assert metric.signature() == t5score_jax.load('m').signature()
    assert t5score_jax.load('frugalscore-tiny').name == 'FrugalScore'
    on_it = t5score_jax.load('frugalscore-tiny', 'bertscore')
    assert on_it.name == 'BERTScore'
  finally:
    (folder.parent / 'frugalscore-tiny').unlink()


def test_a_cross_encoder_gives_its_encoder_to_another_head(tmp_path):
  model = make(tmp_path)
  encoder = {
    name: jax.ShapeDtypeStruct(array.shape, array.dtype)
    for name, array in bundle.flatten_names(model.params)
    if name.startswith('encoder/')
  }
  head = {'estimator/dense/bias': jax.ShapeDtypeStruct((2,), np.float32)}

  def opened(shapes):
    tree = traverse_util.unflatten_dict(shapes, sep='/')
    return native.open_initial(tmp_path / 'm', tree, '^estimator/')

  assert set(opened(encoder | head)) == set(encoder)
  assert not opened(head)
  with pytest.raises(native.CheckpointError, match='unexpected  pooler/bias'):
    opened(encoder | {'output/bias': jax.ShapeDtypeStruct((1,), np.float32)})
