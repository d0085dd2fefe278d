"""Models of ours, exported for transformers to load."""

import io
import pathlib

import jax
import numpy as np
import sentencepiece
from t5_outputs import random_params

from t5score_jax.checkpoints import bundle, convert
from t5score_jax.checkpoints.source import Source
from t5score_jax.checkpoints.weights import LazyArray
from t5score_jax.nn.t5 import T5Config
from tests.conftest import made_up_text

SHAPE = T5Config(
  vocab_size=384,
  emb_dim=24,
  num_heads=3,
  head_dim=8,
  mlp_dim=32,
  num_encoder_layers=2,
  num_decoder_layers=2,
)


def source(config: T5Config, vocabulary, **values) -> Source:
  """Random weights of a network."""
  params = jax.tree.map(np.asarray, random_params(config, seed=7))
  arrays = {n: LazyArray.of(a) for n, a in bundle.flatten_names(params)}
  return Source(config, arrays, vocabulary, **values)


def export(source: Source, folder: pathlib.Path, **options) -> pathlib.Path:
  """Writes a HuggingFace folder."""
  convert.write(source, folder, 'hf', **options)
  return folder


def trained(**changes) -> bytes:
  """A SentencePiece model of 48 unigram pieces, or as asked for."""
  model = io.BytesIO()
  values = {'vocab_size': 48, 'pad_id': 0, 'eos_id': 1, 'unk_id': 2}
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(made_up_text()),
    model_writer=model,
    bos_id=-1,
    minloglevel=2,
    num_threads=1,
    **{**values, **changes},
  )
  return model.getvalue()
