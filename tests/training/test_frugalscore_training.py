"""FrugalScore's phases end to end, on made-up texts and a random encoder."""

import contextlib
import io
import json
import random

import cache_pairs
import initial_miniature
import numpy as np
import pytest
import tiny_encoder

from t5score_jax import cli
from t5score_jax.checkpoints import cross_encoders, loading
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data import subwords
from t5score_jax.data.records import Segment
from t5score_jax.metrics import registry


def _run(main, arguments, ok=True):
  """Runs a program in this process; returns what it prints."""
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
    try:
      code = main([str(argument) for argument in arguments])
    except SystemExit as end:
      code = end.code
  assert (not code) == ok, printed.getvalue()
  return printed.getvalue()


def _texts(count, seed):
  rng = random.Random(seed)
  words = [w for w in tiny_encoder.WORDS if not w.startswith('##')]
  return [' '.join(rng.choices(words, k=6)) for _ in range(count)]


@pytest.fixture(scope='module')
def work(tmp_path_factory):
  folder = tmp_path_factory.mktemp('frugal')
  tiny_encoder.make(folder / 'encoder')
  (folder / 'texts.txt').write_text('\n'.join(_texts(60, 0)) + '\n')
  rows = []
  for n, (a, b) in enumerate(zip(_texts(80, 1), _texts(80, 2), strict=True)):
    shared = len(set(a.split()) & set(b.split()))
    rows.append(
      {'hypothesis': a, 'reference': b, 'segment': str(n), 'z': shared}
    )
  lines = [json.dumps(row) for row in rows]
  (folder / 'judged.jsonl').write_text('\n'.join(lines) + '\n')
  return folder


@pytest.fixture(scope='module')
def initial(work):
  printed = _run(initial_miniature.main, [
    work / 'encoder', '-o', work / 'initial',
    '--texts', work / 'texts.txt', '--width', '16', '--layers', '2',
    '--mlp', '16', '--positions', '24', '--vocabulary', '26',
  ])  # fmt: skip
  assert '26 pieces' in printed
  return work / 'initial'


@pytest.fixture(scope='module')
def arrays(work, initial):
  _run(cache_pairs.main, [
    '--input', work / 'judged.jsonl', '--rating', 'z',
    '--tokenizer', initial, '--max-length', '24', '--standardise',
    '--held-out-share', '0.2', '-o', work / 'arrays',
  ])  # fmt: skip


def test_small_vocabulary_keeps_characters_and_what_is_frequent(initial):
  tokenizer = subwords.load_tokenizer(initial)
  found = cross_encoders.load(initial)
  assert tokenizer.vocab_size == found.config.vocab_size == 26
  # Five special pieces and the characters: a, dot, comma, !, 1, 2.
  (one,) = tokenizer.encode_batch(['a , ! 1 2 .'], 16)
  assert '[UNK]' not in one.tokens
  assert found.settings['max_length'] == 24


def test_truncated_start_computes_what_the_encoder_does(work):
  target = work / 'truncated'
  _run(initial_miniature.main, [
    work / 'encoder', '-o', target, '--start', 'truncated', '--layers', '2',
  ])  # fmt: skip
  from t5score_jax.inference import encoding

  texts = _texts(4, 5)
  teacher = encoding.TextEncoder(
    encoders.load_encoder(work / 'encoder'), [2]
  ).states(texts)
  student = encoding.TextEncoder(encoders.load_encoder(target), [2]).states(
    texts
  )
  for a, b in zip(teacher, student, strict=True):
    np.testing.assert_allclose(a.states, b.states, atol=1e-6)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--vocabulary', '26'], 'need --texts'),
    (['--start', 'truncated', '--layers', '9'], 'the encoder has 3'),
    (['--texts', 'TEXTS', '--vocabulary', '6'], 'alone are'),
  ],
)
def test_starts_that_cannot_be_made(work, arguments, message):
  arguments = [
    str(work / 'texts.txt') if a == 'TEXTS' else a for a in arguments
  ]
  printed = _run(
    initial_miniature.main,
    [work / 'encoder', '-o', work / 'no', *arguments],
    ok=False,
  )
  assert message in printed and 'Traceback' not in printed
  assert not (work / 'no').exists()


def _train(work, initial, name, *more, ok=True):
  return _run(cli.main, [
    'train',
    '--gin_file=models/frugalscore_tiny.gin',
    '--gin_file=runs/frugalscore.gin',
    f'--gin.MODEL_DIR="{work / name}"',
    f'--gin.TOKENIZER="{initial}"',
    f'--gin.INITIAL_CHECKPOINT_PATH="{initial}"',
    f'--gin.ARRAYS="{work / "arrays" / "train"}"',
    f'--gin.VALIDATION_ARRAYS="{work / "arrays" / "held_out"}"',
    '--gin.VOCAB_SIZE=26', '--gin.bert.BertConfig.emb_dim=16',
    '--gin.bert.BertConfig.mlp_dim=16', '--gin.bert.BertConfig.num_heads=2',
    '--gin.bert.BertConfig.max_positions=24', '--gin.BATCH_TOKENS=384',
    '--gin.LEARNING_RATE=5e-3', '--gin.EVAL_EVERY=120', *more,
  ], ok=ok)  # fmt: skip


@pytest.mark.usefixtures('arrays')
def test_a_miniature_learns_and_scores_from_its_run(work, initial):
  printed = _train(
    work, initial, 'run', '--gin.TRAIN_STEPS=240', '--gin.DROPOUT_RATE=0.0',
    '--gin.loop.Intervals.log_every=60',
  )  # fmt: skip
  assert 'validation/pearson' in printed
  history = [
    json.loads(line)
    for line in (work / 'run' / 'metrics.jsonl').read_text().splitlines()
  ]
  losses = [h['loss'] for h in history if h['kind'] == 'train']
  # Ratings have deviation 1: no better than their mean is a loss of 1.
  assert len(losses) == 4 and losses[-1] < 0.5, losses
  # The run scores by itself, as does what is saved of it.
  loaded = loading.load_regressor(work / 'run')
  assert isinstance(loaded, cross_encoders.CrossEncoder)
  cross_encoders.save(loaded, work / 'final')
  segments = [
    Segment(hypothesis=a, references=(b,))
    for a, b in zip(_texts(7, 8), _texts(7, 9), strict=True)
  ]
  scores = [
    registry.load_metric('frugalscore', model=work / name)
    .score_segments(segments)
    .values
    for name in ('run', 'final')
  ]
  np.testing.assert_allclose(*scores, atol=1e-6)
  assert np.ptp(scores[0]) > 0.1


@pytest.mark.slow
@pytest.mark.usefixtures('arrays')
def test_a_new_head_on_an_encoder_must_be_asked_for(work, initial):
  more = (
    f'--gin.VOCAB_SIZE={len(tiny_encoder.PIECES)}',
    '--gin.bert.BertConfig.mlp_dim=24',
    '--gin.bert.BertConfig.num_layers=3',
    f'--gin.INITIAL_CHECKPOINT_PATH="{work / "encoder"}"',
    f'--gin.TOKENIZER="{work / "encoder"}"',
    '--gin.TRAIN_STEPS=1',
  )
  _train(work, initial, 'new', *more)
  printed = _train(
    work, initial, 'refused', *more, '--gin.NEW_PARAMETERS=None', ok=False
  )
  assert 'pooler/kernel' in printed and 'Traceback' not in printed
