"""Scores and writes as one of two processes: MODEL FOLDER PORT INDEX.

A program of its own, because processes and host devices are fixed when JAX
starts. Reads FOLDER/texts.json, leaves FOLDER/found-INDEX.json. With a fifth
argument, process 1 dies by a signal while process 0 waits for its scores.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import jax

from t5score_jax.checkpoints.bundle import load_bundle
from t5score_jax.inference import balance, bulk, generation, scoring, shards
from t5score_jax.inference.search import Method
from t5score_jax.runtime import processes


def work(model, folder, index, dies):
  bundle = load_bundle(model)
  texts = json.loads((folder / 'texts.json').read_text())
  pairs = [tuple(pair) for pair in texts['pairs']]
  gather = balance.gather
  if dies:

    def gone(data):
      if index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
      return gather(data)

    balance.gather = gone
  sizes = []

  def counted(data):
    sizes.append(len(data))
    return gather(data)

  if not dies:
    balance.gather = counted
  scorer = scoring.Scorer(bundle, spread=True)
  whole = scorer.score_pairs(pairs, token_log_probs=True)
  parts = scoring.Scorer(bundle, num_partitions=2, spread=True)
  kernel = parts.params['encoder']['layers_0']['mlp']['wo']['kernel']
  method = Method(max_tokens=5, beams=2, outputs=2)
  generator = generation.Generator(bundle, method, spread=True)
  options = bulk.Options('score')
  shards.run(
    bulk.from_files(str(folder / 'inputs.txt'), str(folder / 'targets.txt')),
    bulk.work(bundle, options),
    folder / 'out.jsonl',
    {},
    shard_size=16,
  )
  found = {
    'devices': [jax.process_count(), jax.local_device_count()],
    'sent': sizes[0],
    'scores': whole.values.tolist(),
    'lengths': whole.lengths.tolist(),
    'tokens': [t.tolist() for t in whole.token_log_probs],
    'truncated': whole.truncated,
    'partitioned': parts.scores(pairs).tolist(),
    'shard': kernel.addressable_shards[0].data.shape,
    'written': [
      [(o.text, o.log_prob) for o in some]
      for some in generator.generate([a for a, _ in pairs[:8]]).outputs
    ],
  }
  found['programs'] = [p.as_text() for p in generator.programs.values()]
  try:
    scorer.scores(pairs[index:])
  except processes.ProcessError as error:
    found['differ'] = str(error)
  (folder / f'found-{index}.json').write_text(json.dumps(found))
  return 0


def main(model, folder, port, index, *dies):
  parser = argparse.ArgumentParser()
  processes.add_arguments(parser)
  args = parser.parse_args(
    [
      f'--coordinator_address=127.0.0.1:{port}',
      '--process_count=2',
      f'--process_index={index}',
    ]
  )
  return processes.together(
    'infer', args, lambda: work(model, Path(folder), int(index), bool(dies))
  )


if __name__ == '__main__':
  sys.exit(main(*sys.argv[1:]))
