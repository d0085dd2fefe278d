"""Minimum Bayes risk decoding with chrF beside mbrs.

64 candidates per segment. mbrs counts with sacrebleu in as many processes as
there are cores, or with fastchrf, written in Rust.
"""

import os

import texts

from comparisons import mbr_comet

TITLE = 'MBR with chrF, 64 candidates'
UNIT = 'segments'
OURS = {'here': 'ours'}
PEERS = {'mbrs, fastchrf': 'fast', 'mbrs': 'plain'}
TOLERANCE = 1e-3
MEASURE = 'seconds'


def prepare(folder, size):
  """Candidates of made-up segments."""
  segments, candidates = (2, 4) if size['quick'] else (8, 64)
  found = texts.wmt(segments, candidates)
  return {
    'items': segments,
    'texts': found.origin,
    'groups': [list(group) for group in zip(*found.outputs, strict=True)],
    **size,
  }


def ours(job):
  """All expected utilities."""
  from t5score_jax.metrics import registry

  metric = registry.load_metric('chrf')
  return mbr_comet.expected(metric, job['groups'], [None] * len(job['groups']))


def fast(job):
  """With the package fastchrf."""
  return _mbrs(job, fastchrf=True)


def plain(job):
  """With sacrebleu."""
  return _mbrs(job, fastchrf=False)


def _mbrs(job, fastchrf):
  from mbrs.metrics import MetricChrF

  config = MetricChrF.Config(
    fastchrf=fastchrf, num_workers=len(os.sched_getaffinity(0))
  )
  return mbr_comet.decoded(
    MetricChrF(config), job['groups'], [None] * len(job['groups'])
  )
