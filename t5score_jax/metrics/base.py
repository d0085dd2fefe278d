"""The base class of metrics, their scores and their signatures.

A new metric is one new file in this folder. It defines a class `Metric`, a
subclass of the one here, with a name, `signature` and `score_segments`; the
file's name is the metric's name for `load_metric` and for `--metric`:

    # t5score_jax/metrics/length.py
    class Metric(base.Metric):
      name = 'length'

      def signature(self, **observed):
        return base.format_signature({'metric': self.name, **observed})

      def score_segments(self, segments):
        values = [len(segment.hypothesis) for segment in segments]
        return base.Scores(values, self.signature())

For every metric, higher is better. Segments hold texts; a metric of another
modality takes paths or ids in their fields and reads the files itself. A metric
in another distribution is an entry point (`metrics/_declarations.py`).
Agreement with human judgments is computed in `evaluation/`.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import threading
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
from t5score_jax.errors import InputError, OptionError
from t5score_jax.metrics import _texts, _utilities
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
  'check_choice',
  'count_parameters',
  'format_signature',
  'require_references',
  'require_sources',
  'share',
]

#: Called with the number of items done and the total number.
Progress = Callable[[int, int], None]

#: Flags of options that several metrics share; same format as `Metric.FLAGS`.
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
    'help': 'devices of this process over which the weights are sharded, for '
    'models that do not fit on one; the other devices hold replicas '
    '(default: 1)',
  },
  'dtype': {
    'flags': ('--dtype',),
    'choices': ('float32', 'bfloat16'),
    'help': 'number format of the computation (default: float32)',
  },
}


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Statistics from which a metric computes one value for a whole system.

  A system's BLEU is not the mean of its sentences' BLEU; it is computed from
  sums over the sentences. These are the summands.

  Attributes:
    statistics: The summands, [N, S].
    aggregate: Computes the system's value from their sum, [S].
  """

  statistics: np.ndarray
  aggregate: Callable[[np.ndarray], float]


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Scores:
  """The scores of N segments, in their order.

  Attributes:
    values: The scores, float [N], finite; higher is better.
    signature: `key:value|key:value|...`, enough to reproduce the scores.
    components: Parts of the scores, float [N] each, by name; for example
      precision and recall.
    truncated: Number of distinct texts that exceeded the metric's maximum
      length and were truncated.
    texts: Number of distinct texts (or pairs, if the metric reads two texts as
      one); 0 if unknown.
    notes: Further notes to the user, one sentence each.
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

  def __getitem__(self, index: Any) -> Any:
    """Returns a segment's score as a float, or a slice's as an array."""
    chosen = self.values[index]
    return chosen if isinstance(chosen, np.ndarray) else float(chosen)

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    """Returns the values, so that NumPy and pandas treat scores as an array."""
    return np.array(self.values, dtype, copy=copy is not False)

  def __repr__(self) -> str:
    mean = f'mean={self.mean:.4f}, ' if len(self) else ''
    return f'Scores(n={len(self)}, {mean}signature={self.signature!r})'

  @property
  def mean(self) -> float:
    """The mean of the segments' scores.

    Raises:
      InputError: There are no segments.
    """
    if not len(self):
      raise InputError('no segments: there is no mean')
    return float(np.mean(self.values, dtype=np.float64))

  @property
  def cut(self) -> str:
    """The number of truncated texts with their share; '' for none."""
    return share(self.truncated, self.texts) if self.truncated else ''

  @property
  def system(self) -> float:
    """The system-level value, with all segments taken as one system.

    Raises:
      InputError: There are no segments.
    """
    if not len(self):
      raise InputError('no segments: there is no system value')
    if self.corpus is None:
      return self.mean
    return float(self.corpus.aggregate(self.corpus.statistics.sum(axis=0)))


class Metric(abc.ABC):
  """A metric: scores segments and gives the scores a signature.

  A pickled metric is reconstructed from its constructor arguments; later
  changes to its attributes are lost.

  The upper-case attributes are declarations. `metrics/registry.py` reads them
  from the source of the class itself, without importing it, so their values
  must be literals, or module constants with literal values.

  Attributes:
    name: The display name.
    num_parameters: The number of parameters of the metric's model; None for a
      metric without a model.
    reads_references: Whether scores depend on references.
    progress: Called with (items done, total items) while scoring, or None.
      Only metrics with a model call it.
    independent: Whether a segment's score depends on no other segment, so that
      segments from several callers can be scored together.
    MODELS: The kinds of models (`checkpoints/kinds.py`) whose folder alone
      selects this metric.
    READS: Further kinds that the metric reads when it is chosen by name.
    VARIANTS: Options by suffix of the metric's name:
      `{'++': {'word_order': 2}}` in `chrf.py` makes `chrf++`.
    FLAGS: Options that have their own flag, by name: `flags`, the flag and its
      aliases, and arguments of `add_argument`; `type` is 'positive', 'int',
      'float' or 'str'.
  """

  name: str
  num_parameters: int | None = None
  reads_references: bool = True
  independent: bool = True
  MODELS: ClassVar[tuple[str, ...]] = ()
  READS: ClassVar[tuple[str, ...]] = ()
  VARIANTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
  FLAGS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
  _arguments: tuple[tuple[Any, ...], dict[str, Any]]
  _progress: Progress | None = None
  _call: threading.local

  def __new__(cls, *args: Any, **options: Any) -> Self:
    """Stores the arguments for pickling."""
    metric = super().__new__(cls)
    metric._arguments = args, options
    metric._call = threading.local()
    return metric

  def __reduce__(self) -> tuple[Any, ...]:
    return _make, (type(self), *self._arguments)

  def __repr__(self) -> str:
    return f'<{type(self).__module__}.{type(self).__name__} {self.signature()}>'

  @property
  def progress(self) -> Progress | None:
    """The callback of this thread's call, else the one set on the metric."""
    call: Progress | None = getattr(self._call, 'progress', None)
    return call or self._progress

  @progress.setter
  def progress(self, progress: Progress | None) -> None:
    _check_progress(progress)
    self._progress = progress

  @abc.abstractmethod
  def signature(self, **observed: object) -> str:
    """Returns the settings that affect the scores; use `format_signature`.

    Args:
      **observed: Settings that depend on the segments, such as `nrefs`; only
        the signature of scores has them.
    """

  @abc.abstractmethod
  def score_segments(self, segments: Sequence[Segment]) -> Scores:
    """Scores segments.

    Args:
      segments: N segments, in any order, from any number of systems.

    Returns:
      N scores in the order of the segments; empty without segments.

    Raises:
      InputError: A segment lacks a text that the metric needs; use
        `require_references` and `require_sources`.
    """

  def utilities(
    self, groups: Sequence[_utilities.Group]
  ) -> _utilities.Utilities:
    """Prepares utilities of all pairs within groups; see `Utilities`."""
    return _utilities.Utilities(self, groups)

  def score(
    self,
    hypotheses: Iterable[str],
    references: Iterable[str | Iterable[str]] | None = None,
    sources: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
  ) -> Scores:
    """Scores hypotheses, one segment each; calling the metric does the same.

    Args:
      hypotheses: N texts: a list, generator, NumPy array, pandas column, ...
      references: For each hypothesis, its reference or a list of its
        references: `[['a', 'b'], ['c', 'd']]` gives each of two hypotheses
        two references. An array or a data frame [N, K] has K references. (The
        outer list is always over hypotheses; for sacrebleu's order, references
        first, pass `zip(*references)`.)
      sources: N source texts.
      progress: Called with (items done, total items) during this call, by
        metrics with a model.

    Returns:
      The N scores.

    Raises:
      TypeError: A single string where many are expected, or an element that
        is not a string (a missing value, for example).
      InputError: The numbers of texts differ, a text contains half a
        surrogate pair, or the metric needs texts that are missing.
    """
    segments = _texts.segments(hypotheses, references, sources)
    with self._reporting(progress):
      return self.score_segments(segments)

  __call__ = score

  @contextlib.contextmanager
  def _reporting(self, progress: Progress | None) -> Iterator[None]:
    _check_progress(progress)
    before = getattr(self._call, 'progress', None)
    self._call.progress = progress or before
    try:
      yield
    finally:
      self._call.progress = before


def _check_progress(progress: Progress | None) -> None:
  if progress is not None and not callable(progress):
    raise TypeError(
      f'progress is {progress!r}; give a function of (items done, items in all)'
    )


def _make(
  kind: type[Metric], args: tuple[Any, ...], options: dict[str, Any]
) -> Metric:
  return kind(*args, **options)


def share(part: int, whole: int) -> str:
  """Formats `'3 of 40 texts (7.5%)'`; no share if the total is 0."""
  if not whole:
    return f'{part} {"text" if part == 1 else "texts"}'
  return f'{part} of {whole} texts ({100 * part / whole:.1f}%)'


def count_parameters(params: Any) -> int:
  """Counts the elements of a tree of arrays (nested mappings)."""
  if isinstance(params, Mapping):
    return sum(count_parameters(part) for part in params.values())
  return math.prod(params.shape)


def check_choice(option: str, value: str, choices: Collection[str]) -> None:
  """Raises OptionError unless an option has one of the allowed values."""
  if value not in choices:
    raise OptionError(f'{option} {value!r}: use one of {", ".join(choices)}')


def require_references(segments: Sequence[Segment], name: str) -> str:
  """Checks that every segment has a reference.

  Args:
    segments: The segments.
    name: The metric, for the message.

  Returns:
    The number of references per segment, for the signature: `'1'`, `'2'`,
    ..., or `'var'` if it varies (sacrebleu's `nrefs`).

  Raises:
    InputError: A segment has no reference.
  """
  for index, segment in enumerate(segments):
    if not segment.references:
      raise InputError(
        f'{name} needs references, and {_place(segment, index)} has none'
      )
  counts = {len(segment.references) for segment in segments}
  return str(*counts) if len(counts) == 1 else 'var'


def require_sources(segments: Sequence[Segment], name: str) -> None:
  """Checks that every segment has a source; see `require_references`."""
  for index, segment in enumerate(segments):
    if segment.source is None:
      raise InputError(
        f'{name} needs sources, and {_place(segment, index)} has none'
      )


def _place(segment: Segment, index: int) -> str:
  """Describes where a segment is."""
  ids = [
    f'{name} {value!r}'
    for name in ('language_pair', 'system', 'document', 'segment')
    if (value := getattr(segment, name)) is not None
  ]
  return f'segment number {index + 1}' + (f' ({", ".join(ids)})' if ids else '')
