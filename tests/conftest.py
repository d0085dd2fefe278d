"""Small random models in folders, for every test that needs a whole one."""

import gc
import io
import os
import pathlib
import sys
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

# Names of models on the Hugging Face Hub are looked up nowhere.
os.environ['HF_HUB_OFFLINE'] = '1'

# POT, which one test compares with, would import each of these it finds.
for _name in ('PYTORCH', 'TENSORFLOW', 'JAX'):
  os.environ.setdefault(f'POT_BACKEND_DISABLE_{_name}', '1')

# Thousands of tests, libraries and compiled programs stay: looking for garbage
# among them as often as Python does by default takes a tenth of the time.
gc.set_threshold(50_000, 20, 50)


def pytest_collection_finish() -> None:
  """Exempts all that is loaded from garbage collection."""
  gc.freeze()


@pytest.fixture(scope='session', autouse=True)
def draw_curves():
  """What draws the curves of a run, a third of the time of a tiny one.

  Runs leave an empty picture; `tests/training/test_reports.py` draws.
  """
  from t5score_jax.training import reports

  draw = reports.draw_curves
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(reports, 'draw_curves', lambda path, history: path.touch())
    yield draw


@pytest.fixture(autouse=True)
def forget_settings():
  """Takes back what a test set for its whole process.

  Gin's bindings and SeqIO's folders of caches outlive a run, and another test
  of the same worker would get its models and tasks by them.
  """
  yield
  if gin := sys.modules.get('gin'):
    gin.clear_config()
  if seqio := sys.modules.get('seqio'):
    seqio.set_global_cache_dirs([])
    for name in seqio.TaskRegistry.names():
      # Where it has found a cache, a task looks no more.
      seqio.TaskRegistry.get(name)._cache_dir = None


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
  from t5score_jax.nn.shapes import param_shapes

  config = t5.T5Config(
    vocab_size=-(-vocabulary.vocab_size // 8) * 8,
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=32,
    num_encoder_layers=1,
    num_decoder_layers=1,
  )
  shapes = param_shapes(t5.init_params, config)
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
