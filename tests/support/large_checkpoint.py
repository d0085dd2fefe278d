r"""Makes up a large T5X checkpoint, a block at a time, to convert.

    python tests/large_checkpoint.py FOLDER --vocab_size 250112 --layers 2 1

The default sizes are those of mT5-XXL, but for the number of layers: 10.7 GB.
Values are random: nothing compresses well. Not a test by itself;
`checkpoints/test_convert_memory.py` and `docs/checkpoints.md` use it.
"""

import argparse
import pathlib

import numpy as np

from t5score_jax.checkpoints import layouts, stores
from t5score_jax.checkpoints.weights import LazyArray
from t5score_jax.nn.t5 import T5Config


def _random(shape: tuple[int, ...], seed: int) -> LazyArray:
  """Normal numbers' magnitudes, made from bits: as fast as a disk."""

  def fetch(index):
    part = [one.stop - one.start for one in index]
    starts = [one.start for one in index]
    rng = np.random.default_rng([seed, *starts])
    bits = rng.integers(0, 1 << 23, part, np.uint32)
    # Sign and mantissa are random, the magnitude is about 1/16.
    bits |= (bits << 31) | np.uint32(0x3D800000)
    return bits.view(np.float32)

  return LazyArray(shape, np.dtype(np.float32), fetch, (1,) * len(shape))


def make(folder: pathlib.Path, config: T5Config) -> int:
  """Writes `checkpoint_1000` in T5X's Orbax layout; returns the bytes."""
  arrays = {
    f'target/{name}': _random(shape, seed)
    for seed, (name, shape) in enumerate(
      layouts.parameter_shapes(config).items()
    )
  }
  step = np.full((), 1000, np.int32)
  arrays['state/step'] = LazyArray.of(step)
  checkpoint = folder / 'checkpoint_1000'
  checkpoint.mkdir(parents=True)
  stores.write_state(checkpoint / 'state', arrays)
  return sum(array.nbytes for array in arrays.values())


def main() -> None:
  """Runs the program."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('folder', type=pathlib.Path)
  parser.add_argument('--vocab_size', type=int, default=250112)
  parser.add_argument('--emb_dim', type=int, default=4096)
  parser.add_argument('--num_heads', type=int, default=64)
  parser.add_argument('--mlp_dim', type=int, default=10240)
  parser.add_argument('--layers', type=int, nargs=2, default=(2, 1))
  parser.add_argument('--scan_layers', action='store_true')
  args = parser.parse_args()
  config = T5Config(
    vocab_size=args.vocab_size,
    emb_dim=args.emb_dim,
    num_heads=args.num_heads,
    head_dim=64,
    mlp_dim=args.mlp_dim,
    num_encoder_layers=args.layers[0],
    num_decoder_layers=args.layers[1],
    scan_layers=args.scan_layers,
  )
  print(f'{make(args.folder, config) / 1e9:.2f} GB in {args.folder}')


if __name__ == '__main__':
  main()
