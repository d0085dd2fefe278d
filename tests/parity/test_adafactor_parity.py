"""Adafactor with the settings of the paper against transformers."""

import jax
import numpy as np
import pytest

from t5score_jax.training import optimizers

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

pytestmark = pytest.mark.parity

# Root mean squares as in mT5: a kernel, the embeddings, a norm's scale.
SCALES = {
  'encoder/layers_0/mlp/wo/kernel': ((160, 130), 0.05),
  'token_embedder/embedding': ((200, 140), 5.0),
  'encoder/encoder_norm/scale': ((64,), 1.0),
}


@pytest.mark.parametrize('decay', [0.0, 0.01])
def test_equals_transformers_over_several_steps(decay):
  draw = np.random.default_rng(0).normal
  params = {
    name: np.float32(scale * draw(size=shape))
    for name, (shape, scale) in SCALES.items()
  }
  gradients = [
    {name: np.float32(draw(size=x.shape)) for name, x in params.items()}
    for _ in range(6)
  ]
  # As `TrainingArguments(adafactor=True)` makes it.
  leaves = {
    name: torch.nn.Parameter(torch.tensor(x)) for name, x in params.items()
  }
  decays = [name for name in leaves if not name.endswith('scale')]
  theirs = transformers.Adafactor(
    [
      {'params': [leaves[name] for name in decays], 'weight_decay': decay},
      {'params': [leaves['encoder/encoder_norm/scale']], 'weight_decay': 0.0},
    ],
    lr=1e-3,
    scale_parameter=False,
    relative_step=False,
  )
  for gradient in gradients:
    for name, leaf in leaves.items():
      leaf.grad = torch.tensor(gradient[name])
    theirs.step()

  ours = optimizers.adafactor(
    optimizers.constant(1e-3),
    multiply_by_parameter_scale=False,
    weight_decay=decay,
  ).transformation
  trained, state = params, ours.init(params)
  for gradient in gradients:
    updates, state = ours.update(gradient, state, trained)
    trained = jax.tree.map(np.add, trained, updates)

  for name, leaf in leaves.items():
    moved = np.asarray(trained[name]) - params[name]
    expected = leaf.detach().numpy() - params[name]
    assert np.sqrt(np.mean(expected**2)) > 1e-3
    # Differences of float32 at the size of the parameter.
    rounding = 4e-6 * SCALES[name][1]
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=rounding)
