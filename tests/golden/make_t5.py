"""Makes `t5_*.npz`: tiny random T5s and what transformers computes of them.

    python tests/golden/make_t5.py

Needs the parity extra; `tests/nn/test_t5_golden.py` reads the files without
it. A
file holds the network's shape (`config`, JSON), its weights under T5X's names
as bytes (multiples of `weight_step`), `inputs`, `targets` and float32
outputs: `log_probs` of all tokens, `scores`, and of every `stride`-th
position `encoded` and `logits`.
"""

import dataclasses
import json
import pathlib
import sys

import numpy as np
from flax.traverse_util import flatten_dict

FOLDER = pathlib.Path(__file__).resolve().parent
_STRIDE = 29


def path(name: str) -> pathlib.Path:
  """The file of a case of `hf_t5.CASES`."""
  return FOLDER / f't5_{name}.npz'


def make(name: str) -> dict[str, np.ndarray]:
  """The arrays of a case's file."""
  from tests.parity import hf_t5

  case = hf_t5.CASES[name]
  model = case.make()
  hf_t5.randomize(model, seed=1)
  batch = hf_t5.batch(case, seed=2)
  weights = {}
  params = hf_t5.to_t5x(model, case.config)
  for key, value in sorted(flatten_dict(params, sep='/').items()):
    steps = (value / hf_t5.WEIGHT_STEP).astype(np.int8)
    np.testing.assert_array_equal(steps * hf_t5.WEIGHT_STEP, value)
    weights[f'params/{key}'] = steps
  made = hf_t5.outputs(model, **batch)
  stride = min(_STRIDE, case.target_length // 2 - 1)
  for key in ('encoded', 'logits'):
    made[key] = made[key][:, ::stride]
  return {
    'config': np.array(json.dumps(dataclasses.asdict(case.config))),
    'weight_step': np.array(hf_t5.WEIGHT_STEP),
    'stride': np.array(stride),
    **weights,
    **batch,
    **{key: value.astype(np.float32) for key, value in made.items()},
  }


def main() -> None:
  """Writes the files of all cases beside this one."""
  sys.path.insert(0, str(FOLDER.parent))
  from tests.parity import hf_t5

  for name in hf_t5.CASES:
    np.savez_compressed(path(name), **make(name))
    print(f'{path(name).name}: {path(name).stat().st_size:,} bytes')


if __name__ == '__main__':
  main()
