"""Trains T5s of a few thousand parameters: FOLDER PARTITIONS STEPS KIND...

A program of its own, because the number of host devices is fixed when JAX
starts. Dropout, microbatches and the moving average are on. A KIND is
'generative', 'pair', 'group', or 'sharded': pairs as large networks train on
them, layers scanned and computed again, parameters divided over all devices,
Adafactor. Its run is in FOLDER/KIND.
"""

import dataclasses
import sys
from pathlib import Path

import fake_training
import numpy as np

from t5score_jax.data import vocab
from t5score_jax.inputs import datasets
from t5score_jax.models import t5score
from t5score_jax.nn import t5
from t5score_jax.training import loop, optimizers, partitioning


def config(**options):
  return t5.T5Config(
    vocab_size=384,
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=32,
    num_encoder_layers=1,
    num_decoder_layers=1,
    **options,
  )


def make_model(kind, network):
  return {
    'generative': t5score.GenerativeModel,
    'pair': t5score.PairModel,
    'group': t5score.GroupModel,
    'sharded': t5score.PairModel,
  }[kind](network)


def make_arrays(kind, examples=32):
  """A batch of a kind with everything that may occur in it: padding, ties."""
  generator = np.random.default_rng(0)

  def tokens(*shape):
    ids = generator.integers(3, 259, shape)
    ends = generator.integers(1, shape[-1], shape[:-1])[..., None]
    place = np.arange(shape[-1])
    return np.where(place < ends, ids, np.where(place == ends, 1, 0))

  if kind == 'group':
    sizes = generator.integers(1, 5, examples)
    return {
      'shared_tokens': tokens(examples, 7),
      'hypothesis_tokens': tokens(examples, 4, 6),
      'ratings': generator.integers(0, 4, (examples, 4)).astype(np.float32),
      'group_mask': (np.arange(4) < sizes[:, None]).astype(np.float32),
    }
  pairs = () if kind == 'generative' else (2,)
  arrays = {
    'encoder_input_tokens': tokens(examples, *pairs, 7),
    'decoder_target_tokens': tokens(examples, *pairs, 6),
  }
  if kind in ('pair', 'sharded'):
    worse = generator.normal(size=examples)
    gap = generator.exponential(size=examples)
    arrays['ratings'] = np.stack([worse + gap, worse], axis=1)
  return arrays


def train(folder, kind, partitions, steps):
  arrays = folder / 'arrays'
  arrays.mkdir(parents=True, exist_ok=True)
  for key, value in make_arrays(kind).items():
    np.save(arrays / f'{key}.npy', value)
  network, optimizer = config(dropout_rate=0.1), fake_training.adamw(0.003)
  if kind == 'sharded':
    network = dataclasses.replace(
      network, num_encoder_layers=2, scan_layers=True, remat='full'
    )
    optimizer = optimizers.adafactor(
      optimizers.constant(0.01), min_dim_size_to_factor=8
    )
  result = loop.train(
    model=make_model(kind, network),
    model_dir=str(folder / 'run'),
    dataset=datasets.ArrayDataset(arrays, batch_size=8),
    optimizer=optimizer,
    train_steps=steps,
    intervals=loop.Intervals(log_every=1),
    partitioner=partitioning.Partitioner(
      partitions, fully_sharded=kind == 'sharded'
    ),
    microbatches=2,
    ema_decay=0.9,
    vocabulary=vocab.ByteVocabulary(),
  )
  assert result.reason == 'finished'


def main():
  folder = Path(sys.argv[1])
  partitions, steps = map(int, sys.argv[2:4])
  for kind in sys.argv[4:]:
    train(folder / kind, kind, partitions, steps)


if __name__ == '__main__':
  main()
