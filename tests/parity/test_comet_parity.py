"""Scores equal unbabel-comet's, on its checkpoints and on ours.

unbabel-comet 2.2 wants another NumPy than JAX, so it has an environment of its
own (`pip install unbabel-comet 'setuptools<80'`), whose interpreter the
variable T5SCORE_COMET_PYTHON names.
"""

import dataclasses
import json
import os
import pathlib
import subprocess

import jax
import numpy as np
import pytest
import sentencepiece
import tiny_encoder
import tiny_unified
import yaml

from t5score_jax.checkpoints import regressors
from t5score_jax.checkpoints.formats.comet import checkpoint as comet
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data import records, subwords, unigram
from t5score_jax.metrics import registry
from t5score_jax.nn import heads

PYTHON = os.environ.get('T5SCORE_COMET_PYTHON')
PEER = pathlib.Path(__file__).parent.parent / 'support' / 'comet_peer.py'

pytestmark = [
  pytest.mark.parity,
  pytest.mark.skipif(
    not PYTHON, reason='T5SCORE_COMET_PYTHON names no unbabel-comet'
  ),
]

TEXTS = [
  ('the mat', 'the cat sat', 'a cat sat'),
  ('a small hill', 'a dog ran over the hill .', 'the dogs ran over'),
  ('cat', '', 'the mat'),
  # Cut; a special token's spelling is another matter.
  ('dog ' * 40, 'the cat ' * 30 + 'bird', 'green hill ' * 30),
  # Characters that become two pieces, or none, and runs of spaces.
  ('  the   cat', 'sat  on the\u3000mat \ufb01 \u732b', 'dog \n cat'),
]
BASE = {
  'class_identifier': 'regression_metric',
  'encoder_model': 'BERT',
  'hidden_sizes': [12, 8],
  'layer_transformation': 'sparsemax',
  'layer_norm': False,
}
XLMR = {'encoder_model': 'XLM-RoBERTa'}
QE = {'class_identifier': 'referenceless_regression_metric'}
# What COMET is given when it makes a model; None: left to its default.
THEIRS = {
  'bert': {},
  'defaults': {'layer_transformation': None, 'layer_norm': None},
  'cls of layer 1': {'layer': 1, 'pool': 'cls', 'final_activation': 'sigmoid'},
  'bert default': {'pool': 'default', 'layer': 1},
  'xlm-r': XLMR | {'pool': 'max', 'activations': 'SIGMOID'},
  'xlm-r default': XLMR | {'pool': 'default'},
  'no reference': XLMR | QE | {'layer_norm': True},
}
KIWI = XLMR | {
  'class_identifier': 'unified_metric',
  'input_segments': ['mt', 'src'],
  'layer_transformation': 'softmax',
}
UNITE = KIWI | {'input_segments': ['mt', 'src', 'ref'], 'layer_norm': True}
TAGGED = {'word_level_training': True, 'word_layer': 3}
XCOMET = {
  'class_identifier': 'xcomet_metric',
  'encoder_model': 'XLM-RoBERTa-XL',
  'layer_transformation': 'softmax',
  'word_layer': 3,
}
# Metrics that read texts jointly, and the fields that are given: after
# wmt22-cometkiwi-da, wmt23-cometkiwi-da-xl, UniTE and XCOMET-XL.
JOINT = {
  'kiwi 22': (KIWI, 'src'),
  'kiwi 23': (KIWI | {'encoder_model': 'XLM-RoBERTa-XL'}, 'src'),
  'unite': (UNITE, 'src ref'),
  'unite without source': (UNITE, 'ref'),
  'reference only': (
    UNITE | {'input_segments': ['mt', 'ref'], 'sent_layer': 2},
    'src ref',
  ),
  'tagged': (KIWI | TAGGED, 'src'),
  'tagged bert': (
    UNITE | TAGGED | {'encoder_model': 'BERT', 'word_layer': 2},
    'src ref',
  ),
  'xcomet': (XCOMET, 'src ref'),
  'xcomet without reference': (XCOMET, 'src'),
}
OURS_JOINTLY = {
  'unite': {'labels': ('minor', 'major'), 'word_layer': 1},
  'xcomet': {'xcomet': True},
}
OURS = {
  'bert': {},
  'outputs': {'outputs': ('a', 'b'), 'layer_norm': True},
  'no reference': {'reference': False, 'layer_transformation': 'softmax'},
  'xlm-r': {'layer': 2, 'pooling': 'cls', 'final_activation': 'sigmoid'},
}


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """Encoders in folders: heads 8 wide, which no rule of thumb would say."""
  root = tmp_path_factory.mktemp('encoders')
  tiny_encoder.make(root / 'BERT')
  words = [w for w in tiny_encoder.WORDS if w.isalpha()]
  (root / 'text').write_text('\n'.join(' '.join(words) for _ in range(50)))
  sentencepiece.SentencePieceTrainer.train(
    input=str(root / 'text'),
    model_prefix=str(root / 'pieces'),
    vocab_size=40,
    hard_vocab_limit=False,
    minloglevel=2,
  )
  pieces = (root / 'pieces.model').read_bytes()
  size = sentencepiece.SentencePieceProcessor(model_proto=pieces).vocab_size()
  config = dataclasses.replace(
    tiny_encoder.CONFIG,
    vocab_size=size + 2,
    position_offset=2,
    pad_id=1,
    type_vocab_size=1,
    max_positions=26,
    norm_epsilon=1e-5,
  )
  (root / 'pieces').mkdir()
  (root / 'pieces' / 'sentencepiece.bpe.model').write_bytes(pieces)
  for name in ('XLM-RoBERTa', 'XLM-RoBERTa-XL'):
    shape = dataclasses.replace(config, pre_norm=name.endswith('XL'))
    folder = tiny_encoder.make(root / name, shape)
    (folder / 'vocab.txt').unlink()
    (folder / 'tokenizer_config.json').unlink()
    # COMET's protobuf is too old for transformers to convert a model itself.
    (folder / 'tokenizer.json').write_bytes(unigram.xlmr_json(pieces))
  return root


@pytest.fixture(scope='module')
def scores(folders, tmp_path_factory):
  """Name -> (COMET's scores, the folder they are of)."""
  root = tmp_path_factory.mktemp('models')
  jobs = {}
  texts = [dict(zip(('src', 'mt', 'ref'), t, strict=True)) for t in TEXTS]
  for name, changes in THEIRS.items():
    settings = {k: v for k, v in (BASE | changes).items() if v is not None}
    settings['pretrained_model'] = str(folders / settings['encoder_model'])
    path = root / 'theirs' / name
    jobs['theirs', name] = {'make': settings, 'path': str(path), 'texts': texts}
  for name, changes in OURS.items():
    kind = 'XLM-RoBERTa' if name == 'xlm-r' else 'BERT'
    encoder = encoders.load_encoder(folders / kind)
    options = {'hidden_sizes': (12, 8), 'layer_transformation': 'sparsemax'}
    config = heads.RegressorConfig(encoder.config, **(options | changes))
    params = heads.init_params(config, jax.random.key(3), encoder.params)
    # XLM-R's with the SentencePiece model alone, as in this library's folders.
    place = folders / ('pieces' if name == 'xlm-r' else kind)
    pieces = subwords.load_tokenizer(place)
    model = regressors.Regressor(config, params, pieces)
    path = root / 'ours' / name
    comet.save_comet(model, path)
    jobs['ours', name] = {'make': None, 'path': str(path), 'texts': texts}
  for name, (changes, given) in JOINT.items():
    settings = BASE | {'encoder_model': 'BERT'} | changes
    settings['pretrained_model'] = str(folders / settings['encoder_model'])
    jobs['joint', name] = {
      'make': settings,
      'path': str(root / 'joint' / name),
      'texts': [
        {k: v for k, v in row.items() if k in ['mt', *given.split()]}
        for row in texts
      ],
    }
  for name, changes in OURS_JOINTLY.items():
    encoder = encoders.load_encoder(folders / 'BERT')
    path = root / 'ours jointly' / name
    comet.save_comet(tiny_unified.make(encoder, **changes), path)
    job = {'make': None, 'path': str(path), 'texts': texts}
    jobs['ours jointly', name] = job
  (root / 'jobs.json').write_text(json.dumps(list(jobs.values())))
  away = root / 'elsewhere'
  away.mkdir()
  done = subprocess.run(
    [PYTHON, PEER, root / 'jobs.json'],
    cwd=away,
    capture_output=True,
    text=True,
    env={**os.environ, 'HF_HUB_OFFLINE': '1', 'PYTHONPATH': ''},
  )
  assert done.returncode == 0, done.stderr[-3000:]
  values = json.loads(done.stdout.splitlines()[-1])
  return {
    key: (found, pathlib.Path(job['path']))
    for (key, job), found in zip(jobs.items(), values, strict=True)
  }


def _scores(path, **options):
  metric = registry.load_metric('comes', model=path, **options)
  sources, hypotheses, references = zip(*TEXTS, strict=True)
  return metric.score(hypotheses, [[r] for r in references], sources)


@pytest.mark.parametrize('name', THEIRS)
def test_their_checkpoints_score_the_same(scores, folders, name):
  want, path = scores['theirs', name]
  kind = (BASE | THEIRS[name])['encoder_model']
  found = _scores(path, tokenizer=folders / kind)
  np.testing.assert_allclose(found.values, want, atol=1e-5)
  assert np.ptp(want) > 1e-3 and found.truncated > 0
  # What hparams.yaml says beside the .ckpt has no say, to COMET either.
  settings = yaml.safe_load((path / 'hparams.yaml').read_text())
  settings |= {'pool': 'cls', 'layer': 0}
  (path / 'hparams.yaml').write_text(yaml.safe_dump(settings))
  again = _scores(path, tokenizer=folders / kind)
  np.testing.assert_array_equal(again.values, found.values)


@pytest.mark.parametrize('name', OURS)
def test_our_exports_are_loaded_from_anywhere(scores, name):
  want, path = scores['ours', name]
  np.testing.assert_allclose(_scores(path).values, want, atol=1e-5)


def _joint_scores(path, texts, **options):
  metric = registry.load(path, **options)
  return metric.score_segments(
    [
      records.Segment(
        row['mt'],
        source=row.get('src'),
        references=tuple(row[name] for name in ('ref',) if name in row),
      )
      for row in texts
    ]
  )


def _check_jointly(found, want):
  np.testing.assert_allclose(found.values, want['scores'], atol=1e-5)
  for ours, theirs in (
    ('source_score', 'src_scores'),
    ('reference_score', 'ref_scores'),
    ('unified_score', 'unified_scores'),
    ('mqm_score', 'mqm_scores'),
  ):
    # COMET calls whatever it reads alone the source's.
    if ours in found.components and len(found.components) > 2:
      np.testing.assert_allclose(
        found.components[ours], want[theirs], atol=1e-5
      )
  assert (found.spans is None) == ('error_spans' not in want)
  for spans, theirs in zip(
    found.spans or (), want.get('error_spans', ()), strict=True
  ):
    assert len(spans) == len(theirs)
    for span, their in zip(spans, theirs, strict=True):
      assert (span.start, span.severity) == (their['start'], their['severity'])
      # COMET's ends before it starts where a special token is the last one.
      if their['end'] > their['start']:
        assert span.end == their['end']
      assert span.confidence == pytest.approx(their['confidence'], abs=1e-5)


@pytest.mark.parametrize('name', JOINT)
def test_joint_metrics_score_and_tag_the_same(scores, folders, name):
  want, path = scores['joint', name]
  changes, given = JOINT[name]
  texts = [dict(zip(('src', 'mt', 'ref'), t, strict=True)) for t in TEXTS]
  texts = [
    {k: row[k] for k in row if k in ['mt', *given.split()]} for row in texts
  ]
  kind = (BASE | changes)['encoder_model']
  found = _joint_scores(path, texts, tokenizer=folders / kind)
  _check_jointly(found, want)
  assert np.ptp(want['scores']) > 1e-3 and found.truncated > 0
  if found.spans is not None:
    assert sum(map(len, found.spans)) > 4


@pytest.mark.parametrize('name', OURS_JOINTLY)
def test_our_joint_exports_score_and_tag_the_same(scores, name):
  want, path = scores['ours jointly', name]
  texts = [dict(zip(('src', 'mt', 'ref'), t, strict=True)) for t in TEXTS]
  _check_jointly(_joint_scores(path, texts), want)


def test_pieces_stand_where_transformers_finds_them(scores, folders, tmp_path):
  """With the SentencePiece model alone, tags have the same places."""
  want, path = scores['joint', 'tagged']
  encoder = folders / 'XLM-RoBERTa'
  for name in ('config.json', 'model.safetensors'):
    (tmp_path / name).write_bytes((encoder / name).read_bytes())
  pieces = folders / 'pieces' / 'sentencepiece.bpe.model'
  (tmp_path / pieces.name).write_bytes(pieces.read_bytes())
  texts = [{'src': src, 'mt': mt} for src, mt, _ in TEXTS]
  _check_jointly(_joint_scores(path, texts, tokenizer=tmp_path), want)
