"""A made-up corpus that people rated, and gin files of toy estimators."""

import numpy as np
import tiny_encoder

from t5score_jax.data import records

SYSTEMS = {'good': 5.0, 'fair': 3.5, 'poor': 1.5}
_GIN = """
from __gin__ import dynamic_registration
from t5score_jax.nn import bert
include 'models/regressor.gin'
include 'runs/{run}.gin'
ENCODER = @bert.BertConfig()
NUM_LAYERS = {config.num_layers}
bert.BertConfig:
  vocab_size = {config.vocab_size}
  emb_dim = {config.emb_dim}
  num_heads = {config.num_heads}
  mlp_dim = {config.mlp_dim}
  num_layers = %NUM_LAYERS
  max_positions = {config.max_positions}
HIDDEN_SIZES = (6,)
OUTPUTS = ('coherence', 'fluency')
ENCODER_PATH = '{path}'
LEARNING_RATE = 1e-2
BATCH_SIZE = 8
EPOCHS = 2
STEPS_PER_CALL = 2
NAME = 'toy'
"""


def write_gin(folder, encoder):
  """Writes comes.gin and comes_head.gin for the tiny encoder."""
  for run in ('comes', 'comes_head'):
    text = _GIN.format(run=run, config=tiny_encoder.CONFIG, path=encoder)
    (folder / f'{run}.gin').write_text(text)


def _text(rng, count):
  return ' '.join(rng.choice(tiny_encoder.WORDS[:14], count))


def segments(documents='abcdef', seed=0):
  """Two experts an output, two references, some dimensions not rated."""
  rng = np.random.default_rng(seed)
  found = []
  for document in documents:
    # Some articles are longer than the encoder's 24 positions.
    source = _text(rng, 40 if document < 'c' else 12)
    references = tuple(_text(rng, 7) for _ in range(2))
    for system, quality in SYSTEMS.items():
      hypothesis = _text(rng, 6)
      for expert in range(2):
        ratings = {
          'coherence': quality + rng.normal() / 3,
          'fluency': 6 - quality + rng.normal() / 3,
        }
        if expert and document == 'd':
          del ratings['fluency']
        found.append(
          records.Segment(
            hypothesis,
            source,
            references,
            system,
            document,
            document,
            ratings=ratings,
          )
        )
  return found
