"""The base class of metrics, their scores and their signatures.

A new metric is one new file in this folder. It defines a class `Metric`, a
subclass of the one here, with a name, `signature` and `score_segments`; the
file's name is the metric's name for `load_metric` and for `--metric`:

    # t5score_jax/metrics/length.py
    class Metric(base.Metric):
      name = 'length'

      def signature(self):
        return base.format_signature({'metric': self.name})

      def score_segments(self, segments):
        values = [len(segment.hypothesis) for segment in segments]
        return base.Scores(values, self.signature())

Higher means better, for every metric. A metric in another distribution is an
entry point (`metrics/_declarations.py`). Agreement with human judgments is in
`evaluation/`.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import math
from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from t5score_jax.data.records import Segment
from t5score_jax.errors import OptionError
from t5score_jax.evaluation import bootstrap
from t5score_jax.version import format_signature

if TYPE_CHECKING:
  from typing_extensions import Self

__all__ = [
  'COMMON_FLAGS',
  'Corpus',
  'Metric',
  'OptionError',
  'Progress',
  'Scores',
  'SystemScore',
  'check_choice',
  'count_parameters',
  'format_signature',
  'require_references',
  'require_sources',
  'share',
  'system_means',
  'system_scores',
]

#: Called with the number of items done and the number of all.
Progress = Callable[[int, int], None]

#: Flags of options that several metrics have; as `Metric.FLAGS`.
COMMON_FLAGS: Mapping[str, Mapping[str, Any]] = {
  'reference_rule': {
    'flags': ('--several', '--multi-reference'),
    'choices': ('max', 'mean'),
    'help': 'how scores over several references are combined; reference_rule '
    'in Python (default: max)',
  },
  'max_length': {
    'flags': ('--max-length',),
    'type': 'positive',
    'help': 'tokens per text (FrugalScore: per pair); longer texts are cut, '
    "and counted (default: the model's, else 1024 for T5Score, 128 for "
    'FrugalScore, the positions of an encoder)',
  },
  'batch_tokens': {
    'flags': ('--batch-tokens',),
    'type': 'positive',
    'help': 'tokens per batch on one device; bounds memory, does not change '
    'scores',
  },
  'num_partitions': {
    'flags': ('--num-partitions',),
    'type': 'positive',
    'help': 'devices of this process that share one copy of the weights, for '
    'models that do not fit on one; the other devices hold replicas '
    '(default: 1)',
  },
  'dtype': {
    'flags': ('--dtype',),
    'choices': ('float32', 'bfloat16'),
    'help': 'number format of the computation (default: float32)',
  },
}

#: sacrebleu's settings of the bootstrap.
DEFAULT_RESAMPLES = 1000
DEFAULT_SEED = 12345


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Statistics from which a metric computes one value for a whole system.

  BLEU of a system is not the mean of its sentences' BLEU: it is computed from
  sums over the sentences. A metric that has such a value gives the summands.

  Attributes:
    statistics: The summands, [N, S].
    aggregate: A function of their sum, [S] -> the system's value.
  """

  statistics: np.ndarray
  aggregate: Callable[[np.ndarray], float]


@dataclasses.dataclass(frozen=True, repr=False)
class Scores:
  """The scores of N segments, in their order.

  Attributes:
    values: The scores, float [N], finite; higher is better.
    signature: `key:value|key:value|...`, enough to reproduce the scores.
    components: What the scores are made of, float [N] each, by name; for
      example precision and recall.
    truncated: How many distinct texts were longer than the metric reads, and
      were cut.
    texts: How many distinct texts there were, for the share of those that were
      cut; pairs of them, where a metric reads two as one. 0 where nobody
      counted.
    notes: Further things to tell the user, a sentence each.
    corpus: How a system's value is computed; None means the mean of `values`.
  """

  values: np.ndarray
  signature: str
  components: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  truncated: int = 0
  texts: int = 0
  notes: tuple[str, ...] = ()
  corpus: Corpus | None = None

  def __post_init__(self) -> None:
    object.__setattr__(self, 'values', np.asarray(self.values))
    columns = {
      name: np.asarray(column) for name, column in self.components.items()
    }
    object.__setattr__(self, 'components', columns)
    if self.values.ndim != 1:
      raise ValueError(f'values must be [N], not {list(self.values.shape)}')
    columns = {'values': self.values, **columns}
    if self.corpus is not None:
      columns['corpus.statistics'] = np.asarray(self.corpus.statistics)
    for name, column in columns.items():
      if len(column) != len(self.values):
        raise ValueError(
          f'{name} has {len(column)} rows for {len(self.values)} segments'
        )
      wrong = np.argwhere(~np.isfinite(column))
      if wrong.size:
        row = int(wrong[0, 0])
        raise ValueError(
          f'{name}[{row}] is {column[row]}: a metric must define a finite'
          ' score for every segment, an empty one too'
        )

  def __len__(self) -> int:
    return len(self.values)

  def __iter__(self) -> Iterator[float]:
    return iter(self.values.tolist())

  def __repr__(self) -> str:
    mean = f'mean={self.mean:.4f}, ' if len(self) else ''
    return f'Scores(n={len(self)}, {mean}signature={self.signature!r})'

  @property
  def mean(self) -> float:
    """The mean of the segments' scores.

    Raises:
      ValueError: There are no segments.
    """
    if not len(self):
      raise ValueError('no segments: there is no mean')
    return float(np.mean(self.values, dtype=np.float64))

  @property
  def cut(self) -> str:
    """How many texts were cut, in words with their share; '' for none."""
    return share(self.truncated, self.texts) if self.truncated else ''

  @property
  def system(self) -> float:
    """The value of all segments taken as one system's.

    Raises:
      ValueError: There are no segments.
    """
    if not len(self):
      raise ValueError('no segments: there is no system value')
    if self.corpus is None:
      return self.mean
    return float(self.corpus.aggregate(self.corpus.statistics.sum(axis=0)))


@dataclasses.dataclass(frozen=True)
class SystemScore:
  """One system's value on one language pair, with a bootstrap interval.

  Attributes:
    system: The system's name; None where the segments have none.
    language_pair: The language pair; None where the segments have none.
    value: The value; higher is better.
    low: Lower end of the 95% interval; None if it was not asked for.
    high: Upper end of the 95% interval; None if it was not asked for.
    segments: How many segments the value stands on.
  """

  system: str | None
  language_pair: str | None
  value: float
  low: float | None
  high: float | None
  segments: int


class Metric(abc.ABC):
  """A metric: scores segments, and signs the scores.

  A pickled metric is made anew where it is loaded, from the arguments of its
  constructor; what was assigned to its attributes later is lost.

  The upper-case attributes are declarations, which `metrics/registry.py` reads
  from the source of the class itself, without importing it: their values must
  be literals, or module constants with literal values.

  Attributes:
    name: The name to show.
    num_parameters: The number of parameters of the metric's model; None for a
      metric without a model.
    progress: Called with (items done, items in all) while scoring; None. Only
      metrics with a model call it.
    MODELS: The kinds of models (`checkpoints/kinds.py`) whose folder alone
      means this metric.
    READS: Further kinds that the metric reads when it is named.
    VARIANTS: Options by suffix of the metric's name:
      `{'++': {'word_order': 2}}` in `chrf.py` makes `chrf++`.
    FLAGS: Options that have a flag of their own, by name: `flags`, the flag
      and its aliases, and arguments of `add_argument`; its `type` is
      'positive', 'int', 'float' or 'str'.
  """

  name: str
  num_parameters: int | None = None
  progress: Progress | None = None
  MODELS: ClassVar[tuple[str, ...]] = ()
  READS: ClassVar[tuple[str, ...]] = ()
  VARIANTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
  FLAGS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
  _arguments: tuple[tuple[Any, ...], dict[str, Any]]

  def __new__(cls, *args: Any, **options: Any) -> Self:
    """Keeps the arguments, for pickling."""
    metric = super().__new__(cls)
    metric._arguments = args, options
    return metric

  def __reduce__(self) -> tuple[Any, ...]:
    return _make, (type(self), *self._arguments)

  @abc.abstractmethod
  def signature(self) -> str:
    """The settings that the scores depend on; use `format_signature`."""

  @abc.abstractmethod
  def score_segments(self, segments: Sequence[Segment]) -> Scores:
    """Scores segments.

    Args:
      segments: N segments, in any order, of any number of systems.

    Returns:
      N scores in the order of the segments. No segments give no scores.

    Raises:
      ValueError: A segment lacks what the metric needs; use
        `require_references` and `require_sources`.
    """

  def score(
    self,
    hypotheses: Iterable[str],
    references: Iterable[str | Iterable[str]] | None = None,
    sources: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
  ) -> Scores:
    """Scores hypotheses, one segment each; a metric can be called as well.

    Args:
      hypotheses: N texts: a list, generator, NumPy array, pandas column, ...
      references: For each hypothesis its reference, or a list of its
        references: `[['a', 'b'], ['c', 'd']]` are two references of each of
        two hypotheses. An array or a data frame [N, K] has K references. (The
        outer list always goes over the hypotheses; for lists that go over the
        references first, as sacrebleu takes them, give `zip(*references)`.)
      sources: N source texts.
      progress: Called with (items done, items in all) in this call, by metrics
        with a model.

    Returns:
      The N scores.

    Raises:
      TypeError: A single string where many are expected, or an element that
        is not a string (a missing value, for example).
      ValueError: The numbers of texts differ, a text holds half a surrogate
        pair, or the metric needs texts that are not given.
    """
    texts = _texts(hypotheses, 'hypotheses')
    shared = None if references is None else _reference_lists(references)
    origins = None if sources is None else _texts(sources, 'sources')
    if shared is not None and len(shared) != len(texts):
      transposed = {len(row) for row in shared} == {len(texts)}
      raise ValueError(
        f'{len(texts)} hypotheses but {len(shared)} references; there must be'
        ' one for each, or a list of several for each'
        + (
          '. These look like lists of all first references, all second'
          ' references, ...: give zip(*references)'
          if transposed
          else ''
        )
      )
    if origins is not None and len(origins) != len(texts):
      raise ValueError(
        f'{len(texts)} hypotheses but {len(origins)} sources; there must be'
        ' one for each'
      )
    segments = [
      Segment(
        hypothesis=text,
        references=() if shared is None else shared[index],
        source=None if origins is None else origins[index],
      )
      for index, text in enumerate(texts)
    ]
    with self._reporting(progress):
      return self.score_segments(segments)

  __call__ = score

  @contextlib.contextmanager
  def _reporting(self, progress: Progress | None) -> Iterator[None]:
    before = self.progress
    self.progress = progress or before
    try:
      yield
    finally:
      self.progress = before


def _make(
  kind: type[Metric], args: tuple[Any, ...], options: dict[str, Any]
) -> Metric:
  return kind(*args, **options)


def _rows(values: Any, name: str) -> list[Any]:
  """The elements of any collection that has an order."""
  if isinstance(values, (str, bytes)):
    raise TypeError(
      f'{name} is one text; give a list, even of one: [{values[:20]!r}]'
    )
  if isinstance(values, (Mapping, set, frozenset)):
    raise TypeError(
      f'{name} is a {type(values).__name__}; give a list, whose order is clear'
    )
  if hasattr(values, 'to_numpy'):  # a data frame iterates over column names
    values = values.to_numpy()
  try:
    return list(values)
  except TypeError as error:
    raise TypeError(
      f'{name} is a {type(values).__name__}; give a list of texts'
    ) from error


def _texts(values: Any, name: str) -> list[str]:
  """The elements, which must be texts."""
  rows = _rows(values, name)
  return [_text(row, f'{name}[{index}]') for index, row in enumerate(rows)]


def _text(value: Any, place: str) -> str:
  if not isinstance(value, str):
    raise TypeError(
      f'{place} is {value!r} ({type(value).__name__}), not a text;'
      " an empty text is ''"
    )
  if not value.isascii():
    try:
      value.encode('utf-8')
    except UnicodeEncodeError as error:
      raise ValueError(
        f'{place}: half a surrogate pair (U+{ord(value[error.start]):04X}) at '
        f'position {error.start + 1}; it is not a character: replace it'
      ) from error
  # str() turns NumPy's strings into plain ones.
  return str(value)


def _reference_lists(values: Any) -> list[tuple[str, ...]]:
  """The references of each hypothesis, one or several."""
  rows = _rows(values, 'references')
  return [
    (_text(row, f'references[{index}]'),)
    if isinstance(row, str)
    else tuple(_texts(row, f'references[{index}]'))
    for index, row in enumerate(rows)
  ]


def share(part: int, whole: int) -> str:
  """`'3 of 40 texts (7.5%)'`; without the share where the whole is 0."""
  if not whole:
    return f'{part} {"text" if part == 1 else "texts"}'
  return f'{part} of {whole} texts ({100 * part / whole:.1f}%)'


def count_parameters(params: Any) -> int:
  """How many numbers a tree of arrays holds: mappings of arrays, nested."""
  if isinstance(params, Mapping):
    return sum(count_parameters(part) for part in params.values())
  return math.prod(params.shape)


def check_choice(option: str, value: str, choices: Collection[str]) -> None:
  """Raises OptionError unless an option has one of its values."""
  if value not in choices:
    raise OptionError(f'{option} {value!r}: use one of {", ".join(choices)}')


def require_references(segments: Sequence[Segment], name: str) -> str:
  """Checks that every segment has a reference.

  Args:
    segments: The segments.
    name: The metric, for the message.

  Returns:
    For the signature, the number of references of every segment: `'1'`,
    `'2'`, ..., or `'var'` where it differs (sacrebleu's `nrefs`).

  Raises:
    ValueError: A segment has no reference.
  """
  for index, segment in enumerate(segments):
    if not segment.references:
      raise ValueError(
        f'{name} needs references, and {_place(segment, index)} has none'
      )
  counts = {len(segment.references) for segment in segments}
  return str(*counts) if len(counts) == 1 else 'var'


def require_sources(segments: Sequence[Segment], name: str) -> None:
  """Checks that every segment has a source; as `require_references`."""
  for index, segment in enumerate(segments):
    if segment.source is None:
      raise ValueError(
        f'{name} needs sources, and {_place(segment, index)} has none'
      )


def _place(segment: Segment, index: int) -> str:
  """Where a segment is, in words."""
  ids = [
    f'{name} {value!r}'
    for name in ('language_pair', 'system', 'document', 'segment')
    if (value := getattr(segment, name)) is not None
  ]
  return f'segment number {index + 1}' + (f' ({", ".join(ids)})' if ids else '')


def system_scores(
  segments: Sequence[Segment],
  scores: Scores,
  resamples: int = DEFAULT_RESAMPLES,
  seed: int = DEFAULT_SEED,
) -> list[SystemScore]:
  """The value of every system, with a bootstrap interval.

  A value is what `Scores.corpus` says, or else the mean. The interval holds
  the middle 95% of the values of samples of the system's segments, drawn with
  replacement (Koehn 2004, section 3). Every system's draws begin at the seed:
  its interval doesn't depend on which other systems are there.

  Args:
    segments: N segments.
    scores: Their scores.
    resamples: How many samples to draw; 0 for no intervals.
    seed: The seed of the draws.

  Returns:
    One entry for each pair of system and language pair, as they first occur.

  Raises:
    ValueError: There are more or fewer scores than segments.
  """
  if len(segments) != len(scores):
    raise ValueError(f'{len(segments)} segments but {len(scores)} scores')
  corpus = scores.corpus or Corpus(
    np.stack([scores.values, np.ones(len(scores))], axis=1, dtype=np.float64),
    lambda sums: sums[0] / sums[1],
  )
  members = collections.defaultdict(list)
  for index, segment in enumerate(segments):
    members[segment.system, segment.language_pair].append(index)
  found = []
  for (system, language_pair), rows in members.items():
    statistics = np.asarray(corpus.statistics, np.float64)[rows]
    low, high = None, None
    if resamples:
      low, high = (
        float(bound)
        for bound in np.percentile(
          [
            corpus.aggregate(sums)
            for counts in bootstrap.segment_draws(
              len(rows), resamples, seed, least=1
            )
            for sums in counts @ statistics
          ],
          [2.5, 97.5],
        )
      )
    found.append(
      SystemScore(
        system=system,
        language_pair=language_pair,
        value=float(corpus.aggregate(statistics.sum(axis=0))),
        low=low,
        high=high,
        segments=len(rows),
      )
    )
  return found


def system_means(
  segments: Sequence[Segment],
  values: np.ndarray,
  resamples: int = DEFAULT_RESAMPLES,
  seed: int = DEFAULT_SEED,
) -> list[SystemScore]:
  """The mean value of every system; `system_scores` says the rest."""
  return system_scores(segments, Scores(values, ''), resamples, seed)
