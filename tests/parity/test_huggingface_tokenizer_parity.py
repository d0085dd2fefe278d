"""Exported tokenizers give the ids of our vocabularies in transformers."""

import dataclasses
import json
import subprocess
import sys

import pytest

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from t5score_jax.checkpoints import bundle, kinds  # noqa: E402
from t5score_jax.checkpoints.formats.huggingface import checkpoint  # noqa: E402
from t5score_jax.checkpoints.source import Options  # noqa: E402
from t5score_jax.data.vocab import (  # noqa: E402
  ByteVocabulary,
  SentencePieceVocabulary,
)
from tests.conftest import made_up_text  # noqa: E402
from tests.parity import hf_exports  # noqa: E402

pytestmark = pytest.mark.parity


@pytest.fixture(autouse=True)
def offline(monkeypatch):
  monkeypatch.setenv('HF_HUB_OFFLINE', '1')
  monkeypatch.setenv('TRANSFORMERS_OFFLINE', '1')
  transformers.utils.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()


_VOCABULARIES = {
  'nmt_nfkc': lambda: SentencePieceVocabulary(hf_exports.trained()),
  'lower': lambda: SentencePieceVocabulary(
    hf_exports.trained(normalization_rule_name='nmt_nfkc_cf'), 100
  ),
  'embedded': lambda: (
    bundle.load_bundle(kinds.folder('t5score-tiny')).vocabulary
  ),
  'bytes': ByteVocabulary,
  'bytes_bare': lambda: ByteVocabulary(0),
}


@pytest.fixture(scope='module', params=sorted(_VOCABULARIES))
def tokenizers(request, tmp_path_factory):
  """Our vocabulary and the exported tokenizer, as transformers loads it."""
  vocabulary = _VOCABULARIES[request.param]()
  config = dataclasses.replace(
    hf_exports.SHAPE, vocab_size=vocabulary.vocab_size
  )
  folder = tmp_path_factory.mktemp('tokenizers') / request.param
  source = hf_exports.source(config, vocabulary, settings={'max_length': 9})
  hf_exports.export(source, folder)
  return vocabulary, transformers.AutoTokenizer.from_pretrained(folder), folder


# Special tokens are spelled with '<'; see huggingface_tokenizer's docstring.
_PLAIN = st.text(
  st.characters(exclude_categories=['Cs'], exclude_characters='<\x85')
)
_WORDS = st.lists(
  st.sampled_from([*' '.join(made_up_text()).split(), ' ', '\u3000', 'Ä', 'ﬁ'])
).map(' '.join)


@settings(max_examples=400, deadline=None)
@given(text=st.one_of(_WORDS, _PLAIN))
def test_ids_are_the_same(tokenizers, text):
  vocabulary, tokenizer, _ = tokenizers
  expected = [*vocabulary.encode(text), 1]
  assert tokenizer(text, max_length=10**6).input_ids == expected


def test_where_ids_differ(tokenizers):
  """The exceptions that the documentation names, and none for bytes."""
  vocabulary, tokenizer, _ = tokenizers
  for text in ('a </s> b', '<pad>', 'a\x85b'):
    expected = [*vocabulary.encode(text), 1]
    same = tokenizer(text, max_length=10**6).input_ids == expected
    assert same == isinstance(vocabulary, ByteVocabulary)


def test_tokenizer_knows_its_sizes(tokenizers):
  vocabulary, tokenizer, _ = tokenizers
  assert len(tokenizer) == vocabulary.vocab_size
  assert tokenizer.model_max_length == 9
  assert tokenizer.eos_token_id == 1
  assert tokenizer.pad_token_id == 0
  assert tokenizer.unk_token_id == 2
  ids = tokenizer('the cat sees a red kite, twice', truncation=True).input_ids
  assert len(ids) == 9
  assert ids[-1] == 1
  text = 'the cat sees a red kite.'
  ids = vocabulary.encode(text)
  assert tokenizer.decode(ids) == vocabulary.decode(ids)


def test_sentencepiece_model_alone_gives_the_same(tokenizers, tmp_path):
  """What transformers makes of spiece.model, without our tokenizer.json."""
  vocabulary, tokenizer, folder = tokenizers
  if isinstance(vocabulary, ByteVocabulary):
    pytest.skip('has no such file')
  for path in folder.glob('*'):
    if path.suffix != '.safetensors' and path.name != 'tokenizer.json':
      (tmp_path / path.name).write_bytes(path.read_bytes())
  alone = transformers.AutoTokenizer.from_pretrained(tmp_path)
  first, second = (
    json.loads(one.backend_tokenizer.to_str()) for one in (alone, tokenizer)
  )
  for part in ('normalizer', 'pre_tokenizer', 'post_processor', 'model'):
    assert first[part] == second[part], part


def test_tokenizers_that_transformers_saves_come_back(tokenizers, tmp_path):
  vocabulary, tokenizer, folder = tokenizers
  tokenizer.save_pretrained(tmp_path)
  (tmp_path / 'config.json').write_text((folder / 'config.json').read_text())
  weights = (folder / 'model.safetensors').read_bytes()
  (tmp_path / 'model.safetensors').write_bytes(weights)
  found = checkpoint.open_source(tmp_path, Options()).vocabulary
  assert found.vocab_size == vocabulary.vocab_size
  for text in made_up_text()[::20]:
    assert found.encode(text) == vocabulary.encode(text)


def test_exports_need_neither_sentencepiece_nor_protobuf(tmp_path):
  vocabulary = _VOCABULARIES['lower']()
  folder = hf_exports.export(
    hf_exports.source(hf_exports.SHAPE, vocabulary), tmp_path / 'out'
  )
  program = f"""
import sys
sys.modules.update({{'sentencepiece': None, 'google.protobuf': None}})
import transformers
tokenizer = transformers.AutoTokenizer.from_pretrained({str(folder)!r})
print(tokenizer('the cat sees').input_ids)
"""
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout) == [*vocabulary.encode('the cat sees'), 1]
