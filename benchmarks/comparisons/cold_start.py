"""A new process to its first scores, ten sentences: what a user waits for.

Compiled bytecode is kept by both sides, as an installation does.
"""

import os
import pathlib
import resource
import subprocess
import sys
import time

import texts

TITLE = 'Cold start, ten sentences'
UNIT = 'starts'
OURS = {
  'here, frugalscore-tiny': 'ours',
  'here, nothing cached': 'uncached',
  'here, t5score-tiny': 'default',
  'here, t5score-tiny, nothing cached': 'default_uncached',
  'here, chrF': 'chrf',
}
PEERS = {'transformers, frugalscore-tiny': 'peer'}
TOLERANCE = 1e-4
MEASURE = 'seconds'
# On an idle machine.
WITHIN = {'here, frugalscore-tiny': 3, 'here, t5score-tiny': 3}
SHORT = (
  'a start takes 2 to 2.4 s of one core, so that a busy machine is what is '
  'measured; 0.9 s of them import JAX and Flax, 0.5 trace and lower three '
  'programs, 0.2 read them back; next: keep executables, and trace nothing'
)

_UNCACHED = {'T5SCORE_COMPILATION_CACHE': 'off'}

_PEER = """
import sys, torch, transformers
model, hypotheses, references = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(model)
network = transformers.AutoModelForSequenceClassification.from_pretrained(
  model, torch_dtype=torch.float32).eval()
read = lambda path: open(path, encoding='utf-8').read().splitlines()
batch = tokenizer(read(hypotheses), read(references), truncation=True,
  max_length=192, padding=True, return_tensors='pt')
with torch.inference_mode():
  print(*network(**batch).logits[:, 0].tolist(), sep='\\n')
"""


def prepare(folder, size):
  """Two files of ten lines."""
  from t5score_jax.checkpoints import kinds

  found = texts.wmt(10, 1, size['data'])
  folder = pathlib.Path(folder)
  job = {
    'items': 1,
    'texts': found.origin,
    'model': str(kinds.folder('frugalscore-tiny')),
    **size,
  }
  hypotheses, references = found.pairs()
  for name, lines in (
    ('hypotheses', hypotheses),
    ('references', references),
  ):
    path = folder / f'{name}.txt'
    path.write_text('\n'.join(lines) + '\n', 'utf-8')
    job[name] = str(path)
  return job


def ours(job, model='frugalscore-tiny', environment=None, scored=True):
  """The command line, with the programs that an earlier start compiled."""
  command = [sys.executable, '-m', 't5score_jax.cli', 'score', '-m', model]
  command += ['-r', job['references'], '-t', job['hypotheses']]
  command += ['--format', 'tsv']
  return lambda: _run(command, environment or {}, scored)


def uncached(job):
  """The same where every program is compiled."""
  return ours(job, environment=_UNCACHED)


def default(job):
  """The metric that is scored with by default."""
  return ours(job, 't5score-tiny', scored=False)


def default_uncached(job):
  """The same where every program is compiled."""
  return ours(job, 't5score-tiny', _UNCACHED, scored=False)


def chrf(job):
  """A metric without a network."""
  return ours(job, 'chrf', scored=False)


def peer(job):
  """The shortest program with transformers."""
  files = [job['model'], job['hypotheses'], job['references']]
  return lambda: _run([sys.executable, '-c', _PEER, *files], {}, True)


def _run(command, environment, scored):
  # Where a variable forbids bytecode every start would compile this library.
  environment = {**os.environ, **environment}
  environment.pop('PYTHONDONTWRITEBYTECODE', None)
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  start = time.perf_counter()
  done = subprocess.run(
    command,
    check=True,
    stdout=subprocess.PIPE,
    text=True,
    env=environment,
  )
  seconds = time.perf_counter() - start
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  result = {
    'seconds': seconds,
    'cpu': after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    'memory': after.ru_maxrss * 1024,
  }
  if scored:
    result['scores'] = _numbers(done.stdout)
  return result


def _numbers(text):
  """The last column of the lines that end in a number."""
  numbers = []
  for row in text.splitlines():
    try:
      numbers.append(float(row.split('\t')[-1]))
    except ValueError:
      continue
  return numbers
