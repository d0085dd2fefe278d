"""Generation against transformers' generate: the same ids."""

import functools

import jax
import numpy as np
import pytest

torch = pytest.importorskip('torch')
pytest.importorskip('transformers')

from t5score_jax.inference import search  # noqa: E402
from tests.parity import hf_t5  # noqa: E402

pytestmark = pytest.mark.parity

_MOST = 12


def _model(name):
  case = hf_t5.CASES[name]
  model = case.make()
  hf_t5.randomize(model, seed=5)
  with torch.no_grad():
    # Random weights seldom end a text; these do now and then.
    head = model.lm_head.weight
    if not model.config.tie_word_embeddings:
      head[1] *= 2.0
  return case, model


@pytest.fixture(scope='module', params=['1_0', '1_1', 'umt5'])
def pair(request):
  return _model(request.param)


@pytest.mark.parametrize(
  ('beams', 'penalty'), [(1, 1.0), (2, 1.0), (4, 1.0), (4, 0.0), (3, 1.6)]
)
def test_equals_transformers(pair, beams, penalty):
  case, model = pair
  inputs = hf_t5.batch(case, seed=4, rows=4)['inputs']
  method = search.Method(
    max_tokens=_MOST, beams=beams, length_penalty=penalty, outputs=beams
  )
  run = jax.jit(
    functools.partial(
      search.search,
      config=case.config,
      method=method,
      vocab_size=case.config.vocab_size,
    )
  )
  made = run(
    hf_t5.to_t5x(model, case.config),
    encoder_tokens=inputs,
    keys=np.zeros((len(inputs), 2), np.uint32),
  )
  ids = torch.from_numpy(inputs).long()
  expected = model.generate(
    input_ids=ids,
    attention_mask=(ids > 0).long(),
    do_sample=False,
    num_beams=beams,
    num_return_sequences=beams,
    length_penalty=penalty,
    max_new_tokens=_MOST,
    suppress_tokens=[0],
    decoder_start_token_id=0,
    pad_token_id=0,
    eos_token_id=1,
    return_dict_in_generate=True,
    output_scores=True,
  )
  sequences = expected.sequences.numpy()[:, 1:]
  sequences = np.pad(sequences, [(0, 0), (0, _MOST - sequences.shape[1])])
  # Beam search of transformers pads with `</s>` where padding is id 0.
  ended = np.cumsum(sequences == 1, axis=1) - (sequences == 1) > 0
  sequences = np.where(ended, 0, sequences)
  tokens = np.asarray(made.tokens).reshape(-1, _MOST)
  np.testing.assert_array_equal(tokens, sequences)
  if beams > 1:
    lengths = np.sum(tokens > 0, axis=1)
    scores = np.asarray(made.log_probs).reshape(-1) / lengths**penalty
    np.testing.assert_allclose(
      scores, expected.sequences_scores.numpy(), rtol=1e-4, atol=1e-4
    )
