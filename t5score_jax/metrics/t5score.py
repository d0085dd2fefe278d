"""T5Score: text evaluation by generation (Qin et al. 2022, section 3.1).

Scores a hypothesis by its probability given the reference or the source, and by
their probability given the hypothesis. `a -> b` below is equation 1: the mean
log-probability of b's tokens, `</s>` included, given a. It is at most 0; higher
is better.

    direction   score of hypothesis h with reference r and source s
    precision   r -> h                  (source-based: s -> h)
    recall      h -> r                  (source-based: h -> s)
    f           mean of the two         (source-based: likewise)
    source      f, source-based
    ref_src     mean of r -> h, h -> r, s -> h, h -> s

With several references, a segment's score is the maximum ('max') or mean
('mean') over them. A text without tokens is read as `</s>` alone, as input and
as target, so an empty hypothesis has a score like any other.

Not here: batches (`inference/scoring.py`).
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5score_jax.checkpoints import loading
from t5score_jax.data import vocab
from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.inference import scoring
from t5score_jax.metrics import _models, base

#: Each direction's terms, as (input, target) fields of a segment.
DIRECTIONS = {
  'f': (('reference', 'hypothesis'), ('hypothesis', 'reference')),
  'precision': (('reference', 'hypothesis'),),
  'recall': (('hypothesis', 'reference'),),
  'source': (('source', 'hypothesis'), ('hypothesis', 'source')),
  'ref_src': (
    ('reference', 'hypothesis'),
    ('hypothesis', 'reference'),
    ('source', 'hypothesis'),
    ('hypothesis', 'source'),
  ),
}

# Ideographs, their punctuation, and full-width forms.
_CHINESE = (
  '[\u3000-\u303f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef'
  '\U00020000-\U0003ffff]'
)
_CHINESE_SPACE = re.compile(rf'(?<={_CHINESE})\s+(?={_CHINESE})')


def _check_sources(direction: str | None, source_based: bool) -> None:
  if source_based and direction == 'ref_src':
    raise OptionError(
      'direction ref_src reads references and sources, source_based '
      '(--source-based) only sources; leave one of them out'
    )


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Scores(base.Scores):
  """Segment scores, with token scores on request.

  Attributes:
    token_log_probs: By direction ('precision', 'source_recall', ...), for each
      segment the log-probability of each target token, float32, `</s>` last;
      None unless requested. With several references, those of the best one.
  """

  token_log_probs: Mapping[str, list[np.ndarray]] | None = None


class Metric(_models.ModelMetric):
  """T5Score with one model."""

  name = 'T5Score'
  MODELS = ('bundle',)
  FLAGS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
    'direction': {
      'flags': ('--direction',),
      'choices': DIRECTIONS,
      'help': 'precision: reference to hypothesis; recall: hypothesis to '
      'reference; f: mean of both; source: as f, with the source; ref_src: '
      "mean of all four (default: the model's, else f)",
    },
    'source_based': {
      'flags': ('--source-based',),
      'action': 'store_true',
      'help': 'use sources instead of references, with any direction but '
      'ref_src',
    },
    'remove_chinese_spaces': {
      'flags': ('--remove-chinese-spaces',),
      'action': 'store_true',
      'help': 'remove spaces between Chinese characters of hypotheses',
    },
    'token_log_probs': {
      'flags': ('--tokens',),
      'action': 'store_true',
      'help': 'also write the log-probability of every target token (jsonl)',
    },
  }

  def __init__(
    self,
    model: str | os.PathLike[str] = 't5score-tiny',
    direction: str | None = None,
    source_based: bool = False,
    remove_chinese_spaces: bool = False,
    token_log_probs: bool = False,
    **options: Any,
  ):
    """Loads the model.

    Args:
      model: The name of an embedded model, or the path of a bundle, a
        MODEL_DIR or a `checkpoint_N` in one. A name takes precedence; write
        `./NAME` for a folder of the same name.
      direction: 'f', 'precision', 'recall', 'source' or 'ref_src'; by default
        the model's own, else 'f' as in the paper.
      source_based: Whether to use the source instead of the references;
        direction 'source' is 'f' with this option.
      remove_chinese_spaces: Whether to remove white space between Chinese
        characters in hypotheses (not in references or sources), as in the
        paper's evaluation of en-zh.
      token_log_probs: Whether to return token scores as well.
      **options: See `_models.ModelMetric`.

    Raises:
      FileNotFoundError: There is no such model.
      ValueError: An option is out of range, or the model's folder is damaged.
    """
    super().__init__(**options)
    if direction is not None:
      base.check_choice('direction', direction, DIRECTIONS)
    _check_sources(direction, source_based)
    settings = self._load(model)
    direction = direction or settings.get('direction', 'f')
    base.check_choice('direction', direction, DIRECTIONS)
    if direction == 'source':
      direction, source_based = 'f', True
    _check_sources(direction, source_based)
    self.direction = direction
    self.source_based = source_based
    self.remove_chinese_spaces = remove_chinese_spaces
    self.token_log_probs = token_log_probs
    self.reads_references = self.conditioning != 'source'
    self._lowercase = bool(settings.get('lowercase', False))

  def _load(self, model: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Loads the model and returns its settings; subclasses override it."""
    bundle = self._reading(loading.load_model(model))
    self._scorer = scoring.Scorer(
      bundle, max_length=self._max_length, **self._placing
    )
    name = bundle.settings.get('name') or Path(model).name
    self._identify(name, bundle, bundle.vocabulary)
    self._vocabulary = bundle.vocabulary
    return bundle.settings

  @property
  def conditioning(self) -> str:
    """'reference', 'source' or 'reference+source'."""
    if self.direction == 'ref_src':
      return 'reference+source'
    return 'source' if self.source_based else 'reference'

  def signature(self, **observed: object) -> str:
    """The settings and versions; that of scores also has `nrefs`."""
    return self._sign(
      direction=self.direction,
      conditioning=self.conditioning,
      **observed,
      length=self._scorer.max_length,
      case='lc' if self._lowercase else 'mixed',
      zhspaces='removed' if self.remove_chinese_spaces else 'kept',
      dtype=self._scorer.dtype,
    )

  def pieces(self, hypothesis: str) -> list[str]:
    """Returns a hypothesis' tokens as text, truncated as for scoring.

    `</s>` is last. There is one token for each log-probability in
    `Scores.token_log_probs['precision']`; see `data.vocab.Vocabulary.pieces`.
    """
    rows, _ = vocab.encode_batch_for_model(
      [self._read(hypothesis)], self._vocabulary, self._scorer.max_length
    )
    return self._vocabulary.pieces(rows[0])

  def _read(self, hypothesis: str) -> str:
    """Returns a hypothesis as the options and the model require it."""
    if self.remove_chinese_spaces:
      hypothesis = _CHINESE_SPACE.sub('', hypothesis)
    return hypothesis.lower() if self._lowercase else hypothesis

  def score_segments(self, segments: Sequence[Segment]) -> Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    observed: dict[str, object] = {}
    contexts: dict[str, list[tuple[str, ...]]] = {}
    if self.conditioning != 'source':
      observed = self._references(segments)
      contexts[''] = [segment.references for segment in segments]
    if self.conditioning != 'reference':
      base.require_sources(segments, self.name)
      prefix = 'source_' if self.direction == 'ref_src' else ''
      contexts[prefix] = [(segment.source or '',) for segment in segments]
    several = (
      max((len(t) for ts in contexts.values() for t in ts), default=0) > 1
    )
    if self.token_log_probs and several and self.reference_rule == 'mean':
      raise OptionError(
        'token log-probabilities are those of one reference: with several '
        "references use reference_rule 'max'"
      )
    sides = ['precision', 'recall']
    if self.direction in sides:
      sides = [self.direction]

    # All directions in one call, to encode each text once.
    pairs: list[scoring.Pair] = []
    rows = {
      prefix + side: self._add_pairs(pairs, segments, texts, side)
      for prefix, texts in contexts.items()
      for side in sides
    }
    scores = self._scorer.score_pairs(
      pairs, token_log_probs=self.token_log_probs, progress=self.progress
    )
    components: dict[str, np.ndarray] = {}
    tokens: dict[str, list[np.ndarray]] = {}
    for prefix in contexts if segments else ():
      names = [prefix + side for side in sides]
      # [sides, segments, contexts], NaN where a segment has fewer contexts
      index = np.stack([rows[name] for name in names])
      values = np.where(index >= 0, scores.values[index], np.nan)
      best = np.nanargmax(values.mean(0), axis=1)[:, None]
      for name, pair, value in zip(names, index, values, strict=True):
        if self.reference_rule == 'max':
          components[name] = np.take_along_axis(value, best, 1)[:, 0]
        else:
          components[name] = np.asarray(
            np.nanmean(value, axis=1, dtype=np.float64)
          )
        if scores.token_log_probs is not None:
          chosen = np.take_along_axis(pair, best, 1)[:, 0]
          tokens[name] = [scores.token_log_probs[i] for i in chosen]
    means = np.zeros(0)
    if components:
      means = np.mean(list(components.values()), axis=0, dtype=np.float64)
    return Scores(
      values=means.astype(np.float32),
      signature=self.signature(**observed),
      components={
        name: value.astype(np.float32)
        for name, value in components.items()
        if len(components) > 1
      },
      truncated=scores.truncated,
      texts=scores.texts,
      token_log_probs=tokens if self.token_log_probs else None,
    )

  def _add_pairs(
    self,
    pairs: list[scoring.Pair],
    segments: Sequence[Segment],
    contexts: Sequence[tuple[str, ...]],
    side: str,
  ) -> np.ndarray:
    """Appends (input, target) pairs.

    Returns:
      Their indices, int [segments, most contexts], -1 where a segment has
      fewer.
    """
    index = np.full((len(contexts), max(map(len, contexts), default=0)), -1)
    for row, (segment, texts) in enumerate(
      zip(segments, contexts, strict=True)
    ):
      hypothesis = self._read(segment.hypothesis)
      for column, text in enumerate(texts):
        text = text.lower() if self._lowercase else text
        pair = (text, hypothesis) if side == 'precision' else (hypothesis, text)
        index[row, column] = len(pairs)
        pairs.append(pair)
    return index
