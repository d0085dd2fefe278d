r"""Times a step of COMES's frozen phase with and without cached vectors.

    python benchmarks/comes.py WORK summeval.jsonl.gz --batch_size 64

WORK is that of a `t5score crossvalidate` of these records with
runs/comes_head.gin. Both ways train the same head on the same batches of fold
1; without cached vectors every step runs the frozen encoder on the texts of its
batch, without its gradient. Prints seconds per step.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import sys
import tempfile
import time
from typing import Any

import jax


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description='Times steps with and without cached vectors.'
  )
  result.add_argument(
    'work', type=pathlib.Path, help='the work folder of crossvalidate'
  )
  result.add_argument('records', help='the --input of crossvalidate')
  result.add_argument(
    '--batch_size',
    type=int,
    default=40,
    help='instances a step (default: %(default)s)',
  )
  result.add_argument(
    '--steps', type=int, default=200, help='steps timed with vectors'
  )
  result.add_argument(
    '--slow_steps', type=int, default=3, help='steps timed without vectors'
  )
  return result


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  from t5score_jax.checkpoints import regressors
  from t5score_jax.data import instances, records
  from t5score_jax.fitting import text_cache
  from t5score_jax.inputs import texts
  from t5score_jax.models import regression

  model = regressors.load(args.work / 'fold_1' / 'model')
  reference = model.config.reference
  names = instances.Texts()
  segments = instances.averaged(records.read_records(args.records))
  instances.build(segments, (), names, reference)
  arrays = args.work / 'fold_1' / 'train'
  head = {k: v for k, v in model.params.items() if k != 'encoder'}
  with tempfile.TemporaryDirectory() as folder:
    wanted = text_cache.Encoding(
      model.config, '', max_length=model.settings.get('max_length')
    )
    tokens = text_cache.table(
      pathlib.Path(folder) / 'tokens', names, wanted, model
    )
    fast = _seconds(
      regression.HeadModel(model.config),
      head,
      texts.TextsDataset(
        arrays, args.work / 'texts', args.batch_size, 'vectors'
      ),
      args.steps,
    )
    print(f'cached vectors: {fast:.4f} s a step of {args.batch_size}')
    slow = _seconds(
      regression.RegressorModel(model.config),
      model.params,
      texts.TextsDataset(arrays, tokens.folder, args.batch_size, 'tokens'),
      args.slow_steps,
    )
  print(f'encoder each step: {slow:.4f} s, {slow / fast:.0f} times as long')
  print(f'{tokens.texts} distinct texts, {tokens.cut} cut')
  return 0


def _seconds(model: Any, params: Any, dataset: Any, steps: int) -> float:
  """The mean time of a step without compilation."""
  from t5score_jax.training import optimizers, partitioning
  from t5score_jax.training import state as states

  frozen: dict[str, int] = {}
  if 'encoder' in params:
    frozen = {'^encoder/': optimizers.ALWAYS}
  optimizer = optimizers.adamw(optimizers.constant(1e-4), frozen=frozen)
  partitioner = partitioning.Partitioner()
  plan = states.plan(model, optimizer, partitioner)
  placed = jax.device_put(params, plan.shardings.params)
  state = plan.create(placed)
  step = states.make_step(model, optimizer, partitioner, plan, seed=0)
  begin = 0.0
  for n, batch in enumerate(itertools.islice(dataset.batches(), steps + 1)):
    stacked = {key: value[None] for key, value in batch.items()}
    state, totals = step(state, partitioner.put_batch(stacked, leading=1))
    jax.block_until_ready(totals)
    if not n:
      begin = time.perf_counter()
  return (time.perf_counter() - begin) / steps


if __name__ == '__main__':
  sys.exit(main())
