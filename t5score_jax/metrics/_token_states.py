"""What metrics on encoders share: pairs of texts, window by window; signatures.

BERTScore and MoverScore compare the states of a hypothesis with those of a
reference. Here texts become states, each distinct one once in a window that
fits in memory, and corpora become inverse document frequencies.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import math
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data import files
from t5score_jax.data.records import Segment
from t5score_jax.data.subwords import Encoded
from t5score_jax.errors import OptionError
from t5score_jax.inference import encoding
from t5score_jax.metrics import base

# Bytes of states that are in memory at one time.
_WINDOW_BYTES = 2**29
# A corpus in a file is read once for an encoder, not for every call.
_OF_FILES: weakref.WeakKeyDictionary[encoding.TextEncoder, dict[str, Idf]] = (
  weakref.WeakKeyDictionary()
)

# Settings of training, and what signatures say by itself.

IDF_NONE, IDF_REFERENCES = 'none', 'references'
REFERENCE_RULES = ('max', 'mean')


@dataclasses.dataclass(frozen=True)
class TextPairs:
  """Distinct (hypothesis, reference) pairs of some segments.

  Attributes:
    encoded: the tokens of every distinct text.
    pairs: int [P, 2], indices of a hypothesis and a reference.
    places: int [segments, most references], row in ``pairs``, -1 where a
      segment has fewer references.
  """

  encoded: list[Encoded]
  pairs: np.ndarray
  places: np.ndarray

  @property
  def truncated(self) -> int:
    """How many distinct texts were cut."""
    return sum(text.cut for text in self.encoded)


def text_pairs(
  segments: Sequence[Segment], encoder: encoding.TextEncoder
) -> TextPairs:
  """Tokenises the texts of segments and lists what is compared."""
  texts: dict[str, int] = {}
  pairs: dict[tuple[int, int], int] = {}
  most = max((len(s.references) for s in segments), default=0)
  places = np.full((len(segments), most), -1)
  for row, segment in enumerate(segments):
    hypothesis = texts.setdefault(segment.hypothesis, len(texts))
    for column, reference in enumerate(segment.references):
      pair = hypothesis, texts.setdefault(reference, len(texts))
      places[row, column] = pairs.setdefault(pair, len(pairs))
  return TextPairs(
    encoder.tokenize(list(texts)),
    np.array(list(pairs), np.int64).reshape(-1, 2),
    places,
  )


def share(found: TextPairs, encoder: encoding.TextEncoder) -> np.ndarray:
  """Divides pairs over the processes: int [P], the process of each.

  All pairs with one reference go to the same process, which encodes it once.
  """
  lengths = np.array([len(text.ids) for text in found.encoded], np.int64)
  references, group = np.unique(found.pairs[:, 1], return_inverse=True)
  costs = lengths[references] + np.bincount(
    group, lengths[found.pairs[:, 0]], len(references)
  )
  identity = [*(text.ids for text in found.encoded), found.pairs.tolist()]
  return encoder.share(costs, identity)[group]


def windows(
  found: TextPairs,
  encoder: encoding.TextEncoder,
  width: int,
  rows: np.ndarray,
) -> Iterator[tuple[np.ndarray, Mapping[int, np.ndarray]]]:
  """Yields rows of ``found.pairs`` with the states of their texts.

  Args:
    found: what to compare.
    encoder: makes the states.
    width: floats a token.
    rows: int [n], which pairs.

  Yields:
    Row numbers, and float32 states [layers, tokens, emb_dim] by text.
  """
  lengths = np.array([len(text.ids) for text in found.encoded])
  limit = _WINDOW_BYTES // (4 * width)
  # Hypotheses with one reference stand together, so that it is encoded once.
  order = rows[np.lexsort((found.pairs[rows, 0], found.pairs[rows, 1]))]
  start = 0
  while start < len(order):
    inside: set[int] = set()
    tokens, stop = 0, start
    while stop < len(order):
      new = set(found.pairs[order[stop]].tolist()) - inside
      more = int(sum(lengths[i] for i in new))
      if inside and tokens + more > limit:
        break
      inside |= new
      tokens += more
      stop += 1
    chosen = sorted(inside)
    states: dict[int, np.ndarray] = {}
    for places, batch in encoder.run([found.encoded[i].ids for i in chosen]):
      for column, place in enumerate(places):
        text = chosen[place]
        states[text] = batch[:, column, : lengths[text]].copy()
    yield order[start:stop], states
    start = stop


class Idf:
  """Inverse document frequencies of tokens: log((N + 1) / (df + 1)).

  Args:
    corpus: N encoded documents; special tokens count like others.
  """

  def __init__(self, corpus: Iterable[Encoded]):
    counts: collections.Counter[int] = collections.Counter()
    self.documents = 0
    for text in corpus:
      counts.update(set(text.ids))
      self.documents += 1
    self._unseen = math.log(self.documents + 1)
    self._values = {
      token: math.log((self.documents + 1) / (count + 1))
      for token, count in counts.items()
    }

  def weights(self, text: Encoded) -> np.ndarray:
    """The weight of each token, float64 [tokens]; unseen ones weigh most."""
    return np.array([self._values.get(i, self._unseen) for i in text.ids])


def idf_of(
  setting: str, encoder: encoding.TextEncoder, texts: Sequence[str]
) -> Idf | None:
  """What an ``idf`` option means.

  Args:
    setting: 'none'; 'references': the texts given; else a file, a line a
      document.
    encoder: tokenises.
    texts: The references (or hypotheses) that are scored.
  """
  if setting == IDF_NONE:
    return None
  if setting == IDF_REFERENCES:
    return Idf(encoder.tokenize(list(texts)))
  found = _OF_FILES.setdefault(encoder, {})
  if setting not in found:
    found[setting] = Idf(encoder.tokenize(files.read_lines(setting)))
  return found[setting]


def check_idf(setting: str) -> str:
  """Returns a valid ``idf`` option.

  Raises:
    ValueError: neither a word nor a file.
  """
  if setting not in (IDF_NONE, IDF_REFERENCES) and not Path(setting).is_file():
    raise OptionError(
      f'idf {setting!r}: use {IDF_NONE}, {IDF_REFERENCES}, or a file with a '
      'document a line'
    )
  return setting


def load(
  name: str, model: str | os.PathLike[str] | None
) -> encoders.EncoderBundle:
  """Loads the encoder that a metric's option names.

  Raises:
    ValueError: none is named; no encoder comes with the package.
    FileNotFoundError: there is no such folder.
  """
  if not model:
    raise OptionError(
      f'{name} needs an encoder: give the folder of one (BERT, RoBERTa, '
      'XLM-R, as Hugging Face saves them) as the model (-m)'
    )
  return encoders.load_encoder(kinds.folder(model))


def idf_name(setting: str) -> str:
  """An ``idf`` option for a signature.

  Returns:
    The word; of a file its name and twelve digits of a SHA-256 of its lines,
    whether or not it is compressed, as in 'corpus.txt.gz@1b4f0e985197'.
  """
  if setting in (IDF_NONE, IDF_REFERENCES):
    return setting
  state = os.stat(setting)
  digest = _lines_digest(setting, state.st_size, state.st_mtime_ns)
  return f'{Path(setting).name}@{digest}'


@functools.lru_cache(maxsize=64)
def _lines_digest(path: str, size: int, changed: int) -> str:
  """A digest of a file's lines; size and time tell when it is another."""
  del size, changed
  digest = hashlib.sha256()
  for line in files.read_lines(path):
    digest.update(line.encode('utf-8', 'surrogatepass') + b'\n')
  return digest.hexdigest()[:12]


def identity(name: object, model: Any) -> dict[str, str]:
  """What tells a model apart in a signature.

  Args:
    name: What it is called.
    model: Has ``params``, a ``config`` and a ``tokenizer``.
  """
  return {
    'model': str(name),
    'checkpoint': bundles.checkpoint_hash(model.params),
    'network': bundles.network_hash(model.config),
    'vocabulary': model.tokenizer.fingerprint()[:12],
  }


def collect(values: np.ndarray, places: np.ndarray, rule: str) -> np.ndarray:
  """Scores of pairs to scores of segments.

  Args:
    values: float [P].
    places: int [N, K], from ``TextPairs``.
    rule: 'max' or 'mean' over a segment's references.

  Returns:
    float64 [N].
  """
  table = np.where(places >= 0, values[places], np.nan)
  combine = np.nanmax if rule == 'max' else np.nanmean
  return np.asarray(combine(table, axis=1)) if table.size else np.zeros(0)


def sign(settings: Mapping[str, object]) -> str:
  """`base.format_signature` with values that may hold spaces."""
  return base.format_signature(
    {k: str(v).replace('|', '_').replace(' ', '_') for k, v in settings.items()}
  )
