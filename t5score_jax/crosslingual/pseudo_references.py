"""Pseudo references: translations of sources, to compare hypotheses with.

UScore (Belouadi and Eger 2023, section 3.1) translates the source and compares
the hypothesis with the translation, in one language. The translations come from
a T5 model, for example one trained by `fitting/translator.py`, or from the
user's file. Not here: the comparison (`metrics/wmd.py`), translating files in
bulk (`t5score infer`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import loading
from t5score_jax.data import translations
from t5score_jax.data.files import RecordError
from t5score_jax.errors import InputError, OptionError
from t5score_jax.inference import generation, search

#: Columns of a translations file, from the user or from `t5score infer`.
COLUMNS = (('source', 'translation'), ('inputs', 'prediction'))

# Maximum characters of a source in a message.
_SHOWN = 60

# Called with the number of sources done and their total.
Progress = Callable[[int, int], None]


class PseudoReferences:
  """Translations of sources, by a model or from a file.

  Nothing is cached between calls; within a call each distinct source is
  translated once. A source with only white space has an empty translation.

  Attributes:
    truncated: Number of distinct sources of the last call that exceeded the
      model's maximum length and were truncated.
  """

  def __init__(
    self,
    origin: str | os.PathLike[str],
    *,
    beams: int = 1,
    max_tokens: int = 128,
    **options: Any,
  ):
    """Loads the model, or reads the file.

    Args:
      origin: The name or folder of a T5 model that translates; or a file, TSV
        with a header or JSONL, with `source` and `translation` (or `inputs`
        and `prediction`, as `t5score infer` writes). Sources in a file are
        matched without regard to the amount of white space.
      beams: Beam width of the model; 1 means greedy search.
      max_tokens: Maximum number of tokens of a translation, `</s>` included.
      **options: Options of `inference.placement.Placed`, for a model.

    Raises:
      FileNotFoundError: There is no such file or model.
      RecordError: The file is malformed, or has two different translations of
        a source.
      OptionError: A value is out of range, or beams are set for a file.
    """
    self.truncated = 0
    self._file: Mapping[str, str] | None = None
    if Path(origin).is_file():
      if beams != 1:
        raise OptionError(
          f'beams {beams}: the translations in {origin} are given; beams are '
          'for a model'
        )
      self._path = Path(origin)
      self._file = _read(self._path)
      return
    bundle = loading.load_model(origin)
    method = search.Method(max_tokens=max_tokens, beams=beams)
    self._generator = generation.Generator(bundle, method, **options)
    self._lowercase = bool(bundle.settings.get('lowercase'))
    name = bundle.settings.get('name') or Path(origin).name
    checkpoint = bundles.checkpoint_hash(bundle.params)
    self._identity = {
      'pseudo': f'{name}@{checkpoint}',
      'pseudo_network': bundles.network_hash(bundle.config),
      'pseudo_vocabulary': bundle.vocabulary.fingerprint()[:12],
      'pseudo_beams': str(beams),
      'pseudo_tokens': f'{self._generator.max_length}-{max_tokens}',
    }

  def identity(self) -> dict[str, str]:
    """Returns what the translations depend on, for signatures.

    Returns:
      `pseudo`, the model's or the file's name with twelve digits of a SHA-256
      of its weights or its translations; for a model also the digests of
      network and vocabulary, the beams, and the tokens read and written.
    """
    if self._file is None:
      return dict(self._identity)
    sha256 = hashlib.sha256()
    for source, translation in sorted(self._file.items()):
      for text in (source, translation):
        sha256.update(text.encode('utf-8', 'surrogatepass') + b'\n')
    return {'pseudo': f'{self._path.name}@{sha256.hexdigest()[:12]}'}

  def __call__(
    self, sources: Sequence[str], progress: Progress | None = None
  ) -> list[str]:
    """Translates sources.

    Args:
      sources: N sources.
      progress: Called with the number of distinct sources that a model has
        translated.

    Returns:
      N translations, some of which may be empty.

    Raises:
      InputError: The file lacks a source.
      ScoringError: The model's probabilities are not finite.
    """
    self.truncated = 0
    distinct = [text for text in dict.fromkeys(sources) if text.strip()]
    if self._file is not None:
      found = self._look_up(distinct, self._file)
    else:
      found = self._translate(distinct, progress)
    made = dict(zip(distinct, found, strict=True))
    return [made.get(text, '') for text in sources]

  def _look_up(
    self, sources: Sequence[str], file: Mapping[str, str]
  ) -> list[str]:
    missing = [text for text in sources if _key(text) not in file]
    if missing:
      raise InputError(
        f'{self._path}: has no translation of {_shown(missing[0])}'
        + (f' and {len(missing) - 1} other sources' if missing[1:] else '')
      )
    return [file[_key(text)] for text in sources]

  def _translate(
    self, sources: Sequence[str], progress: Progress | None
  ) -> list[str]:
    if not sources:
      return []
    inputs = [text.lower() for text in sources] if self._lowercase else sources
    made = self._generator.generate(inputs, progress)
    self.truncated = made.truncated
    return [outputs[0].text for outputs in made.outputs]


def _read(path: Path) -> dict[str, str]:
  """Reads translations by source from a file."""
  found: dict[str, str] = {}
  for line, source, translation in translations.read(path, *COLUMNS):
    if found.setdefault(_key(source), translation) != translation:
      raise RecordError(
        f'another translation of {_shown(source)} than above; remove one',
        path=path,
        line=line,
      )
  return found


def _key(source: str) -> str:
  return ' '.join(source.split())


def _shown(source: str) -> str:
  return repr(source if len(source) <= _SHOWN else f'{source[:_SHOWN]}...')
