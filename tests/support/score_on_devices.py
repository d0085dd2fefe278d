"""Scores with the encoder metrics: FOLDER, or FOLDER PORT INDEX as one of two.

A program of its own, because processes and host devices are fixed when JAX
starts. Reads FOLDER/texts.json and the models beside it, leaves
FOLDER/found-INDEX.json.
"""

import argparse
import json
import sys
from pathlib import Path

import jax

from t5score_jax.inference import balance
from t5score_jax.metrics import registry
from t5score_jax.runtime import processes

METRICS = {
  'bertscore': {'model': 'encoder', 'idf': 'references'},
  'moverscore': {'model': 'encoder'},
  'comes': {
    'model': 'estimator',
    'max_length': 9,
    'windows': True,
    'stride': 2,
  },
  'frugalscore': {'model': 'miniature'},
  'xcomet': {'model': 'xcomet'},
  'lm': {'model': 'gpt2'},
  'lm-t5': {'model': 'bundle', 'max_length': 9},
}


def metric_of(name):
  return name.partition('-')[0]


def _kernel(metric):
  """A matrix [16, 24] that partitions share by columns."""
  if metric.name == 'LM':
    scorer = metric._language_model._scorer
    if hasattr(scorer, '_scorer'):
      decoder = scorer._scorer.params['decoder']
      return decoder['layers_0']['mlp']['wi_0']['kernel']
  else:
    scorer = getattr(metric, '_encoder', None) or metric._scorer
  params = scorer._params.get('encoder', scorer._params)
  return params['layers_0']['wi']['kernel']


def work(folder, index, partitions):
  texts = json.loads((folder / 'texts.json').read_text())
  gather = balance.gather
  sent = []

  def counted(data):
    sent.append(len(data))
    return gather(data)

  balance.gather = counted
  found = {'devices': [jax.process_count(), jax.local_device_count()]}
  for name, options in METRICS.items():
    options = {**options, 'model': folder / options['model']}
    for count in partitions:
      metric = registry.load_metric(
        metric_of(name),
        **options,
        num_partitions=count,
        spread=True,
        batch_tokens=48,
      )
      kernel = _kernel(metric)
      scores = metric.score(*texts)
      found[f'{name}-{count}'] = {
        'scores': scores.values.tolist(),
        'signature': scores.signature,
        'truncated': [scores.truncated, scores.texts],
        'shard': kernel.addressable_shards[0].data.shape,
      }
  found['sent'] = sent
  if jax.process_count() > 1:
    found['differ'] = {}
    for name in METRICS:
      options = {**METRICS[name], 'model': folder / METRICS[name]['model']}
      metric = registry.load_metric(metric_of(name), **options, spread=True)
      try:
        metric.score(*(side[index:] for side in texts))
      except processes.ProcessError as error:
        found['differ'][name] = str(error)
  (folder / f'found-{index}.json').write_text(json.dumps(found))
  return 0


def main(folder, port=None, index='0'):
  folder = Path(folder)
  if port is None:
    return work(folder, 0, (1, 2))
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
    'score', args, lambda: work(folder, int(index), (1, 2))
  )


if __name__ == '__main__':
  sys.exit(main(*sys.argv[1:]))
