"""DeBERTa-v2: buckets and attention by recomputation; folders; padding."""

import io
import json
import math

import jax
import numpy as np
import pytest
import sentencepiece
import tiny_encoder

from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data import subwords
from t5score_jax.metrics import _bertscore_layers, registry
from t5score_jax.nn import bert, deberta
from tests.conftest import made_up_text

CONFIG = deberta.DebertaConfig(
  vocab_size=53,
  emb_dim=16,
  num_heads=2,
  mlp_dim=24,
  num_layers=2,
  max_positions=24,
  buckets=4,
  max_distance=24,
  conv_width=3,
)


def test_buckets_widen_with_distance():
  found = deberta.relative_buckets(CONFIG, 24)
  for i in range(24):
    for j in range(24):
      d = i - j
      expected = d
      if abs(d) > 2:
        far = math.ceil(math.log(abs(d) / 2) / math.log(23 / 2) * 1) + 2
        expected = math.copysign(far, d)
      assert found[i, j] == min(max(expected + 4, 0), 7), d


def _params(config, seed=0):
  shapes = jax.eval_shape(
    lambda rng: bert.init_params(config, rng), jax.random.key(0)
  )
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes
  )


def test_attention_is_the_sum_of_three_terms():
  config = deberta.DebertaConfig(
    **{
      **{f: getattr(CONFIG, f) for f in ('vocab_size', 'emb_dim', 'num_heads')},
      'num_layers': 1,
      'buckets': 4,
      'max_distance': 24,
    }
  )
  params = _params(config)['layers_0']['attention']
  rng = np.random.default_rng(1)
  x = rng.normal(size=(1, 6, 16)).astype(np.float32)
  relative = rng.normal(size=(8, 16)).astype(np.float32)
  layer = deberta.SelfAttention(config)
  found = layer.apply({'params': params}, x, np.zeros((1, 1, 1, 6)), relative)

  def project(name, y):
    y = y @ params[name]['kernel'] + params[name]['bias']
    return y.reshape(*y.shape[:-1], 2, 8)

  q, k, v = (project(n, x[0]) for n in ('query', 'key', 'value'))
  pq, pk = (project(n, relative) for n in ('query', 'key'))
  buckets = deberta.relative_buckets(config, 6)
  out = np.zeros((6, 2, 8))
  for h in range(2):
    for i in range(6):
      logits = np.array(
        [
          q[i, h] @ k[j, h]
          + q[i, h] @ pk[buckets[i, j], h]
          + pq[buckets[i, j], h] @ k[j, h]
          for j in range(6)
        ]
      ) / math.sqrt(3 * 8)
      weights = np.exp(logits - logits.max())
      out[i, h] = weights / weights.sum() @ v[:, h]
  out = out.reshape(6, 16) @ params['out']['kernel'] + params['out']['bias']
  np.testing.assert_allclose(found[0], out, atol=1e-5)


def test_padding_and_further_tokens_do_not_matter():
  params = _params(CONFIG)
  ids = np.array([[5, 6, 7, 8, 0, 0, 0, 0]])

  def states(tokens, layers, rows=None):
    run = jax.jit(
      lambda p, t: bert.hidden_states(p, CONFIG, t, layers=layers, rows=rows)
    )
    return np.asarray(run(params, tokens))

  short, long = (states(t, (0, 1, 2)) for t in (ids[:, :4], ids))
  np.testing.assert_allclose(short, long[:, :, :4], atol=1e-5)
  for depth in (1, 2):
    rows = states(ids, (depth,), rows=1)
    np.testing.assert_allclose(rows[0, :, 0], short[depth][:, 0], atol=1e-5)


@pytest.fixture
def folder(tmp_path):
  """A folder of DeBERTa-v2 with its SentencePiece model."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(made_up_text()),
    model_writer=model,
    vocab_size=48,
    **{'pad_id': 0, 'bos_id': 1, 'eos_id': 2, 'unk_id': 3},
    **{'pad_piece': '[PAD]', 'bos_piece': '[CLS]', 'eos_piece': '[SEP]'},
    unk_piece='[UNK]',
    minloglevel=2,
    num_threads=1,
  )
  folder = tmp_path / 'deberta-v3-tiny'
  folder.mkdir()
  encoders.write_folder(
    folder,
    encoders.settings_from_config(CONFIG),
    encoders.write_named(encoders.parameter_names(CONFIG), _params(CONFIG)),
    'float32',
  )
  (folder / 'spm.model').write_bytes(model.getvalue())
  return folder


def test_folders_score_and_are_written_again(folder, tmp_path):
  bundle = encoders.load_encoder(folder)
  assert bundle.config == CONFIG
  encoders.save_encoder(bundle, tmp_path / 'again')
  scores = [
    registry.load(path, metric='bertscore').score(
      ['the cat sees music.', ''], ['a dog sees the moon.', 'x']
    )
    for path in (folder, tmp_path / 'again')
  ]
  np.testing.assert_array_equal(scores[0].values, scores[1].values)
  assert 0 < scores[0].values[0] < 1
  one = encoders.truncated(bundle, 1)
  ids = np.array([[1, 5, 2]])
  np.testing.assert_allclose(
    bert.hidden_states(one.params, one.config, ids),
    bert.hidden_states(bundle.params, CONFIG, ids, layers=[1]),
    atol=1e-6,
  )


def test_pieces_have_the_models_ids(folder):
  tokenizer = subwords.load_tokenizer(folder)
  (text,) = tokenizer.encode_batch(['the cat [SEP] zzz'], 20)
  assert text.ids[0] == 1 and text.ids[-1] == 2 and text.special[0]
  assert 2 not in text.ids[:-1] and tokenizer.vocab_size == 49
  (text,) = tokenizer.with_special_tokens().encode_batch(['the [SEP] cat'], 20)
  assert text.ids.count(2) == 2
  ((pair,),) = (tokenizer.encode_pairs([('the cat', 'a dog')], 20),)
  assert pair.ids.count(2) == 2 and pair.tokens[0] == '[CLS]'


def test_other_settings_are_refused(folder):
  config = json.loads((folder / 'config.json').read_text())
  for change in ({'relative_attention': False}, {'embedding_size': 8}):
    (folder / 'config.json').write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match='is not supported'):
      encoders.load_encoder(folder)
  # A file that does not state it means False.
  del config['relative_attention']
  (folder / 'config.json').write_text(json.dumps(config))
  with pytest.raises(CheckpointError, match='relative_attention None'):
    encoders.load_encoder(folder)


def test_the_recommended_layer_is_the_default_of_bertscore(tmp_path):
  assert _bertscore_layers.recommended('roberta-large', 24) == 17
  assert _bertscore_layers.recommended('BERT_uncased_L-8_H-512_A-8', 8) == 6
  assert _bertscore_layers.recommended('roberta-large', 3) == -1
  assert _bertscore_layers.recommended('mine', 12) == -1
  # The fourth of a folder that is only called so, and has three: the last.
  names = {'deberta-v3-small': 3, 'bert_uncased_L-2_H-768_A-12': 2}
  for name, layer in names.items():
    tiny_encoder.make(tmp_path / name)
    signature = registry.load(tmp_path / name, metric='bertscore').signature()
    assert f'|layer:{layer}|' in signature
