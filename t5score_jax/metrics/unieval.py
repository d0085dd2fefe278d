"""UniEval: a T5 that answers questions about quality with yes or no.

A dimension's score is P(Yes) / (P(Yes) + P(No)) for the first token of the
answer (Zhong et al. 2022). Some questions are asked about each sentence of the
hypothesis, and the answers are averaged. Engagingness is their sum instead, the
only score that can exceed 1. A segment's score is the mean over its dimensions,
which are its components.

Not here: the questions (`data/prompts.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t5score_jax.checkpoints import kinds, loading
from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data import prompts
from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.inference.first_step import FirstStepScorer
from t5score_jax.metrics import _models, base

_TASK = 'summarization'
_MAX_LENGTH = 1024
_ANSWERS = ('Yes', 'No')


class Metric(_models.ModelMetric):
  """UniEval with one model and the questions of one task."""

  name = 'UniEval'
  MODELS = ('unieval',)
  READS = ('bundle',)

  def __init__(
    self,
    model: str | os.PathLike[str] | None = None,
    task: str | None = None,
    dimensions: str | None = None,
    sentences: str = 'split',
    vocabulary: str | os.PathLike[str] | None = None,
    **options: Any,
  ):
    """Loads the model.

    Args:
      model: A published folder (MingZhong/unieval-sum, -dialog or -fact), a
        bundle, or a MODEL_DIR or checkpoint of training.
      task: The task whose questions are asked: 'summarization', 'dialogue',
        'data2text' or 'fact'; by default the model's, else summarization. For
        a dialogue, the source is its history and the reference its fact.
      dimensions: Some of the task's dimensions, separated by commas; by default
        all of them.
      sentences: How the hypothesis is split for questions about each sentence:
        'split' by punctuation, 'lines' one sentence per line, 'whole' one
        sentence in all.
      vocabulary: See `metrics/metricx.py`.
      **options: See `_models.ModelMetric`; `max_length` is that of the whole
        input, by default 1024.

    Raises:
      FileNotFoundError: There is no such model.
      OptionError: No model is named, or an option is out of range.
      CheckpointError: The model is damaged, or has no vocabulary.
    """
    super().__init__(**options)
    base.check_choice('sentences', sentences, _SPLITTERS)
    if not model:
      raise OptionError(
        'UniEval needs a model: give a folder of MingZhong/unieval-sum or '
        '-dialog from the Hugging Face Hub, or of training (-m)'
      )
    bundle, ids = loading.load_first_step(model, _answers, vocabulary)
    bundle = self._reading(bundle)
    self.task = task or str(bundle.settings.get('task', _TASK))
    base.check_choice('task', self.task, prompts.UNIEVAL)
    questions = prompts.UNIEVAL[self.task]
    self.dimensions = tuple((dimensions or ','.join(questions)).split(','))
    for dimension in self.dimensions:
      base.check_choice(f'{self.task} dimension', dimension, questions)
    self._questions = {name: questions[name] for name in self.dimensions}
    self._needs = {n for q in self._questions.values() for n in q.needs}
    if 'reference' not in self._needs:
      self._read_no_references()
    self.reads_references = 'reference' in self._needs
    self.sentences = sentences
    self._scorer = FirstStepScorer(
      bundle,
      ids,
      self._max_length or int(bundle.settings.get('max_length', _MAX_LENGTH)),
      **self._placing,
    )
    self._vocabulary = bundle.vocabulary
    name = bundle.settings.get('name') or kinds.folder(model).resolve().name
    self._identify(name, bundle, bundle.vocabulary)

  def signature(self, **observed: object) -> str:
    """The settings and versions; that of scores also has `nrefs`."""
    return self._sign(
      task=self.task,
      dimensions=','.join(self.dimensions),
      sentences=self.sentences,
      **observed,
      length=self._scorer.max_length,
      dtype=self._scorer.dtype,
    )

  def score_segments(self, segments: Sequence[Segment]) -> base.Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    observed: dict[str, object] = {}
    if 'reference' in self._needs:
      observed = self._references(segments)
    if 'source' in self._needs:
      base.require_sources(segments, self.name)
    inputs: dict[tuple[str, ...], int] = {}
    asked = {
      name: [_ask(question, segment, self.sentences) for segment in segments]
      for name, question in self._questions.items()
    }
    # By dimension, segment and reference: the inputs of all sentences.
    rows = {
      name: [
        [[inputs.setdefault(i, len(inputs)) for i in one] for one in several]
        for several in by_segment
      ]
      for name, by_segment in asked.items()
    }
    ids, cut = prompts.encode_unieval(
      list(inputs), self._vocabulary, self._scorer.max_length
    )
    logits = self._scorer.logits(ids, self.progress).astype(np.float64)
    # P(Yes) / (P(Yes) + P(No)): all other pieces cancel.
    answers = 0.5 * (1 + np.tanh((logits[:, 0] - logits[:, 1]) / 2))
    combine = np.max if self.reference_rule == 'max' else np.mean
    components = {
      name: np.array(
        [
          combine([self._answer(name, answers[one]) for one in several])
          for several in by_segment
        ],
        np.float64,
      )
      for name, by_segment in rows.items()
    }
    return base.Scores(
      np.mean(list(components.values()), axis=0).astype(np.float32),
      self.signature(**observed),
      components={
        name: values.astype(np.float32)
        for name, values in components.items()
        if len(components) > 1
      },
      truncated=sum(cut),
      texts=len(inputs),
    )

  def _answer(self, dimension: str, answers: np.ndarray) -> float:
    """Combines the answers about the individual sentences of a hypothesis."""
    summed = self._questions[dimension].sentences == 'sum'
    return float(answers.sum() if summed else answers.mean())


def _lines(text: str) -> list[str]:
  return [line for line in text.splitlines() if line.strip()] or [text]


def _whole(text: str) -> list[str]:
  return [text]


_SPLITTERS: dict[str, Callable[[str], list[str]]] = {
  'split': prompts.sentences,
  'lines': _lines,
  'whole': _whole,
}


def _ask(
  question: prompts.Question, segment: Segment, sentences: str
) -> list[list[tuple[str, ...]]]:
  """The inputs of a segment: a list per reference, an input per sentence."""
  split = _SPLITTERS[sentences if question.sentences else 'whole']
  references: tuple[str, ...] = ('',)
  if 'reference' in question.needs:
    references = segment.references
  return [
    [
      prompts.unieval(
        question,
        {
          'hypothesis': hypothesis,
          'source': segment.source or '',
          'reference': reference,
        },
      )
      for hypothesis in split(segment.hypothesis)
    ]
    for reference in references
  ]


def _answers(bundle: Bundle) -> list[int]:
  """The first piece of each answer."""
  ids = [bundle.vocabulary.encode(answer)[0] for answer in _ANSWERS]
  if len(set(ids)) < len(ids):
    raise CheckpointError(
      f'the vocabulary spells {" and ".join(_ANSWERS)} with the same first '
      f'piece, {ids[0]}: the network cannot answer'
    )
  return ids
