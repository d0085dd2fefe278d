import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.data import denoising
from t5score_jax.data.denoising import Noise

TEXT = 'One two three. Four five six! Seven eight nine ten? Eleven twelve.'


def _rng(seed=0):
  return np.random.default_rng(seed)


@settings(max_examples=60, deadline=None)
@given(
  count=st.integers(0, 60),
  share=st.floats(0, 1),
  mean=st.floats(0.5, 8),
  seed=st.integers(0, 2**32),
)
def test_spans_lie_in_the_text_apart(count, share, mean, seed):
  spans = denoising.sample_spans(count, Noise(share, mean), _rng(seed))
  end, touching = 0, 0
  for n, (start, length) in enumerate(spans):
    assert start >= end and length >= 0
    touching += n > 0 and start == end
    end = start + length
  assert end <= count
  covered = sum(length for _, length in spans)
  assert abs(covered - share * count) <= 1
  # A token stands between any two, as long as there are enough.
  if len(spans) <= count - covered + 1:
    assert not touching


def test_half_of_the_tokens_in_spans_of_three():
  """Poisson(3), 50% masked: the paper's section 3.1."""
  rng = _rng()
  runs = [denoising.sample_spans(400, Noise(), rng) for _ in range(300)]
  covered = [sum(length for _, length in spans) for spans in runs]
  assert np.mean(covered) == pytest.approx(200, abs=0.5)
  # The last one drawn is cut: one of about 67, wherever it came to stand.
  lengths = [length for spans in runs for _, length in spans]
  count = collections.Counter(lengths)
  expected = [
    np.exp(-3) * 3.0**k / np.prod(np.arange(1, k + 1)) for k in range(9)
  ]
  found = [count[k] / len(lengths) for k in range(9)]
  np.testing.assert_allclose(found, expected, atol=0.012)
  # Starts are spread evenly.
  starts = [start for spans in runs for start, _ in spans]
  assert np.mean(starts) == pytest.approx(200, rel=0.03)


def test_a_fifth_of_the_masked_text_becomes_random_tokens():
  words = [f'w{n}' for n in range(200)]
  text = ' '.join(words)
  vocabulary = [f'x{n}' for n in range(50)]
  rng, random, kept, masks = _rng(1), 0, 0, 0
  for _ in range(200):
    made = denoising.perturb(text, Noise(mask_token='<m>'), vocabulary, rng)
    found = collections.Counter(t[0] for t in made.split())
    random, kept, masks = (
      random + found['x'],
      kept + found['w'],
      masks + found['<'],
    )
    assert all(t in words + vocabulary + ['<m>'] for t in made.split())
  assert kept == pytest.approx(200 * 100, rel=0.01)
  # 20% of 100 masked tokens, and one token for an empty span (a twentieth of
  # 33 or so).
  assert random / 200 == pytest.approx(20.4, rel=0.05)
  # Four spans of five are one mask each.
  assert masks / 200 == pytest.approx(0.8 * 100 / 3, rel=0.06)


def test_without_a_mask_token_spans_are_dropped():
  noise = Noise(random_share=0, permute=False)
  made = denoising.perturb(TEXT, noise, (), _rng(3))
  words = TEXT.split()
  rest = iter(words)
  # What is left stands in the old order.
  assert all(word in rest for word in made.split())
  assert 0 < len(made.split()) < len(words)


def test_sentences_are_shuffled_whole():
  noise = Noise(mask_share=0, random_share=0)
  sentences = {
    'One two three.',
    'Four five six!',
    'Seven eight nine ten?',
    'Eleven twelve.',
  }
  seen = set()
  for seed in range(40):
    made = denoising.perturb(TEXT, noise, (), _rng(seed))
    assert all(sentence in made for sentence in sentences)
    assert len(made) == len(TEXT)
    seen.add(made)
  assert len(seen) > 12  # of 24 orders
  still = Noise(mask_share=0, random_share=0, permute=False)
  assert denoising.perturb(TEXT, still, (), _rng()) == TEXT


@pytest.mark.parametrize(
  'text',
  [
    '今天天气很好。我们去公园吧！',
    'Tokyo は大きい。 They say 「はい。」',
    'a',
    '',
  ],
)
def test_nothing_to_do_gives_the_text_back(text):
  still = Noise(mask_share=0, random_share=0, permute=False)
  assert denoising.perturb(text, still, (), _rng()) == text


def test_characters_without_spaces_are_tokens():
  tokens = denoising.tokens_of('今天好。 「是。」 再见 abc 1.5 d. e')
  words = [*'今天好。「是。」再见', 'abc', '1.5', 'd.', 'e']
  assert [t.text for t in tokens] == words
  assert [t.sentence for t in tokens[-3:]] == [2, 2, 3]


def test_wrong_settings_are_refused():
  for settings_ in (
    {'mask_share': 1.1},
    {'mean_span': 0},
    {'random_share': -1},
  ):
    with pytest.raises(ValueError, match=next(iter(settings_))):
      Noise(**settings_)
  with pytest.raises(ValueError, match='vocabulary'):
    denoising.perturb('a b', Noise(), (), _rng())


def test_a_sample_of_tokens_is_even():
  sample = denoising.TokenSample(size=500, seed=3)
  for part in range(100):
    sample.add([' '.join(f'{part}-{n}' for n in range(100))])
  assert len(sample.tokens) == len(set(sample.tokens)) == 500
  parts = np.array([int(t.split('-')[0]) for t in sample.tokens])
  assert parts.mean() == pytest.approx(49.5, abs=4)
  assert np.bincount(parts // 10).std() < 12
  again = denoising.TokenSample(size=500, seed=3)
  again.add(f'{p}-{n}' for p in range(100) for n in range(100))
  assert len(again.tokens) == 500
