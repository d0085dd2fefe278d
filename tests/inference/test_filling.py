"""Batches that are full of tokens: what they hold, their padding and shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.inference import filling


def _fill(lengths, **options):
  options = {
    'max_length': 512,
    'batch_tokens': 2048,
    'token_cost': 2e-4,
    'attention_cost': 4e-7,
    'program_cost': 0.3,
    **options,
  }
  return filling.fill(np.asarray(lengths), **options)


@given(
  lengths=st.lists(st.integers(1, 512), max_size=60),
  batch_tokens=st.sampled_from([1, 100, 2048]),
)
@settings(max_examples=100, deadline=None)
def test_filled_batches_hold_every_text_once(lengths, batch_tokens):
  batches = _fill(lengths, batch_tokens=batch_tokens)
  texts = np.concatenate([batch.texts for batch in batches] or [[]])
  assert sorted(texts) == list(range(len(lengths)))
  longest = max((batch.shape[1] for batch in batches), default=0)
  for batch in batches:
    rows, length, room = batch.shape
    inside = np.asarray(lengths)[batch.texts]
    assert len(inside) <= rows and inside.max() <= length
    most = max(batch_tokens, longest)
    assert inside.sum() <= room <= most and rows * length <= 3 * most


def _news(count):
  draw = np.random.default_rng(0)
  words = np.clip(np.exp(draw.normal(3.31, 0.6, count)), 2, 150)
  return (1.35 * words + 3).astype(int)


@pytest.mark.parametrize(
  ('count', 'padding', 'shapes'),
  [(440, 0.05, 4), (1400, 0.05, 5), (6000, 0.05, 8)],
)
def test_filled_batches_have_little_padding_and_few_shapes(
  count, padding, shapes
):
  lengths = _news(count)
  batches = _fill(lengths)
  room = sum(batch.shape[-1] for batch in batches)
  assert 1 - lengths.sum() / room < padding
  assert len({batch.shape for batch in batches}) <= shapes


def test_filled_batches_use_programs_that_are_ready():
  (first,) = _fill([30, 20])
  assert first.shape == (8, 32, 64)
  (again,) = _fill([9, 8], ready=[first.shape])
  assert again.shape == first.shape
  assert _fill([9, 8])[0].shape != first.shape
