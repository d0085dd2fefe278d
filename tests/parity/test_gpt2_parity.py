"""GPT-2 and the language model term against `transformers`."""

import json
import math
import shutil

import jax
import numpy as np
import pytest
import tiny_gpt2

from t5score_jax.checkpoints.formats.huggingface import gpt2 as folders
from t5score_jax.checkpoints.formats.huggingface import (
  weights as huggingface_weights,
)
from t5score_jax.data import subwords
from t5score_jax.metrics import registry
from t5score_jax.nn import gpt2

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.parity

TEXTS = [
  'the cat sat on the mat .',
  '',
  'a',
  ' a',
  'cat',
  'a small green bird ran over the hill, and the dog sat.',
  '\N{GRINNING FACE}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET} dog',
  'e\u0301t\u00e9 \u732b\u304c\u5ea7\u308b\u3002',
  'line\nbreak and  spaces ',
  'the dog ran ' * 40,
]
POSITIONS = 40


@pytest.fixture(scope='module')
def peer(tmp_path_factory):
  """A random model as transformers writes it, and its tokenizer."""
  folder = tmp_path_factory.mktemp('peer')
  tokenizer = tiny_gpt2.tokenizer()
  begin = tokenizer.token_to_id(tiny_gpt2.END)
  fast = transformers.GPT2TokenizerFast(
    tokenizer_object=tokenizer,
    bos_token=tiny_gpt2.END,
    eos_token=tiny_gpt2.END,
    unk_token=tiny_gpt2.END,
  )
  fast.save_pretrained(folder)
  torch.manual_seed(0)
  config = transformers.GPT2Config(
    vocab_size=tokenizer.get_vocab_size() + 3,
    n_embd=24,
    n_head=3,
    n_layer=3,
    n_positions=POSITIONS,
    bos_token_id=begin,
    eos_token_id=begin,
  )
  model = transformers.GPT2LMHeadModel(config).eval()
  # Norms and biases begin at 1 and 0, which would hide a swap.
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  model.save_pretrained(folder)
  return folder, model, fast


def _theirs(model, fast, text, first):
  """Minus transformers' loss; the floor where that is undefined."""
  ids = fast(text)['input_ids'][:POSITIONS]
  if first == 'begin' and ids:
    ids = [model.config.bos_token_id, *ids]
  if len(ids) < 2:
    return -math.log(model.config.vocab_size)
  ids = torch.tensor([ids])
  with torch.no_grad():
    if ids.shape[1] <= POSITIONS:
      return -model(ids, labels=ids).loss.item()
    # The last token is a target only.
    logits = model(ids[:, :-1]).logits[0].log_softmax(-1)
  return logits.gather(1, ids[0, 1:, None]).mean().item()


@pytest.mark.parametrize('first', ['begin', 'skip'])
def test_scores(peer, first):
  folder, model, fast = peer
  metric = registry.load(folder, first=first, special_tokens=True)
  texts = [*TEXTS, f'cat {tiny_gpt2.END} dog', tiny_gpt2.END]
  scores = metric.score(texts)
  want = [_theirs(model, fast, text, first) for text in texts]
  np.testing.assert_allclose(scores.values, want, atol=1e-5)
  assert scores.truncated == 1
  plain = registry.load(folder, first=first).score(TEXTS)
  np.testing.assert_allclose(plain.values, want[: len(TEXTS)], atol=1e-5)


@pytest.mark.parametrize('activation', ['gelu_new', 'gelu', 'relu'])
def test_hidden_states(peer, activation, tmp_path):
  config = transformers.GPT2Config(
    **peer[1].config.to_dict() | {'activation_function': activation}
  )
  torch.manual_seed(1)
  model = transformers.GPT2Model(config).eval()
  # Without the output: its names have no prefix.
  model.save_pretrained(tmp_path)
  shape = folders.config_from_settings(config.to_dict(), 'here')
  weights = huggingface_weights.open_folder(tmp_path)
  assert 'wte.weight' in weights
  params = folders.read_params(shape, weights, 'here')
  ids = np.random.default_rng(0).integers(0, shape.vocab_size, (3, POSITIONS))
  with torch.no_grad():
    theirs = model(torch.tensor(ids)).last_hidden_state.numpy()
  ours = gpt2.hidden_states(params, shape, ids)
  np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_torch_files_are_read_as_well(peer, tmp_path):
  """`pytorch_model.bin` with the masks that old folders hold."""
  folder, model, _ = peer
  want = folders.load(folder).params
  shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
  (tmp_path / huggingface_weights.SAFETENSORS).unlink()
  state = model.state_dict()
  mask = torch.ones(1, 1, POSITIONS, POSITIONS).tril()
  state['transformer.h.0.attn.bias'] = mask.to(torch.bool)
  state['transformer.h.1.attn.bias'] = mask.to(torch.uint8)
  state['transformer.h.0.attn.masked_bias'] = torch.tensor(-1e4)
  torch.save(state, tmp_path / huggingface_weights.BIN)
  found = folders.load(tmp_path).params
  jax.tree.map(np.testing.assert_array_equal, found, want)


def test_export_loads_and_gives_the_same_loss(peer, tmp_path):
  folder, model, fast = peer
  folders.save(folders.load(folder), tmp_path)
  again, info = transformers.GPT2LMHeadModel.from_pretrained(
    tmp_path, output_loading_info=True
  )
  assert not info['unexpected_keys'] and not info['missing_keys']
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
  for text in TEXTS:
    assert tokenizer(text)['input_ids'] == fast(text)['input_ids']
    one, other = (
      _theirs(m, fast, text, 'begin') for m in (model, again.eval())
    )
    assert one == pytest.approx(other, abs=1e-6)


def test_two_tokenizer_files_give_the_same_ids(peer, tmp_path):
  """GPT-2's and RoBERTa's `vocab.json` and `merges.txt`."""
  _, _, fast = peer
  tiny_gpt2.tokenizer().model.save(str(tmp_path))
  (tmp_path / 'config.json').write_text('{"model_type": "gpt2"}')
  ours = subwords.load_tokenizer(tmp_path).encode_batch(TEXTS, 1000)
  assert [t.ids for t in ours] == [fast(t)['input_ids'] for t in TEXTS]


def test_two_files_of_roberta(tmp_path):
  vocabulary = json.loads(tiny_gpt2.tokenizer().to_str())['model']['vocab']
  names = ['<s>', '<pad>', '</s>', '<unk>']
  shifted = {name: n for n, name in enumerate([*names, *vocabulary])}
  shifted['<mask>'] = len(shifted)
  tiny_gpt2.tokenizer().model.save(str(tmp_path))
  (tmp_path / 'vocab.json').write_text(json.dumps(shifted))
  theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path)
  ours = subwords.load_tokenizer(tmp_path)
  for text, other in zip(TEXTS, TEXTS[::-1], strict=True):
    one, two = ours.encode_batch([text, other], 1000)
    assert one.ids == theirs(text)['input_ids']
    (pair,) = ours.encode_pairs([(text, other)], 1000)
    # The published layout: <s> A </s></s> B </s>.
    assert pair.ids == [*one.ids, 2, *two.ids[1:]]
