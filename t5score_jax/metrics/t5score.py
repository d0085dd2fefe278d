"""T5Score: text evaluation by generation (Qin et al. 2022, section 3.1).

How good a hypothesis is shows in how probable it is given the reference or
the source, and they given it. ``a -> b`` below is equation 1: the mean
log-probability of b's tokens, ``</s>`` included, given a; at most 0, higher is
better.

    direction   score of hypothesis h with reference r and source s
    precision   r -> h                  (source-based: s -> h)
    recall      h -> r                  (source-based: h -> s)
    f           mean of the two         (source-based: likewise)
    source      f, source-based
    ref_src     mean of r -> h, h -> r, s -> h, h -> s

With several references each gives a score, and the segment's is the highest
('max') or their mean ('mean'). A text without tokens is the sequence ``</s>``
alone, on either side, so an empty hypothesis has a score like any other.

Not here: how texts become batches (``inference/scoring.py``).
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import loading
from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.inference import scoring
from t5score_jax.metrics import base

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
REFERENCE_RULES = ('max', 'mean')

# Ideographs with their punctuation and full-width forms.
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


@dataclasses.dataclass(frozen=True, repr=False)
class Scores(base.Scores):
  """As every metric's scores, with those of single tokens on request.

  Attributes:
    token_log_probs: by direction ('precision', 'source_recall', ...) for each
      segment the log-probability of each target token, float32, ``</s>``
      last; None unless asked for. With several references those of the best.
  """

  token_log_probs: Mapping[str, list[np.ndarray]] | None = None


class Metric(base.Metric):
  """T5Score with one model.

  Attributes:
    progress: called with (pairs done, pairs in all) while scoring; None.
  """

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
      'help': 'use sources in place of references, with any direction but '
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
    reference_rule: str = 'max',
    remove_chinese_spaces: bool = False,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = 'float32',
    token_log_probs: bool = False,
    num_partitions: int = 1,
    spread: bool = False,
  ):
    """Loads the model.

    Args:
      model: the name of an embedded model, or the path of a bundle, a
        MODEL_DIR or a ``checkpoint_N`` in one. A name goes before a path: a
        folder of the same name is ``./NAME``.
      direction: 'f', 'precision', 'recall', 'source' or 'ref_src'; by default
        the model's own, else 'f', the paper's.
      source_based: use the source instead of the references; direction
        'source' is 'f' with this.
      reference_rule: 'max' or 'mean', with several references.
      remove_chinese_spaces: remove white space between Chinese characters of
        hypotheses (not of references or sources), as the paper's evaluation
        of en-zh does.
      max_length: tokens a text, ``</s>`` included; the rest is cut, and
        counted in ``Scores.truncated``. By default the model's own, else
        1024, the paper's.
      batch_tokens: tokens a batch on one device. Bounds memory; scores don't
        depend on it.
      dtype: of the computation, 'float32' or 'bfloat16' (faster on an
        accelerator, differs in the third digit).
      token_log_probs: whether scores carry those of single tokens.
      num_partitions: devices over which the weights are divided, for models
        that don't fit one.
      spread: whether all processes of ``processes.start`` score the same
        segments; each does its share and has all scores.

    Raises:
      FileNotFoundError: there is no such model.
      ValueError: an option has a value that it can't have, or the model's
        folder is damaged.
    """
    base.check_choice('reference_rule', reference_rule, REFERENCE_RULES)
    base.check_choice('dtype', dtype, scoring.DTYPES)
    if direction is not None:
      base.check_choice('direction', direction, DIRECTIONS)
    _check_sources(direction, source_based)
    bundle = loading.load_model(model)
    direction = direction or bundle.settings.get('direction', 'f')
    base.check_choice('direction', direction, DIRECTIONS)
    if direction == 'source':
      direction, source_based = 'f', True
    _check_sources(direction, source_based)
    self.direction = direction
    self.source_based = source_based
    self.reference_rule = reference_rule
    self.remove_chinese_spaces = remove_chinese_spaces
    self.token_log_probs = token_log_probs
    self._lowercase = bool(bundle.settings.get('lowercase', False))
    self._scorer = scoring.Scorer(
      bundle,
      max_length=max_length,
      batch_tokens=batch_tokens,
      dtype=dtype,
      num_partitions=num_partitions,
      spread=spread,
    )
    self.num_parameters = base.count_parameters(bundle.params)
    self._model = {
      'model': str(bundle.settings.get('name') or Path(model).name),
      'checkpoint': bundles.checkpoint_hash(bundle.params),
      'network': bundles.network_hash(bundle.config),
      'vocabulary': bundle.vocabulary.fingerprint()[:12],
    }

  @property
  def conditioning(self) -> str:
    """'reference', 'source' or 'reference+source'."""
    if self.direction == 'ref_src':
      return 'reference+source'
    return 'source' if self.source_based else 'reference'

  def signature(self) -> str:
    """The settings and versions; that of scores says `nrefs` as well."""
    return self._sign_with({})

  def _sign_with(self, observed: Mapping[str, object]) -> str:
    return base.format_signature(
      {
        'metric': self.name,
        **{k: re.sub(r'[|\s]', '_', v) for k, v in self._model.items()},
        'direction': self.direction,
        'conditioning': self.conditioning,
        **observed,
        'length': self._scorer.max_length,
        'case': 'lc' if self._lowercase else 'mixed',
        'zhspaces': 'removed' if self.remove_chinese_spaces else 'kept',
        'dtype': self._scorer.dtype,
      }
    )

  def score_segments(self, segments: Sequence[Segment]) -> Scores:
    """Scores segments; see `base.Metric.score_segments`."""
    observed: dict[str, object] = {}
    contexts: dict[str, list[tuple[str, ...]]] = {}
    if self.conditioning != 'source':
      observed['nrefs'] = base.require_references(segments, self.name)
      observed['refs'] = self.reference_rule
      contexts[''] = [segment.references for segment in segments]
    if self.conditioning != 'reference':
      base.require_sources(segments, self.name)
      prefix = 'source_' if self.direction == 'ref_src' else ''
      contexts[prefix] = [(segment.source or '',) for segment in segments]
    several = (
      max((len(t) for ts in contexts.values() for t in ts), default=0) > 1
    )
    if self.token_log_probs and several and self.reference_rule == 'mean':
      raise ValueError(
        'token log-probabilities are those of one reference: with several '
        "references use reference_rule 'max'"
      )
    sides = ['precision', 'recall']
    if self.direction in sides:
      sides = [self.direction]

    # All directions in one call, so that a text is read once for all of them.
    pairs: list[scoring.Pair] = []
    rows = {
      prefix + side: self._add_pairs(pairs, segments, texts, side)
      for prefix, texts in contexts.items()
      for side in sides
    }
    found = self._scorer.score_pairs(
      pairs, token_log_probs=self.token_log_probs, progress=self.progress
    )
    components: dict[str, np.ndarray] = {}
    tokens: dict[str, list[np.ndarray]] = {}
    for prefix in contexts if segments else ():
      names = [prefix + side for side in sides]
      # [sides, segments, contexts], NaN where a segment has fewer contexts
      index = np.stack([rows[name] for name in names])
      values = np.where(index >= 0, found.values[index], np.nan)
      best = np.nanargmax(values.mean(0), axis=1)[:, None]
      for name, places, value in zip(names, index, values, strict=True):
        if self.reference_rule == 'max':
          components[name] = np.take_along_axis(value, best, 1)[:, 0]
        else:
          components[name] = np.asarray(
            np.nanmean(value, axis=1, dtype=np.float64)
          )
        if found.token_log_probs is not None:
          chosen = np.take_along_axis(places, best, 1)[:, 0]
          tokens[name] = [found.token_log_probs[i] for i in chosen]
    means = np.zeros(0)
    if components:
      means = np.mean(list(components.values()), axis=0, dtype=np.float64)
    return Scores(
      values=means.astype(np.float32),
      signature=self._sign_with(observed),
      components={
        name: value.astype(np.float32)
        for name, value in components.items()
        if len(components) > 1
      },
      truncated=found.truncated,
      texts=found.texts,
      token_log_probs=tokens if self.token_log_probs else None,
    )

  def _add_pairs(
    self,
    pairs: list[scoring.Pair],
    segments: Sequence[Segment],
    contexts: Sequence[tuple[str, ...]],
    side: str,
  ) -> np.ndarray:
    """Appends (input, target) pairs; returns their places.

    Returns:
      int [segments, most contexts], -1 where a segment has fewer.
    """
    places = np.full((len(contexts), max(map(len, contexts), default=0)), -1)
    for row, (segment, texts) in enumerate(
      zip(segments, contexts, strict=True)
    ):
      hypothesis = segment.hypothesis
      if self.remove_chinese_spaces:
        hypothesis = _CHINESE_SPACE.sub('', hypothesis)
      for column, text in enumerate(texts):
        pair = (text, hypothesis) if side == 'precision' else (hypothesis, text)
        if self._lowercase:
          pair = (pair[0].lower(), pair[1].lower())
        places[row, column] = len(pairs)
        pairs.append(pair)
    return places
