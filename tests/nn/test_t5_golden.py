"""The T5 family against files that transformers' outputs were written to.

`golden/make_t5.py` made them; `parity/` compares with transformers itself.
"""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from t5_outputs import assert_equal_outputs, compute

from t5score_jax.nn import t5

_FILES = sorted((pathlib.Path(__file__).parents[1] / 'golden').glob('t5_*.npz'))


def _read(path):
  """(config, params, inputs and targets, stride, expected outputs)."""
  with np.load(path) as file:
    arrays = dict(file)
  config = t5.T5Config(**json.loads(str(arrays.pop('config'))))
  step, stride = arrays.pop('weight_step'), int(arrays.pop('stride'))
  params = {
    name.removeprefix('params/'): (arrays.pop(name) * step).astype(np.float32)
    for name in list(arrays)
    if name.startswith('params/')
  }
  batch = {key: arrays.pop(key) for key in ('inputs', 'targets')}
  return config, unflatten_dict(params, sep='/'), batch, stride, arrays


def test_every_member_of_the_family_has_a_small_file():
  members = [path.stem.removeprefix('t5_') for path in _FILES]
  assert members == ['1_0', '1_1', 'byt5', 'mt5', 'umt5']
  assert sum(path.stat().st_size for path in _FILES) < 300_000


@pytest.mark.parametrize(
  'path',
  [
    # ByT5 and mT5 are the network of T5 1.1.
    pytest.param(
      path, marks=pytest.mark.slow if path.stem[3:] in ('byt5', 'mt5') else []
    )
    for path in _FILES
  ],
  ids=lambda p: p.stem,
)
def test_equals_golden_file(path):
  config, params, batch, stride, expected = _read(path)
  assert set(expected) == {'encoded', 'logits', 'log_probs', 'scores'}
  assert np.std(expected['logits']) > 0.5
  made = compute(config, params, **batch)
  for key in ('encoded', 'logits'):
    made[key] = made[key][:, ::stride]
  assert_equal_outputs(made, expected)


@pytest.mark.parametrize(
  'path',
  [
    _FILES[0],
    *(pytest.param(path, marks=pytest.mark.slow) for path in _FILES[1:]),
  ],
  ids=lambda p: p.stem,
)
def test_bfloat16_stays_close_to_the_golden_file(path):
  config, params, batch, _, expected = _read(path)
  config = dataclasses.replace(config, dtype='bfloat16')
  made = compute(config, params, **batch)
  error = np.abs(made['scores'] - expected['scores'])
  # 8 bits of mantissa, and scores of some -5 nats a token.
  assert 0 < error.max() < 0.1
