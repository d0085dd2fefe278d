import json
import subprocess
import sys
import textwrap

import devices
import jax
import numpy as np
import numpy_t5
import pytest

from t5score_jax.checkpoints.bundle import Bundle, load_bundle
from t5score_jax.inference import apart, placement, scoring
from tests.conftest import made_up_text

_TEXTS = made_up_text()
# Lengths from nothing to beyond the limit of 64 tokens, with repetitions.
PAIRS = [
  ('the cat sees the moon.', 'my neighbour paints a red kite.'),
  ('the cat sees the moon.', 'the cat sees the moon.'),
  ('', 'music'),
  ('music', ''),
  ('', ''),
  (' '.join(_TEXTS[:3]), _TEXTS[7]),
  (_TEXTS[7], ' '.join(_TEXTS[:3])),
  (' '.join(_TEXTS[:40]), _TEXTS[9]),
  (_TEXTS[9], ' '.join(_TEXTS[:40])),
  ('the cat sees the moon.', 'my neighbour paints a red kite.'),
  ('Ελλάδα 中文 🙂', 'the cat\tsees\x00 the moon.'),
  *[(_TEXTS[i], _TEXTS[3 * i]) for i in range(0, 60, 2)],
]


@pytest.fixture(scope='module')
def expected(random_model) -> list[np.ndarray]:
  known = {}
  for pair in PAIRS:
    if pair not in known:
      known[pair] = numpy_t5.token_log_probs(random_model, pair)
  return [known[pair] for pair in PAIRS]


@pytest.fixture(scope='module')
def scorer(random_model):
  return scoring.Scorer(random_model)


def test_scores_are_those_of_single_sentences(scorer, expected):
  scores = scorer.scores(PAIRS)
  assert scores.dtype == np.float32
  np.testing.assert_allclose(
    scores, [x.mean() for x in expected], rtol=0, atol=1e-5
  )
  # The model is random, but not blind: the check above could fail.
  assert np.ptp(scores) > 0.1


def test_tokens_are_those_of_single_sentences(scorer, expected):
  result = scorer.score_pairs(PAIRS, token_log_probs=True)
  for tokens, wanted in zip(result.token_log_probs, expected, strict=True):
    np.testing.assert_allclose(tokens, wanted, rtol=0, atol=1e-5)
  np.testing.assert_allclose(
    result.values, [t.mean() for t in result.token_log_probs], atol=1e-6
  )
  for tokens, wanted in zip(
    scorer.token_log_probs(PAIRS[:2]), expected[:2], strict=True
  ):
    np.testing.assert_allclose(tokens, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
  'batch_tokens', [1, pytest.param(150, marks=pytest.mark.slow), 100_000]
)
def test_batch_size_does_not_matter(random_model, scorer, batch_tokens):
  other = scoring.Scorer(random_model, batch_tokens=batch_tokens)
  np.testing.assert_allclose(
    other.scores(PAIRS[:15]), scorer.scores(PAIRS[:15]), rtol=0, atol=1e-5
  )


def test_order_and_company_do_not_matter(scorer):
  scores = scorer.scores(PAIRS)
  order = np.random.default_rng(1).permutation(len(PAIRS))
  shuffled = scorer.scores([PAIRS[i] for i in order])
  np.testing.assert_allclose(shuffled, scores[order], rtol=0, atol=1e-5)
  alone = [scorer.scores([pair])[0] for pair in PAIRS[:12]]
  np.testing.assert_allclose(alone, scores[:12], rtol=0, atol=1e-5)


def test_windows_do_not_matter(scorer, monkeypatch):
  whole = scorer.score_pairs(PAIRS, token_log_probs=True)
  monkeypatch.setattr(scoring, '_WINDOW', 7)
  cut = scorer.score_pairs(PAIRS, token_log_probs=True)
  np.testing.assert_allclose(cut.values, whole.values, rtol=0, atol=1e-5)
  assert cut.truncated == whole.truncated == 1
  assert list(map(len, cut.token_log_probs)) == list(
    map(len, whole.token_log_probs)
  )


def test_devices_do_not_matter(random_bundle, expected):
  program = """
      import json, sys
      import jax, numpy as np
      from t5score_jax.inference import scoring
      from t5score_jax.checkpoints.bundle import load_bundle
      folder, pairs = json.load(sys.stdin)
      scorer = scoring.Scorer(load_bundle(folder), batch_tokens=256)
      scores = scorer.scores([tuple(p) for p in pairs])
      print(json.dumps([len(jax.devices()), scores.tolist()]))
  """
  done = subprocess.run(
    [sys.executable, '-c', textwrap.dedent(program)],
    input=json.dumps([str(random_bundle), PAIRS]),
    capture_output=True,
    text=True,
    env=devices.environment(8),
  )
  assert done.returncode == 0, done.stderr
  count, scores = json.loads(done.stdout)
  assert count == 8
  np.testing.assert_allclose(
    scores, [x.mean() for x in expected], rtol=0, atol=1e-5
  )


def test_each_text_is_encoded_once_and_each_pair_decoded_once(
  scorer, monkeypatch
):
  seen = []
  plan = apart.plan

  def spy(input_of_pair, input_lengths, target_lengths, **options):
    seen.append((len(input_lengths), len(target_lengths)))
    return plan(input_of_pair, input_lengths, target_lengths, **options)

  monkeypatch.setattr(scoring.apart, 'plan', spy)
  hypotheses = _TEXTS[1:11]
  pairs = [(_TEXTS[0], h) for h in hypotheses] * 3
  scores = scorer.scores(pairs)
  assert seen == [(1, 10)]
  np.testing.assert_array_equal(scores[:10], scores[20:])


def test_truncation_is_counted_by_text(random_model):
  long = ' '.join(_TEXTS[:40])
  other = long + ' music'
  scorer = scoring.Scorer(random_model)
  result = scorer.score_pairs(
    [(long, 'music'), ('music', long), (long, other), ('a', 'b')],
    token_log_probs=True,
  )
  assert result.truncated == 2
  assert list(map(len, result.token_log_probs))[1] == 64
  assert scorer.score_pairs([('a', 'b')]).truncated == 0


def test_a_line_of_20000_characters(scorer):
  result = scorer.score_pairs([('x' * 20_000, 'music'), ('a ' * 10_000, '')])
  assert result.truncated == 2
  assert np.isfinite(result.values).all()


def test_max_length(random_model):
  short = scoring.Scorer(random_model, max_length=5)
  result = short.score_pairs([(_TEXTS[0], _TEXTS[1])] * 2, token_log_probs=True)
  assert result.truncated == 2
  assert len(result.token_log_probs[0]) == 5
  assert scoring.Scorer(random_model).max_length == 64
  plain = Bundle(
    random_model.config, random_model.params, random_model.vocabulary
  )
  assert scoring.Scorer(plain).max_length == 1024


def test_nothing_gives_nothing(scorer):
  result = scorer.score_pairs([], token_log_probs=True)
  assert result.values.shape == (0,)
  assert result.token_log_probs == []


def test_bytes(bytes_bundle):
  bundle = load_bundle(bytes_bundle)
  scorer = scoring.Scorer(bundle, max_length=64)
  for pair in [('ab', 'ün'), ('', ''), ('🙂', '中文')]:
    np.testing.assert_allclose(
      scorer.scores([pair])[0],
      numpy_t5.token_log_probs(bundle, pair).mean(),
      atol=1e-5,
    )


def test_bfloat16_is_close_and_different(random_model, scorer):
  exact = scorer.scores(PAIRS[:15])
  rough = scoring.Scorer(random_model, dtype='bfloat16').scores(PAIRS[:15])
  np.testing.assert_allclose(rough, exact, rtol=0, atol=0.05)
  assert np.abs(rough - exact).max() > 1e-5


def test_progress_reaches_the_end(scorer):
  seen = []
  scorer.scores(PAIRS, progress=lambda done, total: seen.append((done, total)))
  assert seen[-1] == (len(PAIRS), len(PAIRS))
  assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_second_call_compiles_nothing(random_model, monkeypatch):
  scorer = scoring.Scorer(random_model)
  first = scorer.scores(PAIRS)

  def fail(self, shape):
    raise AssertionError(f'compiled again: {shape}')

  monkeypatch.setattr(scoring.Scorer, 'compile_for', fail)
  np.testing.assert_array_equal(scorer.scores(PAIRS), first)


def test_broken_weights_are_an_error(random_model):
  params = jax.tree.map(np.copy, random_model.params)
  params['token_embedder']['embedding'][:] = np.inf
  broken = Bundle(random_model.config, params, random_model.vocabulary)
  with pytest.raises(placement.ScoringError, match='not finite'):
    scoring.Scorer(broken).scores(PAIRS[:2])


def test_a_failed_compilation_is_an_error_and_can_be_repeated(
  random_model, monkeypatch
):
  scorer = scoring.Scorer(random_model)
  compile_shape = scoring.Scorer.compile_for

  def fail(self, shape):
    raise RuntimeError('RESOURCE_EXHAUSTED: out of memory')

  monkeypatch.setattr(scoring.Scorer, 'compile_for', fail)
  with pytest.raises(RuntimeError, match='out of memory'):
    scorer.scores(PAIRS[:3])
  monkeypatch.setattr(scoring.Scorer, 'compile_for', compile_shape)
  assert scorer.scores(PAIRS[:3]).shape == (3,)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'dtype': 'float16'}, "dtype 'float16': use one of"),
    ({'max_length': 1}, 'max_length 1: at least 2'),
    ({'batch_tokens': 0}, 'batch_tokens 0: must be positive'),
  ],
)
def test_bad_options(random_model, options, message):
  with pytest.raises(ValueError, match=message):
    scoring.Scorer(random_model, **options)


def test_two_threads(random_model):
  import concurrent.futures

  scorer = scoring.Scorer(random_model)
  with concurrent.futures.ThreadPoolExecutor(2) as threads:
    a, b = threads.map(scorer.scores, [PAIRS[:20], PAIRS[10:]])
  np.testing.assert_allclose(a[10:], b[:10], rtol=0, atol=1e-5)
