"""Tiny HuggingFace folders of random T5s, to be read, changed and damaged."""

import json
import pathlib

import numpy as np
import safetensors.numpy

from t5score_jax.checkpoints import layouts
from t5score_jax.checkpoints.formats.huggingface import checkpoint
from t5score_jax.checkpoints.source import Source
from t5score_jax.checkpoints.weights import LazyArray
from t5score_jax.data.vocab import ByteVocabulary
from t5score_jax.nn.t5 import T5Config

TINY = T5Config(
  vocab_size=384,
  emb_dim=6,
  num_heads=2,
  head_dim=4,
  mlp_dim=5,
  num_encoder_layers=2,
  num_decoder_layers=1,
)


def source(config: T5Config, vocabulary=None, seed=0, **changes) -> Source:
  rng = np.random.default_rng(seed)
  arrays = {
    name: LazyArray.of(rng.standard_normal(shape).astype(np.float32))
    for name, shape in layouts.parameter_shapes(config).items()
  }
  return Source(config, arrays, vocabulary or ByteVocabulary(), **changes)


def export(
  source: Source, folder: pathlib.Path, dtype='float32', shard=10**9
) -> pathlib.Path:
  folder.mkdir()
  checkpoint.write(source, folder, dtype=dtype, max_shard_bytes=shard)
  return folder


def edit(folder: pathlib.Path, file='config.json', **changes) -> None:
  """Changes a JSON file; None removes a key."""
  path = folder / file
  said = {**json.loads(path.read_text()), **changes}
  path.write_text(json.dumps({k: v for k, v in said.items() if v is not None}))


def tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
  return safetensors.numpy.load_file(folder / 'model.safetensors')


def replace(folder: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors')
