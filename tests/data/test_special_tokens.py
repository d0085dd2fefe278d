"""Spellings of special tokens, read as the library `tokenizers` reads them."""

import pickle

import pytest
import tiny_encoder
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.formats.huggingface import tokenizer as files
from t5score_jax.data import special_tokens, subwords, unigram
from t5score_jax.data.vocab import ByteVocabulary, SentencePieceVocabulary
from t5score_jax.metrics import registry

_PIECES = ['the cat', 'sees', ' ', '  ', 'a red kite.', '<', 'extra', '']
_T5 = ['<pad>', '</s>', '<unk>', '<extra_id_0>', '<extra_id_3>', '<extra_id_9>']
_XLMR = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']


def _texts(spellings):
  parts = st.lists(st.sampled_from([*_PIECES, *spellings]), max_size=6)
  return parts.map(''.join)


@pytest.fixture(scope='module')
def t5(sentencepiece_model):
  vocabulary = SentencePieceVocabulary(sentencepiece_model, 4)
  peer = tokenizers.Tokenizer.from_str(
    files.files(vocabulary)[files.JSON_FILE].decode()
  )
  return vocabulary, special_tokens.SpellingVocabulary(vocabulary), peer


@settings(max_examples=200, deadline=None)
@given(text=_texts(_T5))
def test_t5_reads_texts_as_its_peer_does(t5, text):
  plain, spelling, peer = t5
  assert [*spelling.encode(text), 1] == peer.encode(text).ids
  if '<' not in text:
    assert spelling.encode(text) == plain.encode(text)


def test_a_vocabulary_stays_itself(t5):
  plain, spelling, _ = t5
  assert spelling == plain and spelling.vocab_size == plain.vocab_size
  assert spelling.decode(plain.encode('the cat')) == plain.decode(
    plain.encode('the cat')
  )
  assert plain.encode('a</s>') != spelling.encode('a</s>')


def test_bytes_number_sentinels_as_byt5_does():
  spelling = special_tokens.SpellingVocabulary(ByteVocabulary())
  # transformers.ByT5Tokenizer()(...).input_ids of release 5.24.
  expected = [100, 1, 101, 35, 259, 35, 262, 0]
  assert spelling.encode('a</s>b <extra_id_0> <extra_id_3><pad>') == expected


@pytest.fixture(scope='module')
def xlmr(tmp_path_factory):
  from tests.checkpoints.formats import test_huggingface_tokenizer as other

  folder = tmp_path_factory.mktemp('xlmr')
  model = other._train(pad_id=-1, bos_id=1, eos_id=2, unk_id=0)
  (folder / subwords.SENTENCEPIECE_FILE).write_bytes(model)
  peer = tokenizers.Tokenizer.from_str(unigram.xlmr_json(model).decode())
  return subwords.load_tokenizer(folder).with_special_tokens(), peer


@settings(max_examples=200, deadline=None)
@given(text=_texts(_XLMR))
def test_xlm_r_reads_texts_as_its_peer_does(xlmr, text):
  tokenizer, peer = xlmr
  (found,) = tokenizer.encode_batch([text], 100)
  assert found.ids == peer.encode(text).ids


@pytest.fixture(scope='module')
def by_file(xlmr, tmp_path_factory):
  """Tokenizers of tokenizer.json (XLM-R's) and of vocab.txt, and peers."""
  folder = tmp_path_factory.mktemp('json')
  (folder / subwords.TOKENIZER_FILE).write_text(xlmr[1].to_str())
  found = {'xlm-r': (subwords.load_tokenizer(folder), xlmr[1])}
  pieces = subwords.load_tokenizer(tiny_encoder.make(folder / 'bert'))
  (folder / 'saved').mkdir()
  pieces.save(folder / 'saved')
  path = str(folder / 'saved' / subwords.TOKENIZER_FILE)
  return {**found, 'bert': (pieces, tokenizers.Tokenizer.from_file(path))}


@pytest.mark.parametrize(
  ('kind', 'spellings'),
  [('xlm-r', _XLMR), ('bert', ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'])],
)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_spellings_in_texts_are_text_but_for_the_option(
  by_file, kind, spellings, data
):
  tokenizer, peer = by_file[kind]
  text = data.draw(_texts(spellings))
  (plain,) = tokenizer.encode_batch([text], 100)
  copy = pickle.loads(pickle.dumps(tokenizer.with_special_tokens()))
  (spelled,) = copy.encode_batch([text], 100)
  assert spelled.ids == peer.encode(text).ids
  assert copy.fingerprint() == tokenizer.fingerprint()
  inside = set(plain.tokens[1:-1])
  assert not inside & set(spellings) - {'<unk>', '[UNK]'}
  if not any(spelling in text for spelling in spellings):
    assert plain == spelled


def test_a_spelling_does_not_split_a_pair():
  folder = kinds.folder('frugalscore-tiny')
  tokenizer = subwords.load_tokenizer(folder)
  pairs = [('the [SEP] cat', 'a cat'), ('the', 'cat [CLS] sat [SEP]')]
  for found in tokenizer.encode_pairs(pairs, 100):
    assert found.tokens.count('[SEP]') == sum(found.special) - 1 == 2
    first = found.tokens.index('[SEP]')
    assert found.types == [0] * (first + 1) + [1] * (len(found.ids) - first - 1)
  peers = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  peers.no_padding()
  same = tokenizer.with_special_tokens().encode_pairs(pairs, 100)
  assert [one.ids for one in same] == [peers.encode(*p).ids for p in pairs]


def test_metrics_take_the_option(tmp_path):
  folder = tiny_encoder.make(tmp_path / 'encoder')
  signatures = set()
  cases = [('t5score', 't5score-tiny', '</s>'), ('bertscore', folder, '[SEP]')]
  for name, model, token in cases:
    plain = registry.load_metric(name, model=model)
    same = registry.load_metric(name, model=model, special_tokens=True)
    assert '|special:tokens' in same.signature()
    assert '|special' not in plain.signature()
    signatures |= {plain.signature(), same.signature()}
    texts = [f'the cat {token} sat', 'the cat sat'], [['a cat'], ['a cat']]
    plain, same = plain.score(*texts).values, same.score(*texts).values
    assert plain[1] == pytest.approx(same[1], abs=1e-6)
    assert abs(plain[0] - same[0]) > 1e-4
  assert len(signatures) == 4
