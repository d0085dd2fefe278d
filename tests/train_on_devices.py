"""Trains a T5 of a few thousand parameters: FOLDER PARTITIONS STEPS.

A program of its own, because the number of host devices is fixed when JAX
starts. Dropout, microbatches and the moving average are on.
"""

import sys
from pathlib import Path

import fake_training
import numpy as np

from t5score_jax import models
from t5score_jax.data import vocab
from t5score_jax.nn import t5
from t5score_jax.training import inputs, loop, partitioning


def main():
  folder, partitions, steps = Path(sys.argv[1]), *map(int, sys.argv[2:])
  config = t5.T5Config(
    vocab_size=384,
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=32,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout_rate=0.1,
  )
  tokens = np.random.default_rng(0).integers(2, 259, (32, 6))
  arrays = folder / 'arrays'
  arrays.mkdir(parents=True, exist_ok=True)
  np.save(arrays / 'encoder_input_tokens.npy', tokens)
  np.save(arrays / 'decoder_target_tokens.npy', tokens[:, ::-1])
  partitioner = partitioning.Partitioner(partitions)
  outcome = loop.train(
    model=models.GenerativeModel(config),
    model_dir=str(folder / 'run'),
    dataset=inputs.ArrayDataset(arrays, batch_size=8),
    optimizer=fake_training.adamw(0.003),
    train_steps=steps,
    cadence=loop.Cadence(log_every=1),
    partitioner=partitioner,
    microbatches=2,
    ema_decay=0.9,
    vocabulary=vocab.ByteVocabulary(),
  )
  assert outcome.reason == 'finished'
  print((folder / 'run' / 'model-info.txt').read_text())


if __name__ == '__main__':
  main()
