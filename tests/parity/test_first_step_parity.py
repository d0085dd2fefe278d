"""MetricX and UniEval score as the published programs, on theirs and on ours.

Both programs need transformers 4, and so an environment of their own: the
variable T5SCORE_METRICX_PYTHON names its interpreter, which finds
google-research/metricx and maszhongming/UniEval on PYTHONPATH.
"""

import io
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import sentencepiece

from t5score_jax import cli
from t5score_jax.data import prompts
from t5score_jax.data.records import Segment
from t5score_jax.data.vocab import SentencePieceVocabulary
from t5score_jax.metrics import registry
from tests.conftest import made_up_text
from tests.parity import hf_exports

PYTHON = os.environ.get('T5SCORE_METRICX_PYTHON')
PEER = pathlib.Path(__file__).parent.parent / 'support' / 'first_step_peers.py'

pytestmark = [
  pytest.mark.parity,
  pytest.mark.skipif(
    not PYTHON, reason='T5SCORE_METRICX_PYTHON names no interpreter'
  ),
]

LONG = 'the old ship follows two letters . ' * 9
TEXTS = [
  ('the cat sees the moon.', 'a dog sees the moon.', 'the cat sees a moon'),
  ('', 'this town', ''),
  (' \t ', '', 'her bicycle carries music.'),
  (LONG, LONG + 'music', 'some bread ' * 40),
  (
    '\u732b\u304c\u5ea7\u308b\u3002 42 %',
    '\u041c\u043e\u0441\u043a\u0432\u0430',
    'e\u0301t\u00e9 \U0001f642',
  ),
  ('the </s> cat <extra_id_3>', 'my <unk> neighbour', '</s>'),
]
SEGMENTS = [Segment(h, source=s, references=(r,)) for h, s, r in TEXTS]
RECORDS = [{'hypothesis': h, 'source': s, 'reference': r} for h, s, r in TEXTS]
SHAPE = {
  'd_model': 8,
  'd_kv': 4,
  'd_ff': 12,
  'num_heads': 2,
  'num_layers': 2,
  'num_decoder_layers': 2,
  'feed_forward_proj': 'gated-gelu',
}
MAX_LENGTH = 80
# Of questions, which are long in pieces so small.
QUESTION_LENGTH = 160


def theirs(folder, jobs):
  path = folder / 'jobs.json'
  path.write_text(json.dumps(jobs), 'utf-8')
  done = subprocess.run(
    [PYTHON, PEER, path], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return [np.array(row) for row in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
  """A folder with a tokenizer alone, as google/mt5-xl lends to MetricX."""
  folder = tmp_path_factory.mktemp('tokenizer') / 'mt5'
  model = io.BytesIO()
  answers = ['Yes it is', 'No it is not', 'Yes', 'No']
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([*made_up_text(), *answers * 300]),
    model_writer=model,
    vocab_size=70,
    hard_vocab_limit=False,
    **{'pad_id': 0, 'eos_id': 1, 'unk_id': 2, 'bos_id': -1, 'minloglevel': 2},
    num_threads=1,
  )
  vocabulary = SentencePieceVocabulary(model.getvalue())
  source = hf_exports.source(hf_exports.SHAPE, vocabulary)
  hf_exports.export(source, folder)
  for name in ('config.json', 'model.safetensors'):
    (folder / name).unlink()
  return folder


@pytest.mark.parametrize('stored', ['safetensors', 'bin'])
def test_metricx_both_ways(tmp_path, tokenizer, stored):
  folder = tmp_path / 'metricx-24-hybrid-tiny'
  made = {**SHAPE, 'vocab_size': 250112, 'tie_word_embeddings': False}
  job = {
    'metric': 'metricx',
    'folder': str(folder),
    'tokenizer': str(tokenizer),
    'max_length': MAX_LENGTH,
    'texts': RECORDS,
  }
  forms = [(24, False), (24, True), (23, False), (23, True)]
  jobs = [{**job, 'version': v, 'qe': qe} for v, qe in forms]
  jobs[0] |= {'make': made, 'bin': stored == 'bin'}
  published = theirs(tmp_path, jobs)
  assert registry.choose(folder).metric == 'metricx'
  for (version, qe), expected in zip(forms, published, strict=True):
    assert len({round(x, 3) for x in expected}) > 2
    metric = registry.load(
      folder,
      version=version,
      source_based=qe,
      vocabulary=tokenizer,
      max_length=MAX_LENGTH,
      special_tokens=True,
    )
    scores = metric.score_segments(SEGMENTS)
    np.testing.assert_allclose(-scores.values, expected, atol=1e-4)
  code = cli.main(
    ['convert', '--to', 'hf', str(folder), str(tmp_path / 'ours'), '--quiet']
    + ['--vocabulary', str(tokenizer / 'spiece.model')]
  )
  assert code == 0
  again = {**job, 'folder': str(tmp_path / 'ours'), 'version': 24, 'qe': False}
  again['tokenizer'] = again['folder']
  (back,) = theirs(tmp_path, [again])
  np.testing.assert_allclose(back, published[0], atol=1e-5)


@pytest.mark.parametrize('tied', [False, True])
def test_unieval_both_ways(tmp_path, tokenizer, tied):
  folder = tmp_path / 'unieval-sum'
  made = {**SHAPE, 'vocab_size': 168, 'tie_word_embeddings': tied}
  made['decoder_start_token_id'] = 0
  questions = [
    (task, dimension)
    for task, several in prompts.UNIEVAL.items()
    for dimension in several
  ]
  job = {
    'metric': 'unieval',
    'folder': str(folder),
    'tokenizer': str(tokenizer),
    'max_length': QUESTION_LENGTH,
    'texts': RECORDS,
  }
  jobs = [{**job, 'task': t, 'dimension': d} for t, d in questions]
  jobs[0]['make'] = made
  published = theirs(tmp_path, jobs)
  for (task, dimension), expected in zip(questions, published, strict=True):
    metric = registry.load(
      folder,
      metric='unieval',
      task=task,
      dimensions=dimension,
      sentences='whole',
      max_length=QUESTION_LENGTH,
      special_tokens=True,
    )
    scores = metric.score_segments(SEGMENTS)
    # Fifty times what may differ.
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(scores.values, expected, atol=2e-5)
  code = cli.main(
    ['convert', '--to', 'hf', str(folder), str(tmp_path / 'ours'), '--quiet']
  )
  assert code == 0
  (back,) = theirs(
    tmp_path, [{**jobs[0], 'make': None, 'folder': str(tmp_path / 'ours')}]
  )
  np.testing.assert_allclose(back, published[0], atol=1e-6)
