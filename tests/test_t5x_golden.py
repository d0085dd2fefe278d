"""T5X's own checkpoints score as T5X scored them.

Reads what upstream wrote directly with TensorStore: a test of the network, its
parameter names and equation 1, not of an importer.
"""

import itertools
import json
import pathlib
import tarfile

import jax
import numpy as np
import pytest
import tensorstore
from flax.traverse_util import flatten_dict, unflatten_dict
from t5_outputs import compute

from t5score_jax.data.vocab import ByteVocabulary
from t5score_jax.nn import t5

_FOLDER = pathlib.Path(__file__).resolve().parents[2] / 'shared/data/t5x_golden'
pytestmark = pytest.mark.skipif(
  not _FOLDER.is_dir(), reason=f'{_FOLDER} is not there'
)

_CONFIG = t5.T5Config(
  vocab_size=384,
  emb_dim=128,
  num_heads=4,
  head_dim=32,
  mlp_dim=256,
  num_encoder_layers=2,
  num_decoder_layers=2,
)


def _legacy(checkpoint, name):
  path = checkpoint / f'target.{name.replace("/", ".")}'
  return {'driver': 'file', 'path': f'{path}/'}


def _orbax(checkpoint, name):
  return {
    'driver': 'ocdbt',
    'base': f'file://{checkpoint / "state"}/',
    'path': f'target.{name.replace("/", ".")}/',
  }


def _read(folder, layout, place):
  """Parameters: each a zarr array at the place that the layout gives it."""
  with tarfile.open(_FOLDER / f'{layout}_checkpoint_20.tar.gz') as archive:
    archive.extractall(folder, filter='data')
  shapes = jax.eval_shape(
    lambda rng: t5.init_params(_CONFIG, rng), jax.random.key(0)
  )
  params = {}
  for name, shape in flatten_dict(shapes, sep='/').items():
    kvstore = place(folder / 'checkpoint_20', name)
    spec = {'driver': 'zarr', 'kvstore': kvstore}
    params[name] = tensorstore.open(spec, open=True).result().read().result()
    assert params[name].shape == shape.shape, name
  return unflatten_dict(params, sep='/')


def _tokens(texts):
  """ByT5's ids, ending in ``</s>``, padded with 0."""
  ids = [[*ByteVocabulary().encode(text), 1] for text in texts]
  return np.array(list(itertools.zip_longest(*ids, fillvalue=0)), np.int32).T


@pytest.mark.parametrize(
  ('layout', 'place'),
  [('legacy', _legacy), ('orbax_8_devices', _orbax)],
  ids=['legacy', 'orbax'],
)
def test_scores_equal_those_of_t5x(tmp_path, layout, place):
  params = _read(tmp_path, layout, place)
  text = (_FOLDER / f'{layout}_scores.jsonl').read_text(encoding='utf-8')
  lines = [json.loads(line) for line in text.splitlines()]
  inputs, targets = (
    _tokens([line['inputs'][f'{side}_pretokenized'] for line in lines])
    for side in ('inputs', 'targets')
  )
  made = compute(_CONFIG, params, inputs, targets)
  # T5X writes sums.
  expected = np.array([line['score'] for line in lines])
  np.testing.assert_allclose(
    made['log_probs'].sum(axis=1), expected, rtol=0, atol=1e-4
  )
  count = (targets > 0).sum(axis=1)
  np.testing.assert_allclose(made['scores'], expected / count, atol=1e-4)
