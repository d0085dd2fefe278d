"""Minimum Bayes risk decoding with COMET beside mbrs and comet-mbr.

64 candidates per segment, each text encoded once by all; weights are random,
of XLM-R's kind. comet-mbr leaves a candidate out of its own references, so that
its scores are others (a test compares them).
"""

import texts

from comparisons import comet

TITLE = 'MBR with COMET (6 x 384), 64 candidates'
UNIT = 'segments'
OURS = {'here': 'ours'}
PEERS = {'mbrs': 'mbrs', 'comet-mbr': 'comet_mbr'}
TOLERANCE = 1e-4
MEASURE = 'seconds'


def prepare(folder, size):
  """A checkpoint in COMET's layout, and candidates of made-up sources."""
  segments, candidates = (2, 4) if size['quick'] else (2, 64)
  job = comet.made(folder, size, texts.wmt(segments, candidates))
  outputs = job.pop('outputs')
  del job['flops'], job['references']
  return {
    **job,
    'items': segments,
    'groups': [list(group) for group in zip(*outputs, strict=True)],
  }


def ours(job):
  """All expected utilities."""
  from t5score_jax.metrics import registry

  metric = registry.load_metric('comes', model=job['model'])
  return expected(metric, job['groups'], job['sources'])


def expected(metric, groups, sources):
  """Runs the expected utilities of all candidates, in their order."""
  from t5score_jax.mbr import decoding
  from t5score_jax.mbr.candidates import Item

  items = [
    Item(tuple(group), source)
    for group, source in zip(groups, sources, strict=True)
  ]
  options = decoding.Options(top=max(map(len, groups)))

  def run():
    chosen, _ = decoding.decode(metric, items, options)
    scores = []
    for group, choices in zip(groups, chosen, strict=True):
      of_text = {choice.text: choice.score for choice in choices}
      scores += [of_text[text] for text in group]
    return {'scores': scores}

  return run


def mbrs(job):
  """Its decoder, a segment at a time, as it works."""
  import mbrs.metrics.comet
  from mbrs.metrics import MetricCOMET

  mbrs.metrics.comet.download_model = lambda path: path
  return decoded(
    MetricCOMET(
      MetricCOMET.Config(
        model=f'{job["model"]}/checkpoints/model.ckpt',
        cpu=job['platform'] != 'gpu',
      )
    ),
    job['groups'],
    job['sources'],
  )


def decoded(metric, groups, sources):
  """Runs mbrs's expected utilities of all candidates, in their order."""
  import torch
  from mbrs.decoders import DecoderMBR

  decoder = DecoderMBR(DecoderMBR.Config(), metric)

  @torch.inference_mode()
  def run():
    scores = []
    for group, source in zip(groups, sources, strict=True):
      out = decoder.decode(group, group, source, nbest=len(group))
      found = dict(zip(out.idx, map(float, out.score), strict=True))
      scores += [found[n] for n in range(len(group))]
    return {'scores': scores}

  return run


def comet_mbr(job):
  """The functions of its command, in float32."""
  import torch
  from comet import load_from_checkpoint
  from comet.cli import mbr

  model = load_from_checkpoint(f'{job["model"]}/checkpoints/model.ckpt').eval()
  if job['platform'] == 'gpu':
    model.cuda()
  every = [text for group in job['groups'] for text in group]

  @torch.inference_mode()
  def run():
    source, vectors = mbr.build_embeddings(job['sources'], every, model, 32)
    vectors = vectors.reshape(len(job['sources']), -1, vectors.shape[-1])
    mbr.mbr_decoding(source, vectors, model)
    return {}

  return run
