"""A metric that waits until a test lets it go, and notes its batches."""

import threading

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.metrics import base


class Slow(base.Metric):
  """The length of a hypothesis; stops until it is let go."""

  name = 'slow'

  def __init__(self, independent=True):
    self.independent = independent
    self.go = threading.Event()
    self.entered = threading.Event()
    self.sizes = []

  def signature(self, **observed):
    return base.format_signature({'metric': self.name, **observed})

  def score_segments(self, segments):
    self.entered.set()
    assert self.go.wait(20)
    self.sizes.append(len(segments))
    if any(s.hypothesis == 'bad' for s in segments):
      raise InputError('a bad text')
    if any(s.hypothesis == 'fault' for s in segments):
      raise RuntimeError('fault')
    values = np.array([len(s.hypothesis) for s in segments], np.float32)
    return base.Scores(
      values,
      self.signature(),
      {'twice': 2 * values},
      truncated=sum(len(s.hypothesis) > 9 for s in segments),
    )
