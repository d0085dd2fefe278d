"""`small_encoder.py`: the pieces and layers that stay, and their states."""

import dataclasses
import importlib.util
import pathlib

import numpy as np
import pytest
import sentencepiece
import tiny_encoder

from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data import subwords
from t5score_jax.inference import encoding
from t5score_jax.nn import bert
from t5score_jax.nn.shapes import param_shapes

ROOT = pathlib.Path(__file__).resolve().parents[2]
OTHERS = [
  f'{first}{last} {last}{first}'
  for first in ('unre', 'lated', 'wor', 'ding', 'ever', 'gone')
  for last in ('some', 'thing', 'noone', 'here', 'blue')
]
TEXTS = [
  'the cat sat on the mat',
  'a dog ran over the hill',
  'die Katze saß da',
]


@pytest.fixture(scope='module')
def script():
  path = ROOT / 'scripts' / 'reproduce' / 'small_encoder.py'
  spec = importlib.util.spec_from_file_location('small_encoder', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
  """A random encoder with a vocabulary of XLM-R's kind."""
  folder = tmp_path_factory.mktemp('encoder')
  sentencepiece.SentencePieceTrainer.Train(
    sentence_iterator=iter([*TEXTS * 5, *OTHERS]),
    model_prefix=str(folder / 'pieces'),
    vocab_size=70,
    hard_vocab_limit=False,
    unk_id=0,
    bos_id=1,
    eos_id=2,
    pad_id=-1,
    minloglevel=2,
  )
  (folder / 'pieces.model').rename(folder / subwords.SENTENCEPIECE_FILE)
  tokenizer = subwords.load_tokenizer(folder)
  config = dataclasses.replace(
    tiny_encoder.CONFIG, vocab_size=tokenizer.vocab_size, pad_id=1
  )
  params = tiny_encoder.random_params(param_shapes(bert.init_params, config))
  bundle = encoders.EncoderBundle(config, params, tokenizer, 'tiny')
  encoders.save_encoder(bundle, folder)
  (folder / 'texts.txt').write_text('\n'.join(TEXTS) + '\n', 'utf-8')
  return folder


def _cut(script, encoder, out, *more):
  given = [str(encoder), '--texts', str(encoder / 'texts.txt')]
  return script.main([*given, '-o', str(out), *more])


def test_states_stay_where_the_pieces_do(script, encoder, tmp_path):
  whole = encoders.load_encoder(encoder)
  size = whole.tokenizer.vocab_size - 12
  out = tmp_path / 'small'
  given = ['--layers', '2', '--vocabulary', str(size)]
  assert _cut(script, encoder, out, *given) == 0
  small = encoders.load_encoder(out)
  assert small.config.num_layers == 2
  assert small.config.vocab_size == small.tokenizer.vocab_size == size
  before = encoding.TextEncoder(whole, [2]).states(TEXTS)
  after = encoding.TextEncoder(small, [2]).states(TEXTS)
  unknown = whole.tokenizer.encode_batch(['漢'], 9)[0].tokens
  for text, a, b in zip(TEXTS, before, after, strict=True):
    assert b.encoded.tokens == a.encoded.tokens, text
    np.testing.assert_allclose(b.states, a.states, atol=1e-5)
  assert small.tokenizer.encode_batch(['漢'], 9)[0].tokens == unknown
  # Every character of the texts is known.
  for one in small.tokenizer.encode_batch(sorted(set(''.join(TEXTS))), 9):
    assert '<unk>' not in one.tokens


def test_vectors_are_standardised(script, encoder, tmp_path):
  size = str(encoders.load_encoder(encoder).tokenizer.vocab_size)
  given = ['--layers', '2', '--vocabulary', size, '--standardise', '3']
  assert _cut(script, encoder, tmp_path / 'out', *given) == 0
  small = encoders.load_encoder(tmp_path / 'out')
  states = encoding.TextEncoder(small, [-1]).states(TEXTS)
  vectors = np.stack([one.states[0].mean(axis=0) for one in states])
  np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-4)
  np.testing.assert_allclose(vectors.std(axis=0), 1, atol=1e-3)


def test_errors(script, encoder, tmp_path, capsys):
  given = ['--layers', '2', '--vocabulary', '10']
  assert _cut(script, encoder, tmp_path / 'out', *given) == 1
  assert 'characters of the texts alone are' in capsys.readouterr().err
  given = ['--layers', '9', '--vocabulary', '70']
  assert _cut(script, encoder, tmp_path / 'out', *given) == 1
  assert 'the encoder has 1 to 3' in capsys.readouterr().err
  bert_folder = tiny_encoder.make(tmp_path / 'bert')
  arguments = [str(bert_folder), '--texts', str(encoder / 'texts.txt')]
  arguments += ['-o', str(tmp_path / 'out'), *given]
  assert script.main(arguments) == 1
  assert "XLM-R's tokenizer is needed" in capsys.readouterr().err
  assert not (tmp_path / 'out').exists()
