"""The T5X model classes by themselves, on T5X's own networks.

`models/test_t5x_upstream.py` runs T5X's programs with them.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip(
  't5x',
  reason='T5X is not installed: pip install '
  'git+https://github.com/google-research/t5x (see docs/t5x.md)',
  exc_type=ImportError,
)

import gin  # noqa: E402
from t5x import adafactor  # noqa: E402
from t5x.examples.scalable_t5 import network as scalable  # noqa: E402
from t5x.examples.t5 import network  # noqa: E402

from t5score_jax.models import t5x  # noqa: E402
from t5score_jax.nn import t5  # noqa: E402
from t5score_jax.tasks import vocabularies  # noqa: E402
from t5score_jax.training import optimizers  # noqa: E402

GIN = pathlib.Path(__file__).resolve().parents[2] / 'gin_configs'
SHAPE = {
  'vocab_size': 48,
  'emb_dim': 16,
  'num_heads': 2,
  'head_dim': 8,
  'mlp_dim': 24,
  'num_encoder_layers': 2,
  'num_decoder_layers': 2,
  'mlp_activations': ('gelu', 'linear'),
  'dropout_rate': 0.0,
}
MODULES = {
  'T5': network.Transformer(network.T5Config(**SHAPE)),
  'T5 tied': network.Transformer(
    network.T5Config(**SHAPE, logits_via_embedding=True)
  ),
  'scalable': scalable.Transformer(
    scalable.T5Config(**SHAPE, remat_policy='minimal')
  ),
}


def _texts(*shape, seed):
  rng = np.random.default_rng(seed)
  *rows, length = shape
  tokens = rng.integers(2, SHAPE['vocab_size'], (int(np.prod(rows)), length))
  for row in tokens:
    end = rng.integers(1, length)
    row[end] = 1
    row[end + 1 :] = 0
  return tokens.reshape(shape).astype(np.int32)


GROUPS = {
  'shared_tokens': _texts(2, 6, seed=5),
  'hypothesis_tokens': _texts(2, 3, 5, seed=6),
  'ratings': np.array([[0.5, -1, 1.5], [1, 1, -0.5]], np.float32),
  'group_mask': np.array([[1, 1, 1], [1, 1, 0]], np.float32),
}


def _model(cls=t5x.GroupT5XModel, module=MODULES['T5'], **settings):
  vocabulary = vocabularies.seqio_vocabulary('bytes')
  return cls(
    module=module,
    input_vocabulary=vocabulary,
    output_vocabulary=vocabulary,
    optimizer_def=adafactor.Adafactor(),
    **settings,
  )


def _variables(model):
  shapes = {name: value.shape for name, value in GROUPS.items()}
  return jax.jit(lambda rng: model.get_initial_variables(rng, shapes))(
    jax.random.key(0)
  )


@pytest.mark.parametrize('name', list(MODULES))
def test_library_network_gives_the_same_numbers(name):
  models = [
    _model(module=MODULES[name], library_network=own) for own in (False, True)
  ]
  variables = _variables(models[0])
  assert set(variables) == {'params', 'params_axes'}
  losses, scores, gradients = [], [], []
  for model in models:
    step = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))
    (loss, _), gradient = step(variables['params'], GROUPS, None)
    losses.append(loss)
    gradients.append(gradient)
    scores.append(jax.jit(model.score_batch)(variables['params'], GROUPS))
  np.testing.assert_allclose(*losses, rtol=1e-5)
  np.testing.assert_allclose(*scores, rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
    *gradients,
  )


def test_normalizer_and_metrics():
  models = {
    factor: _model(loss_normalizing_factor=factor)
    for factor in (None, 'mean', 5)
  }
  params = _variables(models[None])['params']
  losses = {}
  for factor, model in models.items():
    loss, metrics = jax.jit(model.loss_fn)(params, GROUPS, None)
    losses[factor] = float(loss)
  # Pairs of unlike ratings: 3, and in the second group none of a padded text.
  weight = 2 * (3 + 0)
  assert float(metrics['loss'].weight) == weight
  assert losses['mean'] == pytest.approx(losses[None] / weight, rel=1e-5)
  assert losses[5] == pytest.approx(losses[None] / 5, rel=1e-5)
  mean = float(metrics['loss'].compute())
  assert mean == pytest.approx(losses['mean'], rel=1e-5)
  assert float(metrics['timing/seqs_per_second'].numerator) == 2


def test_weighted_means_add_up():
  one, nothing = t5x.WeightedMean(3.0, 2.0), t5x.WeightedMean(0.0, 0.0)
  merged = one.merge(t5x.WeightedMean(5.0, 6.0)).merge(nothing)
  assert float(merged.compute()) == 1.0
  assert float(nothing.compute()) == 0.0


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'loss_normalizing_factor': 'tokens'}, "use None, 'mean' or a number"),
    ({'loss_normalizing_factor': 0}, 'must be above 0'),
    ({'directions': ()}, 'directions'),
  ],
)
def test_refuses(settings, message):
  with pytest.raises(ValueError, match=message):
    _model(**settings)


@pytest.mark.parametrize(
  'settings', [{'scan_layers': False}, {'param_scan_axis': 0}]
)
def test_layouts_that_this_library_does_not_have_are_refused(settings):
  module = scalable.Transformer(scalable.T5Config(**SHAPE, **settings))
  with pytest.raises(ValueError, match=next(iter(settings))):
    _model(module=module, library_network=True)


def test_settings_of_another_objective_are_refused():
  with pytest.raises(TypeError, match='min_gap'):
    _model(t5x.PairT5XModel, min_gap=0.5)


def test_judgments_are_not_decoded():
  with pytest.raises(ValueError, match='cannot be decoded'):
    _model().predict_batch({}, GROUPS)


def test_texts_are_scored_and_decoded_by_any_model():
  model = _model()
  params = _variables(model)['params']
  texts = {
    'encoder_input_tokens': _texts(2, 6, seed=1),
    'decoder_input_tokens': np.zeros((2, 4), np.int32),
    'decoder_target_tokens': _texts(2, 4, seed=2),
  }
  scores = jax.jit(model.score_batch)(params, texts)
  assert scores.shape == (2,)
  assert (np.asarray(scores) < 0).all()
  decoded = jax.jit(model.predict_batch)(params, texts)
  assert decoded.shape == (2, 4)
  with pytest.raises(ValueError, match='return_intermediates'):
    model.score_batch(params, texts, return_intermediates=True)


def test_schedules_count_from_the_first_step():
  schedule = t5x.from_step(optimizers.linear(1.0, 10, 2), first_step=100)
  plain = optimizers.linear(1.0, 10, 2)
  for step in (0, 1, 5, 10):
    assert float(schedule(jnp.asarray(100 + step))) == float(plain(step))
  assert float(schedule(jnp.asarray(7))) == float(plain(0))


@pytest.mark.parametrize('size', ['small', 'base', 'large', 'xl', 'xxl'])
def test_mt5_of_t5x_has_the_shape_of_this_librarys(size):
  """Where this library has the size too."""
  free = ('dtype', 'remat', 'scan_layers')
  found = {}
  for name, config in (('t5x', network.T5Config), ('models', t5.T5Config)):
    with gin.unlock_config():
      gin.clear_config()
      gin.parse_config_files_and_bindings(
        [str(GIN / name / f'mt5_{size}.gin')],
        ["VOCABULARY_FILE = 'bytes'", 'DROPOUT_RATE = 0.1'],
      )
    found[name] = gin.get_configurable(config)()
  gin.clear_config()
  theirs, ours = t5x.library_config(found['t5x']), found['models']
  for field in t5.T5Config.__dataclass_fields__:
    if field not in free:
      assert getattr(theirs, field) == getattr(ours, field), field
