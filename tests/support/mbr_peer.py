"""Runs mbrs and comet-mbr, in an environment of their own.

    PYTHON mbr_peer.py JOB.json RESULT.json

The job has a COMET `checkpoint`, `groups` of a source and its candidates (as
many in each), and the names of `programs`. The result has, for each program,
the expected utilities of all candidates (of pruning: the choices) and its
seconds without loading. mbrs is 0.1.8, unbabel-comet 2.2.
"""

import json
import pathlib
import sys
import time
import warnings

warnings.filterwarnings('ignore')

import torch  # noqa: E402
from comet import load_from_checkpoint  # noqa: E402
from comet.cli import mbr as comet_mbr  # noqa: E402
from mbrs import decoders, metrics  # noqa: E402
from mbrs.metrics import comet as mbrs_comet  # noqa: E402

mbrs_comet.download_model = lambda path: path


def with_comet_mbr(job):
  model = load_from_checkpoint(job['checkpoint']).eval()

  def run():
    sources = [group['source'] for group in job['groups']]
    texts = [text for g in job['groups'] for text in g['candidates']]
    source, texts = comet_mbr.build_embeddings(sources, texts, model, 32)
    texts = texts.reshape(len(sources), -1, texts.shape[-1])
    return comet_mbr.mbr_decoding(source, texts, model).tolist()

  return run


def with_mbrs(metric, kind, job):
  if metric == 'comet':
    config = metrics.MetricCOMET.Config(model=job['checkpoint'], cpu=True)
    utility = metrics.MetricCOMET(config)
  elif metric == 'bleu':
    options = {'effective_order': True, 'num_workers': 2}
    utility = metrics.MetricBLEU(metrics.MetricBLEU.Config(**options))
  else:
    options = {'num_workers': 2, 'fastchrf': metric == 'fastchrf'}
    utility = metrics.MetricChrF(metrics.MetricChrF.Config(**options))
  decoder = getattr(decoders, f'Decoder{kind}')
  decoder = decoder(decoder.Config(), utility)

  def run():
    found = []
    for group in job['groups']:
      texts = group['candidates']
      nbest = 1 if kind == 'PruningMBR' else len(texts)
      out = decoder.decode(texts, texts, group['source'], nbest=nbest)
      scores = dict(zip(out.idx, map(float, out.score), strict=True))
      if nbest == 1:
        found.append(list(scores.items())[0])
      else:
        found.append([scores[n] for n in range(len(texts))])
    return found

  return run


def main():
  job = json.loads(pathlib.Path(sys.argv[1]).read_text())
  if job.get('threads'):
    torch.set_num_threads(job['threads'])
  results = {}
  for name in job['programs']:
    if name == 'comet-mbr':
      run = with_comet_mbr(job)
    else:
      run = with_mbrs(*name.split(), job)
    with torch.no_grad():
      start = time.perf_counter()
      scores = run()
    results[name] = {'scores': scores, 'seconds': time.perf_counter() - start}
  pathlib.Path(sys.argv[2]).write_text(json.dumps(results))


main()
