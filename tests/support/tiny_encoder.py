"""A tiny random encoder in a folder, and its forward pass in NumPy."""

import json
import math
import pathlib

import jax
import numpy as np

from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.nn import bert
from t5score_jax.nn.shapes import param_shapes

WORDS = (
  'the a cat dog sat ran on over mat hill small green bird un ##able ##s ##ly'
  ' ##afford . , ! 1 2'
).split()
PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]
CONFIG = bert.BertConfig(
  vocab_size=len(PIECES),
  emb_dim=16,
  num_heads=2,
  mlp_dim=24,
  num_layers=3,
  max_positions=24,
  dropout_rate=0.1,
)


def random_params(shapes, seed=0, spread=0.3):
  """Weights around 0, scales around 1; none is what it is initialised to."""
  rng = np.random.default_rng(seed)
  return jax.tree_util.tree_map_with_path(
    lambda path, x: (
      (path[-1].key == 'scale') + spread * rng.normal(size=x.shape)
    ).astype(np.float32),
    shapes,
  )


def make(
  folder: pathlib.Path, config=CONFIG, seed=0, spread=0.3
) -> pathlib.Path:
  """Writes a Hugging Face folder with random weights and a WordPiece list."""
  params = random_params(param_shapes(bert.init_params, config), seed, spread)
  folder.mkdir(parents=True, exist_ok=True)
  encoders.write_folder(
    folder,
    encoders.settings_from_config(config),
    encoders.write_named(encoders.parameter_names(config), params),
    'float32',
  )
  (folder / 'vocab.txt').write_text('\n'.join(PIECES) + '\n')
  settings = {'do_lower_case': True, 'tokenizer_class': 'BertTokenizer'}
  (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
  return folder


def numpy_states(params, config, ids, types=None) -> np.ndarray:
  """Hidden states of one text, float64 [layers + 1, tokens, emb_dim]."""
  e = params['embeddings']
  count = len(ids)
  types = np.zeros(count, int) if types is None else np.asarray(types)
  places = np.arange(count) + config.position_offset
  x = e['word'][ids].astype(np.float64)
  x = x + e['position'][places] + e['type'][types]
  x = _norm(x, e['norm'], config)
  states = [x]
  for n in range(config.num_layers):
    p = params[f'layers_{n}']
    x = _norm(
      x + _attend(x, p['attention'], config), p['attention_norm'], config
    )
    y = _dense(x, p['wi'])
    y = y * 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
    x = _norm(x + _dense(y, p['wo']), p['mlp_norm'], config)
    states.append(x)
  return np.stack(states)


def _dense(x, p):
  return x @ p['kernel'].astype(np.float64) + p['bias']


def _norm(x, p, config):
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_epsilon)
  return x * p['scale'] + p['bias']


def _attend(x, p, config):
  width = config.emb_dim // config.num_heads
  q, k, v = (_dense(x, p[name]) for name in ('query', 'key', 'value'))
  heads = []
  for h in range(config.num_heads):
    part = slice(h * width, (h + 1) * width)
    logits = q[:, part] @ k[:, part].T / math.sqrt(width)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    heads.append(weights @ v[:, part])
  return _dense(np.concatenate(heads, -1), p['out'])
