"""Runs MetricX's and UniEval's programs, in an environment of their own.

    PYTHON first_step_peers.py JOBS.json

needs transformers 4, and google-research/metricx and maszhongming/UniEval on
PYTHONPATH. A job is {'metric', 'folder', 'tokenizer', 'make', 'texts',
'max_length'}: with 'make', the settings of a network, a random model is made
and saved in the folder as it is published, in torch's format if 'bin' is set.
Prints the predictions of all jobs as JSON.
"""

import json
import pathlib
import sys
import types

import torch
import transformers

# UniEval's module of questions prints tables, and needs a library for that.
sys.modules.setdefault('prettytable', types.ModuleType('prettytable'))
sys.modules['prettytable'].PrettyTable = None


def make(job, model_class, config_class):
  torch.manual_seed(0)
  model = model_class(config_class(**job['make']))
  with torch.no_grad():
    for weight in model.parameters():
      weight.normal_(0, 0.3 if job['metric'] == 'metricx' else 0.6)
    # Most predictions should lie inside the bounds.
    if job['metric'] == 'metricx':
      model.lm_head.weight[250089] *= 6
  stored = model.state_dict()
  if not job.get('bin'):
    # What safetensors refuses: the embedding under further names.
    stored = {k: v for k, v in stored.items() if 'embed_tokens' not in k}
    if model.config.tie_word_embeddings:
      del stored['lm_head.weight']
  model.save_pretrained(
    job['folder'],
    state_dict=stored,
    safe_serialization=not job.get('bin', False),
  )


def metricx(job):
  from metricx23 import predict as predict23
  from metricx24 import models, predict

  if job.get('make'):
    make(job, models.MT5ForRegression, transformers.MT5Config)
  tokenizer = transformers.AutoTokenizer.from_pretrained(job['tokenizer'])
  model = models.MT5ForRegression.from_pretrained(job['folder']).eval()
  module = {23: predict23, 24: predict}[job['version']]
  path = pathlib.Path(job['folder']).with_suffix('.jsonl')
  path.write_text('\n'.join(map(json.dumps, job['texts'])), 'utf-8')
  rows = module.get_dataset(
    str(path), tokenizer, job['max_length'], 'cpu', job['qe']
  )['test']
  with torch.no_grad():
    return [
      model(
        input_ids=row['input_ids'][None],
        attention_mask=row['attention_mask'][None],
        # Later releases of transformers 4 than the pinned one would put the
        # encoder's keys into the decoder's cache.
        use_cache=False,
      ).predictions.item()
      for row in rows
    ]


def unieval(job):
  import utils
  from metric import scorer

  if job.get('make'):
    make(job, transformers.T5ForConditionalGeneration, transformers.T5Config)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job['tokenizer'])
    tokenizer.save_pretrained(job['folder'])
  model = scorer.UniEvaluator(job['folder'], job['max_length'], 'cpu')
  texts = job['texts']
  inputs = utils.add_question(
    dimension=job['dimension'],
    task=job['task'],
    output=[t['hypothesis'] for t in texts],
    src=[t['source'] for t in texts],
    ref=[t['reference'] for t in texts],
    context=[t['reference'] for t in texts],
  )
  return model.score(inputs, batch_size=3)


class Rows(list):
  """What datasets.load_dataset gives, as far as predict.py uses it."""

  def map(self, change):
    return Rows(change(dict(row)) for row in self)


class Parts(dict):
  def map(self, change):
    return Parts({name: rows.map(change) for name, rows in self.items()})

  def set_format(self, **_):
    for rows in self.values():
      for row in rows:
        for name in ('input_ids', 'attention_mask'):
          row[name] = torch.tensor(row[name])


def load_dataset(kind, data_files):
  return Parts(
    {
      name: Rows(
        json.loads(line)
        for line in pathlib.Path(path).read_text('utf-8').split('\n')
      )
      for name, path in data_files.items()
    }
  )


def main():
  if 'datasets' not in sys.modules:
    sys.modules['datasets'] = types.ModuleType('datasets')
    sys.modules['datasets'].load_dataset = load_dataset
  jobs = json.loads(pathlib.Path(sys.argv[1]).read_text('utf-8'))
  run = {'metricx': metricx, 'unieval': unieval}
  results = [run[job['metric']](job) for job in jobs]
  print(json.dumps(results))


main()
