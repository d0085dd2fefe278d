"""Small random models in folders, for every test that needs a whole one."""

import io
import os
import pathlib
import tempfile

import pytest
from hypothesis import settings

# Developers meet new examples at every run; a check of a change must not fail
# by chance, on an example which the change has nothing to do with.
settings.register_profile('fresh', deadline=None)
settings.register_profile('fixed', derandomize=True, deadline=None)
settings.load_profile(os.environ.get('T5SCORE_HYPOTHESIS_PROFILE', 'fresh'))

# One cache of compiled programs a session, also for its child processes and
# xdist's workers, which inherit the environment. A developer's own cache must
# neither help nor be filled: JAX's setting goes before this library's.
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  _cache = tempfile.TemporaryDirectory(prefix='t5score-tests-')
  os.environ['JAX_COMPILATION_CACHE_DIR'] = _cache.name
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
  os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'

_SUBJECTS = 'the cat|a dog|my neighbour|the old ship|her bicycle|this town'
_VERBS = 'sees|follows|paints|repairs|forgets|carries'
_OBJECTS = 'a red kite|the moon|two letters|some bread|an empty box|music'


def made_up_text() -> list[str]:
  """216 plain English sentences."""
  return [
    f'{subject} {verb} {thing}.'
    for subject in _SUBJECTS.split('|')
    for verb in _VERBS.split('|')
    for thing in _OBJECTS.split('|')
  ]


@pytest.fixture(scope='session')
def sentencepiece_model() -> bytes:
  """A vocabulary of 48 unigram pieces."""
  import sentencepiece

  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(made_up_text()),
    model_writer=model,
    vocab_size=48,
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    minloglevel=2,
    num_threads=1,
  )
  return model.getvalue()


def make_bundle(vocabulary, **settings):
  """A bundle with one layer a side and random weights (always the same)."""
  import jax
  import numpy as np

  from t5score_jax.checkpoints.bundle import Bundle
  from t5score_jax.nn import t5

  config = t5.T5Config(
    vocab_size=-(-vocabulary.vocab_size // 8) * 8,
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=32,
    num_encoder_layers=1,
    num_decoder_layers=1,
  )
  shapes = jax.eval_shape(
    lambda r: t5.init_params(config, r), jax.random.key(0)
  )
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes
  )
  return Bundle(config, params, vocabulary, {'name': 'random', **settings})


@pytest.fixture(scope='session')
def random_model(sentencepiece_model):
  """A tiny random model with a SentencePiece vocabulary, in memory."""
  from t5score_jax.data.vocab import SentencePieceVocabulary

  return make_bundle(
    SentencePieceVocabulary(sentencepiece_model), max_length=64
  )


@pytest.fixture(scope='session')
def random_bundle(random_model, tmp_path_factory) -> pathlib.Path:
  """The folder of that model, weights in float32; read only."""
  from t5score_jax.checkpoints.bundle import save_bundle

  folder = tmp_path_factory.mktemp('models') / 'random'
  save_bundle(folder, random_model, dtype='float32')
  return folder


@pytest.fixture(scope='session')
def bytes_bundle(tmp_path_factory) -> pathlib.Path:
  """The folder of a tiny random model that reads bytes; read only."""
  from t5score_jax.checkpoints.bundle import save_bundle
  from t5score_jax.data.vocab import ByteVocabulary

  folder = tmp_path_factory.mktemp('models') / 'bytes'
  save_bundle(folder, make_bundle(ByteVocabulary()), dtype='float32')
  return folder
