"""Generation: what is written, and what it must not depend on."""

import dataclasses
import functools

import jax
import naive_decoder
import numpy as np
import pytest
from t5_outputs import logits as logits_of
from t5_outputs import random_params

from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.inference import generation, placement, search
from t5score_jax.inference.search import Method
from tests.conftest import made_up_text

_TEXTS = made_up_text()
# Lengths from nothing to beyond the limit of 64 tokens, with repetitions.
INPUTS = [
  'the cat sees the moon.',
  '',
  'music',
  ' '.join(_TEXTS[:40]),
  'the cat sees the moon.',
  _TEXTS[5],
  _TEXTS[105],
]
MOST = 9


@pytest.fixture(scope='module')
def model(random_model) -> Bundle:
  """Random weights that end texts now and then."""
  config = dataclasses.replace(random_model.config, num_decoder_layers=2)
  params = random_params(config, seed=3)
  params = jax.tree.map(np.asarray, params)
  # `</s>` is neither certain nor out of reach.
  kernel = params['decoder']['logits_dense']['kernel'].copy()
  kernel[:, 1] *= 1.3
  params['decoder']['logits_dense']['kernel'] = kernel
  return dataclasses.replace(random_model, config=config, params=params)


@pytest.fixture(scope='module', autouse=True)
def _quick_compilation():
  """These tests spend their time on compiling, not on computing."""
  name = 'jax_disable_most_optimizations'
  before = jax.config.values[name]
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


@pytest.fixture(scope='module')
def naive(model):
  """The naive decoder's view of each input: all is computed anew."""
  vocab_size = model.vocabulary.vocab_size

  @jax.jit
  def all_log_probs(inputs, fed):
    logits = logits_of(model.params, model.config, inputs, fed)
    return jax.nn.log_softmax(logits)

  @functools.cache
  def after(text, ids):
    inputs, fed = np.zeros((1, 64), np.int32), np.zeros((1, 16), np.int32)
    encoded = [*model.vocabulary.encode(text)[:63], 1]
    inputs[0, : len(encoded)] = encoded
    fed[0, 1 : len(ids) + 1] = ids
    scores = np.array(all_log_probs(inputs, fed)[0, len(ids)], np.float64)
    scores[0] = scores[vocab_size:] = -np.inf
    return scores

  return {
    text: lambda ids, text=text: after(text, tuple(ids)) for text in INPUTS
  }


def _ids(bundle, method, texts=INPUTS, **options):
  """Outputs as (ids, log_prob), before they become text."""
  generator = generation.Generator(bundle, method, **options)
  encode = bundle.vocabulary.encode
  longest = generator.max_length - 1
  inputs = [np.array([*encode(t)[:longest], 1], np.int32) for t in texts]
  found: list = [None] * len(texts)
  for chosen, part in generator.sequences(inputs):
    for row, place in enumerate(chosen):
      found[place] = [
        (np.trim_zeros(ids, 'b').tolist(), float(log_prob))
        for ids, log_prob in zip(
          part.tokens[row], part.log_probs[row], strict=True
        )
      ]
  return found


def test_greedy_is_the_naive_decoders(model, naive):
  made = _ids(model, Method(max_tokens=MOST))
  ended = set()
  for text, [(ids, log_prob)] in zip(INPUTS, made, strict=True):
    expected, total = naive_decoder.greedy(naive[text], MOST)
    assert ids == expected
    assert log_prob == pytest.approx(total, abs=1e-4)
    ended.add(ids[-1] == 1)
  assert ended == {True, False}


@pytest.mark.parametrize(
  ('beams', 'penalty'),
  [(4, 1.0), pytest.param(3, 0.0, marks=pytest.mark.slow)],
)
def test_beam_search_is_the_naive_decoders(model, naive, beams, penalty):
  method = Method(
    max_tokens=MOST, beams=beams, length_penalty=penalty, outputs=beams
  )
  made = _ids(model, method)
  differs = False
  for text, outputs in zip(INPUTS, made, strict=True):
    expected = naive_decoder.beam_search(naive[text], beams, MOST, penalty)
    assert [ids for ids, _ in outputs] == [ids for ids, _ in expected]
    np.testing.assert_allclose(
      [p for _, p in outputs], [p for _, p in expected], atol=1e-4
    )
    differs |= outputs[0][0] != naive_decoder.greedy(naive[text], MOST)[0]
  assert differs


@pytest.mark.parametrize(
  'method',
  [
    Method(max_tokens=MOST, beams=3, outputs=2),
    pytest.param(
      Method(max_tokens=MOST, temperature=1.2, outputs=3, seed=5),
      marks=pytest.mark.slow,
    ),
  ],
  ids=['beams', 'samples'],
)
def test_batches_order_and_company_do_not_matter(model, method):
  generator = generation.Generator(model, method)
  whole = generator.generate(INPUTS)
  order = np.random.default_rng(1).permutation(len(INPUTS))
  shuffled = generator.generate([INPUTS[i] for i in order])
  some = INPUTS[:3]
  single = generation.Generator(model, method, batch_tokens=1).generate(some)
  for place, outputs in enumerate(whole.outputs):
    other = shuffled.outputs[list(order).index(place)]
    alone = single.outputs[place] if place < len(some) else other
    for a, b, c in zip(outputs, alone, other, strict=True):
      assert a.text == b.text == c.text
      assert a.log_prob == pytest.approx(b.log_prob, abs=1e-4)
      assert a.log_prob == pytest.approx(c.log_prob, abs=1e-4)
  assert whole.outputs[0] == whole.outputs[4]
  assert (whole.truncated, single.truncated) == (1, 0)


def test_samples_have_the_models_log_probs(model, naive):
  method = Method(max_tokens=MOST, temperature=0.7, outputs=3, seed=1)
  made = _ids(model, method, INPUTS[:3])
  for text, outputs in zip(INPUTS, made, strict=False):
    for ids, log_prob in outputs:
      total = sum(naive[text](ids[:n])[token] for n, token in enumerate(ids))
      assert log_prob == pytest.approx(total, abs=1e-4)
  assert len({tuple(ids) for outputs in made for ids, _ in outputs}) > 3


def test_samples_are_drawn_from_the_model(model, naive):
  method = Method(max_tokens=1, temperature=1.5, outputs=4000)
  [outputs] = _ids(model, method, ['music'], batch_tokens=8192)
  logits = naive['music']([]) / 1.5
  expected = np.exp(logits - logits.max())
  expected /= expected.sum()
  counts = np.bincount([ids[0] for ids, _ in outputs], minlength=len(expected))
  # Five standard errors of a share.
  tolerance = 5 * np.sqrt(expected * (1 - expected) / 4000) + 1e-9
  assert np.all(np.abs(counts / 4000 - expected) <= tolerance)


def test_seeds_differ_and_repeat(model):
  method = Method(max_tokens=MOST, temperature=1.0, outputs=3)
  generator = generation.Generator(model, method)

  def texts(seed):
    # Programs don't depend on it.
    generator.method = dataclasses.replace(method, seed=seed)
    [outputs] = generator.generate(['music']).outputs
    return [output.text for output in outputs]

  assert texts(1) == texts(1)
  assert texts(1) != texts(2)


@pytest.mark.slow
def test_the_only_token_left_is_the_greedy_one(model):
  greedy = _ids(model, Method(max_tokens=MOST), ['music', ''])
  for limits in ({'top_k': 1}, {'top_p': 1e-6}):
    method = Method(max_tokens=MOST, temperature=3.0, **limits)
    made = _ids(model, method, ['music', ''])
    assert [o[0][0] for o in made] == [o[0][0] for o in greedy]


@pytest.mark.parametrize(('top_k', 'top_p'), [(3, 1.0), (0, 0.6), (5, 0.8)])
def test_restrict(top_k, top_p):
  logits = np.random.default_rng(0).normal(0, 2, (4, 12)).astype(np.float32)
  method = Method(temperature=1.0, top_k=top_k, top_p=top_p)
  left = np.asarray(search.restrict(jax.numpy.asarray(logits), method)) > -1e8
  for row, stays in zip(logits, left, strict=True):
    order = np.argsort(-row)[: top_k or None]
    probs = np.exp(row[order]) / np.exp(row[order]).sum()
    count = int(np.searchsorted(np.cumsum(probs), top_p) + 1)
    expected = order if top_p == 1 else order[:count]
    assert sorted(np.flatnonzero(stays)) == sorted(expected)
  assert left.sum() < left.size


@pytest.mark.slow
def test_scanned_layers_and_bfloat16(model):
  """Scanned layers write what plain ones write; bfloat16 runs."""
  from tests.nn.test_t5 import _scanned

  config = dataclasses.replace(model.config, relative_attention_per_layer=True)
  params = jax.tree.map(np.asarray, random_params(config, seed=3))
  plain = dataclasses.replace(model, config=config, params=params)
  config = dataclasses.replace(config, scan_layers=True)
  scanned = dataclasses.replace(
    model, config=config, params=_scanned(params, config)
  )
  method = Method(max_tokens=MOST, beams=2, outputs=2)
  texts = ['music', '']
  expected = _ids(plain, method, texts)
  made = _ids(scanned, method, texts)
  for a, b in zip(made, expected, strict=True):
    assert [ids for ids, _ in a] == [ids for ids, _ in b]
  rough = _ids(plain, method, texts, dtype='bfloat16')
  assert np.isfinite([p for o in rough for _, p in o]).all()


def test_nothing_gives_nothing(model):
  assert generation.Generator(model).generate([]).outputs == []


def test_progress_reaches_the_end(model):
  seen = []
  generator = generation.Generator(model, Method(max_tokens=MOST))
  generator.generate(
    INPUTS, progress=lambda done, total: seen.append((done, total))
  )
  assert seen[-1] == (6, 6)


def test_broken_weights_are_an_error(model):
  params = jax.tree.map(np.copy, model.params)
  params['token_embedder']['embedding'][:] = np.nan
  broken = dataclasses.replace(model, params=params)
  with pytest.raises(placement.ScoringError, match='not finite'):
    generation.Generator(broken, Method(max_tokens=2)).generate(['music'])


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'max_tokens': 0}, 'max_tokens 0: at least 1'),
    ({'beams': 2, 'temperature': 1.0}, 'not both'),
    ({'outputs': 2}, 'more than beams 1'),
    ({'top_k': 3}, 'give a temperature'),
    ({'top_p': 0.0, 'temperature': 1.0}, 'top_p 0.0: above 0'),
    ({'temperature': -1.0}, 'must not be negative'),
  ],
)
def test_methods_that_are_none(options, message):
  with pytest.raises(ValueError, match=message):
    Method(**options)
