"""What computing with a T5 network costs, for planning batches.

A rough estimate is enough: it only decides between a little more padding and
one more program. The constants were measured on two cores of a server.
"""

from __future__ import annotations

from t5score_jax.inference import buckets, placement
from t5score_jax.nn.t5 import T5Config


def estimate(config: T5Config, platform: str) -> buckets.Costs:
  """Estimates the seconds that computing and compiling take.

  Args:
    config: The shape of the network.
    platform: JAX's name of the devices, such as 'cpu'.
  """
  joined = config.num_heads * config.head_dim
  attention = 4 * config.emb_dim * joined
  mlp = (len(config.mlp_activations) + 1) * config.emb_dim * config.mlp_dim
  encoder = config.num_encoder_layers * (attention + mlp)
  decoder = config.num_decoder_layers * (2 * attention + mlp)
  vocabulary = config.emb_dim * config.vocab_size
  on_cpu = platform == 'cpu'
  if not on_cpu:
    # On a CPU padding is never multiplied by the vocabulary.
    decoder += vocabulary
  # Multiplications and additions per second.
  rate = 3e10 * min(placement.cores(), 8) if on_cpu else 1.5e13
  depths = [config.num_encoder_layers, config.num_decoder_layers]
  if config.scan_layers:
    depths = [1, 1]
  slower = 1.0 if on_cpu else 3.0
  return buckets.Costs(
    encoder_token=encoder / rate,
    decoder_token=decoder / rate,
    encoder=slower * (0.15 + 0.09 * depths[0]),
    decoder=slower * (0.2 + (0.12 if on_cpu else 0.2) * depths[1]),
    vocabulary_token=vocabulary / rate,
    vocabulary=0.5,
  )
