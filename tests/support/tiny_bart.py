"""A tiny random BART in a folder, with a byte-level tokenizer."""

import pathlib

import jax
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from t5score_jax.checkpoints.formats.huggingface import bart
from t5score_jax.data import subwords
from t5score_jax.nn import bart as network
from t5score_jax.nn.shapes import param_shapes

SPECIAL = ['<s>', '<pad>', '</s>', '<unk>']
TEXTS = ['the cat sat on the mat .', 'a small green bird ran over the hill']


def tokenizer() -> tokenizers.Tokenizer:
  """A byte-level BPE as BART's."""
  made = tokenizers.Tokenizer(models.BPE())
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=290,
    special_tokens=SPECIAL,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  made.train_from_iterator(TEXTS * 9, trainer)
  made.post_processor = processors.RobertaProcessing(
    ('</s>', 2), ('<s>', 0), add_prefix_space=False
  )
  return made


def make(folder: pathlib.Path, seed=0, **changes) -> pathlib.Path:
  """Writes a Hugging Face folder with random weights."""
  folder.mkdir(parents=True, exist_ok=True)
  pieces = tokenizer()
  shape = network.BartConfig(
    **{
      'vocab_size': pieces.get_vocab_size() + 3,
      'emb_dim': 16,
      'num_heads': 2,
      'mlp_dim': 24,
      'num_layers': 2,
      'num_decoder_layers': 1,
      'max_positions': 42,
      **changes,
    }
  )
  shapes = param_shapes(network.init_params, shape)
  rng = np.random.default_rng(seed)
  params = jax.tree.map(
    lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes
  )
  pieces.save(str(folder / subwords.TOKENIZER_FILE))
  read = subwords.load_tokenizer(folder)
  bart.save(bart.BartBundle(shape, params, read, ''), folder)
  return folder
