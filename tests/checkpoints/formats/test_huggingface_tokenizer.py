"""Tokenizer files without transformers: vocabularies go out and come back.

`tests/parity/test_huggingface_tokenizer_parity.py` compares the ids.
"""

import io
import json

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t5score_jax.checkpoints.formats.huggingface import tokenizer as tokenizers
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data import subwords, unigram
from t5score_jax.data.vocab import ByteVocabulary, SentencePieceVocabulary
from tests.conftest import made_up_text

_TEXTS = ('the cat sees a red kite.', '  Two  ﬁ ', 'ünknown 你', '', 'a\tb')


def _train(**changes) -> bytes:
  model = io.BytesIO()
  values = {
    'vocab_size': 48,
    'pad_id': 0,
    'eos_id': 1,
    'unk_id': 2,
    'bos_id': -1,
    'minloglevel': 2,
    'num_threads': 1,
    **changes,
  }
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(made_up_text()), model_writer=model, **values
  )
  return model.getvalue()


def _write(folder, vocabulary, keep=None):
  """Writes a vocabulary's files, or those of them named."""
  for name, content in tokenizers.files(vocabulary).items():
    if keep is None or name in keep:
      (folder / name).write_bytes(content)
  return folder


@pytest.mark.parametrize('extra_ids', [0, 5, 100])
def test_sentencepiece_comes_back(tmp_path, sentencepiece_model, extra_ids):
  vocabulary = SentencePieceVocabulary(sentencepiece_model, extra_ids)
  _write(tmp_path, vocabulary)
  # Sentinels are transformers' business, outside of the model.
  assert (tmp_path / 'spiece.model').read_bytes() == sentencepiece_model
  found, notes = tokenizers.read(tmp_path, 200)
  assert found == vocabulary
  assert notes == ()
  said = json.loads((tmp_path / 'tokenizer.json').read_text())
  assert len(said['model']['vocab']) == vocabulary.vocab_size
  assert [t['id'] for t in said['added_tokens']] == [
    *range(3),
    *range(48, 48 + extra_ids),
  ]


@pytest.mark.parametrize('extra_ids', [0, 125])
def test_bytes_come_back(tmp_path, extra_ids):
  vocabulary = ByteVocabulary(extra_ids)
  _write(tmp_path, vocabulary)
  assert tokenizers.read(tmp_path, 400) == (vocabulary, ())


def test_sentinels_of_the_model_stay_there(tmp_path):
  """mT5's model was trained with them."""
  sentinels = [f'<extra_id_{i}>' for i in reversed(range(3))]
  model = _train(user_defined_symbols=sentinels, vocab_size=51)
  moved = _pieces_moved_to_the_end(model, sentinels)
  vocabulary = SentencePieceVocabulary(moved)
  assert vocabulary.extra_ids == 3
  _write(tmp_path, vocabulary)
  assert (tmp_path / 'spiece.model').read_bytes() == moved
  said = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  assert said['extra_ids'] == 0
  assert tokenizers.read(tmp_path, 64) == (vocabulary, ())
  # A tokenizer that says nothing, or 100, as T5's class does.
  for text in ('{}', '{"extra_ids": 100}'):
    (tmp_path / 'tokenizer_config.json').write_text(text)
    assert tokenizers.read(tmp_path, 200)[0] == vocabulary


def _pieces_moved_to_the_end(model: bytes, texts) -> bytes:
  """Reorders pieces, which SentencePiece's trainer puts at the beginning."""
  proto = sentencepiece_model_pb2.ModelProto.FromString(model)
  first = [p for p in proto.pieces if p.piece.lstrip('▁') not in texts]
  last = [p for p in proto.pieces if p.piece.lstrip('▁') in texts]
  last.sort(key=lambda piece: texts.index(piece.piece.lstrip('▁')))
  assert len(last) == len(texts)
  del proto.pieces[:]
  proto.pieces.extend([*first, *last])
  return proto.SerializeToString()


@pytest.mark.parametrize(('rows', 'extra_ids'), [(147, 0), (148, 100)])
def test_sentinels_are_t5s_where_nothing_is_said(
  tmp_path, sentencepiece_model, rows, extra_ids
):
  (tmp_path / 'spiece.model').write_bytes(sentencepiece_model)
  found, _ = tokenizers.read(tmp_path, rows)
  assert found == SentencePieceVocabulary(sentencepiece_model, extra_ids)


@pytest.mark.parametrize('extra_ids', [0, 4])
@pytest.mark.parametrize('rule', ['nmt_nfkc', 'nmt_nfkc_cf', 'identity'])
def test_tokenizer_json_alone_is_enough(tmp_path, rule, extra_ids):
  """transformers 5 saves no spiece.model."""
  vocabulary = SentencePieceVocabulary(
    _train(normalization_rule_name=rule), extra_ids
  )
  _write(tmp_path, vocabulary, ['tokenizer.json'])
  found, notes = tokenizers.read(tmp_path, 64)
  assert found.vocab_size == vocabulary.vocab_size
  assert found.extra_ids == extra_ids
  for text in (*_TEXTS, '<extra_id_1> a', '</s>'):
    assert found.encode(text) == vocabulary.encode(text), text
    assert found.decode(found.encode(text)) == vocabulary.decode(
      vocabulary.encode(text)
    )
  assert notes == ('vocabulary: put together from tokenizer.json',)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'model': {'type': 'BPE', 'vocab': {}}}, 'a BPE model'),
    ({'normalizer': {'type': 'NFC'}}, 'a normalizer NFC'),
    ({'model': None}, 'no vocabulary of this library'),
  ],
)
def test_other_tokenizers_are_named(
  tmp_path, sentencepiece_model, changes, message
):
  vocabulary = SentencePieceVocabulary(sentencepiece_model)
  _write(tmp_path, vocabulary, ['tokenizer.json'])
  path = tmp_path / 'tokenizer.json'
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
  found, (note,) = tokenizers.read(tmp_path, 64)
  assert found is None
  assert message in note
  assert '--vocabulary names the spiece.model' in note


def test_folders_without_a_tokenizer(tmp_path):
  assert tokenizers.read(tmp_path, 383) == (None, ())
  found, (note,) = tokenizers.read(tmp_path, 384)
  assert found == ByteVocabulary()
  assert 'assumed' in note


@pytest.mark.parametrize('name', ['spiece.model', 'tokenizer.json'])
def test_damaged_files_are_named(tmp_path, name):
  (tmp_path / name).write_bytes(b'nonsense')
  with pytest.raises(CheckpointError, match=str(tmp_path)):
    tokenizers.read(tmp_path, 64)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'model_type': 'bpe'}, 'it is no unigram model'),
    (
      {'byte_fallback': True, 'vocab_size': 300, 'hard_vocab_limit': False},
      'it falls back to bytes',
    ),
    (
      {'add_dummy_prefix': False, 'vocab_size': 40},
      'it adds no space before a text',
    ),
    ({'remove_extra_whitespaces': False}, 'it keeps repeated spaces'),
    ({'treat_whitespace_as_suffix': True}, 'it marks the ends of words'),
    ({'user_defined_symbols': ['<sep>']}, r'user-defined pieces \(<sep>\)'),
  ],
)
def test_what_transformers_would_read_otherwise_is_refused(changes, message):
  vocabulary = SentencePieceVocabulary(_train(**changes))
  with pytest.raises(CheckpointError, match=message):
    tokenizers.files(vocabulary)


def test_tokenizer_json_has_the_pieces_of_sentencepiece(sentencepiece_model):
  processor = sentencepiece.SentencePieceProcessor()
  processor.LoadFromSerializedProto(sentencepiece_model)
  vocabulary = SentencePieceVocabulary(sentencepiece_model)
  content = json.loads(tokenizers.files(vocabulary)['tokenizer.json'])
  assert content['normalizer']['precompiled_charsmap']
  assert content['model']['vocab'] == [
    [processor.IdToPiece(i), processor.GetScore(i)]
    for i in range(processor.GetPieceSize())
  ]


def test_the_json_of_xlm_r_gives_the_ids_of_its_model(tmp_path):
  model = _train(pad_id=-1, bos_id=1, eos_id=2, unk_id=0)
  (tmp_path / 'a').mkdir()
  (tmp_path / 'b').mkdir()
  (tmp_path / 'a' / subwords.SENTENCEPIECE_FILE).write_bytes(model)
  (tmp_path / 'b' / subwords.TOKENIZER_FILE).write_bytes(
    unigram.xlmr_json(model)
  )
  ours, theirs = (subwords.load_tokenizer(tmp_path / n) for n in 'ab')
  assert theirs.vocab_size == ours.vocab_size
  texts = [*_TEXTS, 'the cat ' * 30]
  found, want = ([], [])
  for encoder, encoded in ((theirs, found), (ours, want)):
    for length in (9, 200):
      encoded += encoder.encode_batch(texts, length)
    pairs = [(text, 'a red kite') for text in texts]
    encoded += encoder.encode_pairs(pairs, 200)
  assert [(e.ids, e.cut) for e in found] == [(e.ids, e.cut) for e in want]
