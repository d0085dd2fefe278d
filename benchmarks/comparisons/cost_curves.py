"""How the cost of scoring grows with length, batch and vocabulary.

A T5 of random weights (2 + 2 layers, width 128). Each row changes one thing of
64 tokens a text, 2,048 tokens a batch and 32,128 ids; compilation is not in it.
"""

import time

import numpy as np

TITLE = 'Cost of scoring, T5 (2 + 2 x 128)'
UNIT = 'points'
OURS = {'here': 'ours'}
PEERS = {}
TOLERANCE = 0.0
MEASURE = 'seconds'
ROUNDS = 1
_USUAL = {'tokens of a text': 64, 'tokens of a batch': 2048, 'ids': 32128}
_VARIED = {
  'tokens of a text': (16, 256, 1024),
  'tokens of a batch': (512, 8192),
  'ids': (4096, 131072),
}
_TOKENS = 8192


def prepare(folder, size):
  """The points, the usual one first."""
  points = [_USUAL] + [
    {**_USUAL, name: value}
    for name, values in _VARIED.items()
    for value in values
  ]
  if size['quick']:
    points = points[:2]
  return {'items': len(points), 'points': points, **size}


def ours(job):
  """Batches of pairs of random ids, a length after the other."""
  import jax

  from t5score_jax.checkpoints.bundle import Bundle
  from t5score_jax.data import vocab
  from t5score_jax.inference import scoring
  from t5score_jax.nn import t5

  draw = np.random.default_rng(0)
  scorers = {}

  def scorer(point):
    config = t5.T5Config(
      vocab_size=point['ids'],
      emb_dim=128,
      num_heads=2,
      mlp_dim=256,
      num_encoder_layers=2,
      num_decoder_layers=2,
    )
    params = t5.init_params(config, jax.random.key(0))
    bundle = Bundle(config, params, vocab.ByteVocabulary(), {})
    batch = point['tokens of a batch']
    return scoring.Scorer(bundle, max_length=1024, batch_tokens=batch)

  def run():
    table = []
    for number, point in enumerate(job['points']):
      if number not in scorers:
        scorers[number] = scorer(point)
      length = point['tokens of a text']
      ids = draw.integers(3, 380, (2, _TOKENS // length, length))
      ids[..., -1] = 1
      pairs = [
        tuple(map(tuple, pair)) for pair in zip(*ids.tolist(), strict=True)
      ]
      wall, cpu = time.perf_counter(), time.process_time()
      scorers[number].scores(pairs)
      wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
      each = 1e6 / _TOKENS
      row = [*point.values(), f'{len(pairs) / wall:.3g}']
      table.append([*row, f'{wall * each:.3g}', f'{cpu * each:.3g}'])
    columns = [*_USUAL, 'pairs/s', 'ms per 1,000 tokens', 'CPU ms']
    return {'table': {'columns': columns, 'rows': table}}

  return run
