"""A tiny random GPT-2 in a folder, and its log-probabilities in NumPy."""

import json
import math
import pathlib

import jax
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from t5score_jax.checkpoints.formats.huggingface import encoders, gpt2
from t5score_jax.data import subwords
from t5score_jax.nn import gpt2 as network
from t5score_jax.nn.shapes import param_shapes

END = '<|endoftext|>'
TEXTS = [
  'the cat sat on the mat .',
  '',
  'cat',
  'a small green bird ran over the hill, and the dog sat.',
  '\N{GRINNING FACE} unaffordable, t\xe9l\xe9 \u732b',
  'the cat sat on the mat .',
  'the dog ran ' * 40,
]


def tokenizer() -> tokenizers.Tokenizer:
  """A byte-level BPE as GPT-2's: 256 bytes, some merges, the end token."""
  made = tokenizers.Tokenizer(models.BPE())
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=300,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  made.train_from_iterator(TEXTS * 9, trainer)
  made.add_special_tokens([END])
  return made


def config(**changes) -> network.GPT2Config:
  made = tokenizer()
  size = made.get_vocab_size()
  settings = {
    'vocab_size': size,
    'emb_dim': 16,
    'num_heads': 2,
    'mlp_dim': 24,
    'num_layers': 2,
    'max_positions': 40,
    'begin_id': made.token_to_id(END),
  }
  return network.GPT2Config(**settings | changes)


def make(folder: pathlib.Path, seed=0, **changes) -> pathlib.Path:
  """Writes a Hugging Face folder with random weights."""
  folder.mkdir(parents=True, exist_ok=True)
  shape = config(**changes)
  shapes = param_shapes(network.init_params, shape)
  rng = np.random.default_rng(seed)
  params = jax.tree.map(
    lambda x: rng.normal(0, 0.25, x.shape).astype(np.float32), shapes
  )
  tokenizer().save(str(folder / subwords.TOKENIZER_FILE))
  settings = {'tokenizer_class': 'GPT2Tokenizer', 'bos_token': END}
  (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
  read = subwords.load_tokenizer(folder)
  gpt2.save(encoders.EncoderBundle(shape, params, read, ''), folder)
  return folder


def numpy_log_probs(params, config, ids) -> np.ndarray:
  """Log p(next token) at each of `ids`, float64 [tokens, vocab_size]."""
  e = params['embeddings']
  x = e['word'][ids].astype(np.float64) + e['position'][: len(ids)]
  for n in range(config.num_layers):
    p = params[f'layers_{n}']
    x = x + _attend(_norm(x, p['attention_norm'], config), p, config)
    y = _dense(_norm(x, p['mlp_norm'], config), p['wi'])
    inner = math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)
    x = x + _dense(0.5 * y * (1 + np.tanh(inner)), p['wo'])
  logits = _norm(x, params['final_norm'], config) @ e['word'].T
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _dense(x, p):
  return x @ p['kernel'].astype(np.float64) + p['bias']


def _norm(x, p, config):
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_epsilon)
  return x * p['scale'] + p['bias']


def _attend(x, layer, config):
  p = layer['attention']
  width = config.emb_dim // config.num_heads
  q, k, v = (_dense(x, p[name]) for name in ('query', 'key', 'value'))
  later = np.triu(np.ones((len(x), len(x)), bool), 1)
  heads = []
  for h in range(config.num_heads):
    part = slice(h * width, (h + 1) * width)
    logits = q[:, part] @ k[:, part].T / math.sqrt(width)
    weights = np.exp(np.where(later, -np.inf, logits))
    heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
  return _dense(np.concatenate(heads, -1), p['out'])
