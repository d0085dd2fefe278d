"""The T5 family against transformers: states, logits, log-probabilities."""

import numpy as np
import pytest

pytest.importorskip('torch')
pytest.importorskip('transformers')

from t5_outputs import assert_equal_outputs, compute  # noqa: E402

from tests.golden import make_t5  # noqa: E402
from tests.parity import hf_t5  # noqa: E402

pytestmark = pytest.mark.parity


@pytest.mark.parametrize('name', sorted(hf_t5.CASES))
def test_equals_transformers(name):
  case = hf_t5.CASES[name]
  model = case.make()
  hf_t5.randomize(model, seed=3)
  batch = hf_t5.batch(case, seed=4)
  expected = hf_t5.outputs(model, **batch)
  assert np.std(expected['logits']) > 0.5
  params = hf_t5.to_t5x(model, case.config)
  assert_equal_outputs(compute(case.config, params, **batch), expected)


@pytest.mark.parametrize('name', sorted(hf_t5.CASES))
def test_golden_files_are_what_transformers_computes(name):
  with np.load(make_t5.path(name)) as golden:
    for key, value in make_t5.make(name).items():
      if value.dtype == np.float32:
        np.testing.assert_allclose(
          golden[key], value, rtol=1e-5, atol=2e-5, err_msg=key
        )
      else:
        np.testing.assert_array_equal(golden[key], value, err_msg=key)
