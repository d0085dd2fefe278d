"""The language model term: NumPy recomputation, both models, odd texts."""

import json
import math

import jax
import numpy as np
import numpy_t5
import pytest
import safetensors.numpy
import tiny_gpt2

from t5score_jax import cli
from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.bundle import load_bundle, save_bundle
from t5score_jax.checkpoints.formats.huggingface import gpt2 as folders
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.crosslingual import language_model
from t5score_jax.data import subwords
from t5score_jax.errors import OptionError
from t5score_jax.metrics import registry
from t5score_jax.nn import gpt2

TEXTS = tiny_gpt2.TEXTS


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny_gpt2.make(tmp_path_factory.mktemp('lm') / 'tiny')


@pytest.fixture(scope='module')
def model(folder):
  return folders.load(folder)


@pytest.fixture(scope='module')
def scored(model):
  return language_model.LanguageModel(model).score(TEXTS)


def _expected(model, text, first):
  (encoded,) = model.tokenizer.encode_batch([text], model.config.max_length)
  ids = encoded.ids
  if first == 'begin' and ids:
    ids = [model.config.begin_id, *ids]
  if len(ids) < 2:
    return -math.log(model.config.vocab_size)
  table = tiny_gpt2.numpy_log_probs(model.params, model.config, ids[:-1])
  return table[np.arange(len(ids) - 1), ids[1:]].mean()


def test_means_by_numpy(model, scored):
  want = [_expected(model, text, 'begin') for text in TEXTS]
  np.testing.assert_allclose(scored.values, want, atol=2e-6)
  assert (scored.truncated, scored.texts) == (1, 6)
  assert scored.values.dtype == np.float32
  skip = language_model.LanguageModel(model, first='skip')
  want = [_expected(model, text, 'skip') for text in TEXTS]
  np.testing.assert_allclose(skip.log_probs(TEXTS), want, atol=2e-6)
  # A text of one token has nothing to score.
  (one,) = model.tokenizer.encode_batch(['a'], 9)
  assert len(one.ids) == 1
  assert skip.log_probs(['a'])[0] == np.float32(skip.floor)


def test_blank_texts_score_as_chance(model):
  blank = ['', ' ', '\n\t', '\u3000']
  scorer = language_model.LanguageModel(model)
  found = scorer.log_probs(blank)
  np.testing.assert_array_equal(
    found, np.float32(-math.log(model.config.vocab_size))
  )
  assert scorer.log_probs([]).shape == (0,)


def test_batches_order_and_company_do_not_matter(model, scored):
  small = language_model.LanguageModel(model, batch_tokens=40)
  other = small.log_probs([*TEXTS[::-1], 'another dog', *TEXTS])
  np.testing.assert_allclose(
    np.concatenate([other[:7][::-1], other[8:]]),
    np.tile(scored.values, 2),
    atol=1e-6,
  )


def test_no_token_sees_a_later_one(model):
  ids = np.array([[5, 6, 7, 8], [5, 6, 9, 4]])
  run = jax.jit(gpt2.hidden_states, static_argnums=1)
  hidden = np.asarray(run(model.params, model.config, ids))
  np.testing.assert_array_equal(hidden[0, :2], hidden[1, :2])
  assert np.abs(hidden[0, 2] - hidden[1, 2]).max() > 1e-3
  with pytest.raises(OptionError, match='41 tokens, but the model has 40'):
    gpt2.hidden_states(model.params, model.config, np.zeros((1, 41), int))


def test_every_parameter_has_axes(model):
  ranks = jax.tree.map(
    len,
    gpt2.logical_axes(model.params),
    is_leaf=lambda x: isinstance(x, tuple),
  )
  assert ranks == jax.tree.map(np.ndim, model.params)


def test_a_spelling_is_text_unless_asked_for(folder):
  text = 'the cat<|endoftext|>'
  plain, special = (
    registry.load_metric('lm', model=folder, special_tokens=flag)
    for flag in (False, True)
  )
  model = folders.load(folder)
  ids = [model.config.begin_id]
  for part in ('the cat', None):
    if part:
      ids += model.tokenizer.encode_batch([part], 40)[0].ids
    else:
      ids.append(model.config.begin_id)
  table = tiny_gpt2.numpy_log_probs(model.params, model.config, ids[:-1])
  want = table[np.arange(len(ids) - 1), ids[1:]].mean()
  assert special.score([text]).values[0] == pytest.approx(want, abs=2e-6)
  assert plain.score([text]).values[0] == pytest.approx(
    _expected(model, text, 'begin'), abs=2e-6
  )
  assert '|special:tokens|' in special.signature()


def test_a_t5_decoder_reads_an_empty_input(random_bundle):
  bundle = load_bundle(random_bundle)
  texts = ['the cat sees the moon.', '', 'music', 'the cat sees the moon.']
  found = language_model.LanguageModel(random_bundle).score(texts)
  want = [
    numpy_t5.token_log_probs(bundle, ('', text)).mean() if text else None
    for text in texts
  ]
  want[1] = -math.log(bundle.config.vocab_size)
  np.testing.assert_allclose(found.values, want, atol=1e-5)
  assert (found.truncated, found.texts) == (0, 3)
  with pytest.raises(OptionError, match="first 'skip': a T5 decoder"):
    language_model.LanguageModel(bundle, first='skip')


def test_a_t5_that_lower_cases(random_bundle, tmp_path):
  bundle = load_bundle(random_bundle)
  bundle.settings['lowercase'] = True
  save_bundle(tmp_path / 'm', bundle)
  metric = registry.load(tmp_path / 'm', metric='lm')
  upper, lower = metric.score(['The CAT', 'the cat'])
  assert upper == lower and '|case:lc|' in metric.signature()


def test_folder_round_trip_is_exact(model, folder, tmp_path):
  assert (
    cli.main(['convert', '--to', 'hf', str(folder), f'{tmp_path}/out']) == 0
  )
  again = folders.load(tmp_path / 'out')
  assert again.config == model.config
  jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
  assert again.tokenizer.fingerprint() == model.tokenizer.fingerprint()
  other = registry.load(tmp_path / 'out').signature()
  assert other.replace('model:out', 'model:tiny') == (
    registry.load(folder).signature()
  )


def _copy(folder, tmp_path, **settings):
  for file in folder.iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes())
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | settings))
  return tmp_path


def test_other_layouts_of_the_files(folder, model, tmp_path):
  """As OpenAI's: no prefix, masks among the weights, two tokenizer files."""
  path = _copy(folder, tmp_path) / 'model.safetensors'
  arrays = safetensors.numpy.load_file(path)
  plain = {n.removeprefix('transformer.'): a for n, a in arrays.items()}
  assert plain.keys() != arrays.keys()
  plain['h.0.attn.bias'] = np.tri(40, dtype='f4')[None, None]
  plain['lm_head.weight'] = arrays['transformer.wte.weight']
  safetensors.numpy.save_file(plain, path)
  tiny_gpt2.tokenizer().model.save(str(tmp_path))
  (tmp_path / subwords.TOKENIZER_FILE).unlink()
  vocabulary = json.loads((tmp_path / 'vocab.json').read_text())
  # The end of text is the last of GPT-2's pieces.
  vocabulary[tiny_gpt2.END] = model.config.begin_id
  (tmp_path / 'vocab.json').write_text(json.dumps(vocabulary))
  again = folders.load(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, again.params, model.params)
  for text in (*TEXTS, tiny_gpt2.END, ' two  spaces '):
    one, other = (m.tokenizer.encode_batch([text], 40) for m in (model, again))
    assert one == other


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'model_type': 'opt'}, "model_type 'opt' is not gpt2"),
    ({'activation_function': 'mish'}, "activation_function 'mish'"),
    ({'scale_attn_by_inverse_layer_idx': True}, 'inverse_layer_idx True'),
    ({'tie_word_embeddings': False}, 'tie_word_embeddings False'),
    ({'n_layer': 3}, '16 parameters are missing: h.2.ln_1.weight'),
    ({'n_inner': 20}, r'wi/kernel \[16, 24\], expected \[16, 20\]'),
    ({'n_head': 3}, 'emb_dim=16 is not divisible by num_heads=3'),
    ({'n_embd': None}, 'there is no n_embd'),
    ({'n_layer': 'two'}, "config.json: .*'two'"),
  ],
)
def test_wrong_folders(folder, tmp_path, settings, words):
  with pytest.raises(CheckpointError, match=words):
    folders.load(_copy(folder, tmp_path, **settings))


def test_without_a_begin_of_text(folder, tmp_path):
  path = _copy(folder, tmp_path, bos_token_id=50256)
  with pytest.raises(OptionError, match="bos_token_id.*'skip' scores without"):
    language_model.LanguageModel(path)
  found = language_model.LanguageModel(path, first='skip').log_probs(['cat .'])
  want = _expected(folders.load(path), 'cat .', 'skip')
  assert found[0] == pytest.approx(want, abs=2e-6)


def test_the_command(folder, scored, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'h').write_text('\n'.join(TEXTS) + '\n')
  assert kinds.of(folder) == kinds.CAUSAL
  # The folder alone says which metric is meant.
  for words in (['--metric', 'lm'], []):
    assert cli.main(['score', '-m', str(folder), *words, '-t', 'h']) == 0
    shown = capsys.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    np.testing.assert_allclose(
      [row['score'] for row in rows], scored.values, atol=1e-6
    )
    assert 'metric:LM|model:tiny|checkpoint:' in shown.err
    assert '|first:begin|' in shown.err


@pytest.mark.parametrize(
  ('words', 'code', 'message'),
  [
    ('--metric lm', 2, 'LM needs a language model'),
    ('-m MODEL --several mean', 2, "reference_rule 'mean': LM reads no"),
    ('-m MODEL --option first=last', 2, "first 'last': use one of begin"),
    ('-m MODEL --max-length 99', 2, 'takes 3 to 40 tokens'),
    ('-m MODEL --metric wmd', 2, 'which wmd does not read; lm can'),
    ('-m minilm-l6 --metric lm', 1, "no model 'minilm-l6'"),
    ('-m frugalscore-tiny --metric lm', 2, 'which lm does not read'),
  ],
)
def test_errors_in_one_line(
  folder, tmp_path, monkeypatch, capsys, words, code, message
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'h').write_text('cat\n')
  words = words.replace('MODEL', str(folder)).split()
  assert cli.main(['score', *words, '-t', 'h']) == code
  shown = capsys.readouterr()
  assert message in shown.err and shown.out == ''
  assert shown.err.count('\n') == 1
