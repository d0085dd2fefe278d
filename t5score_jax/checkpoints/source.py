"""The model interface between readers and writers of formats.

A format is a module, listed in `checkpoints/registry.py`, that reads

    open_source(path, options) -> Source

and, if it can be written, writes into an existing empty folder

    write(source, folder, *, dtype, max_shard_bytes) -> None

A `Source` has its weights under T5X's names, joined by '/'
('encoder/layers_0/attention/query/kernel' [embed, joined_kv]), in T5X's
layouts, and reads them lazily. `checkpoints/layouts.py` lists the names and
shapes of a network and stacks layers for scanned ones. Not here: the layout of
any particular format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5score_jax.checkpoints.weights import CheckpointError, Weights
from t5score_jax.data import vocab

if TYPE_CHECKING:
  from t5score_jax.nn.t5 import T5Config


class ContradictionError(CheckpointError):
  """An option contradicts the checkpoint itself."""

  exit_code = 2


@dataclasses.dataclass(frozen=True)
class Options:
  """What the user states in case a checkpoint's files do not; all optional.

  Options must not contradict the files (`check_options`).

  Attributes:
    activation: Activation of the feed-forward blocks (of the gate, if gated),
      such as 'gelu' or 'relu'.
    vocabulary: 'bytes' or the path of a SentencePiece model.
  """

  activation: str | None = None
  vocabulary: str | None = None


@dataclasses.dataclass(frozen=True)
class Source:
  """A model in any location and format.

  Attributes:
    config: The network; `scan_layers` says how `weights` are laid out, which
      is how they are stored (`layouts.relayout` changes it).
    weights: LazyArrays by name, of exactly the names and shapes of
      `layouts.parameter_shapes(config)`.
    vocabulary: None if it is unknown.
    settings: See `Bundle.settings`.
    provenance: Origin, JSON-serialisable: 'format',
      'path' and 'step' if there is one.
    notes: Assumptions, one sentence each, for the user.
  """

  config: T5Config
  weights: Weights
  vocabulary: vocab.Vocabulary | None = None
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  notes: tuple[str, ...] = ()

  @property
  def size(self) -> int:
    """Number of parameters."""
    return sum(array.size for array in self.weights.values())

  def need_vocabulary(self) -> vocab.Vocabulary:
    """The vocabulary.

    Raises:
      CheckpointError: It isn't known.
    """
    if self.vocabulary is None:
      raise CheckpointError(
        f'{self.provenance.get("path", "the checkpoint")}: nothing says which '
        f'vocabulary its {self.config.vocab_size} ids are of: give '
        '--vocabulary, the path of a SentencePiece model or `bytes`'
      )
    return self.vocabulary


def choose_vocabulary(
  spec: str | None, config: T5Config, *folders: Path
) -> tuple[vocab.Vocabulary | None, tuple[str, ...]]:
  """The vocabulary named, found in a folder, or implied by the network's size.

  Args:
    spec: As `Options.vocabulary`.
    config: 384 rows without a file mean ByT5's bytes.
    *folders: Each may hold `vocabulary.model` or `spiece.model`.

  Returns:
    The vocabulary, None if it is unknown, and what was assumed.

  Raises:
    CheckpointError: No such file, not a vocabulary, or one of too many ids.
  """
  notes: tuple[str, ...] = ()
  if spec is None:
    names = ('vocabulary.model', 'spiece.model')
    places = [folder / name for folder in folders for name in names]
    spec = next((str(place) for place in places if place.is_file()), None)
  if spec is None and config.vocab_size == 384:
    spec = 'bytes'
    notes = (
      'vocabulary bytes: assumed, as there are 384 ids and no vocabulary.model '
      '(--vocabulary says otherwise)',
    )
  if spec is None:
    return None, ()
  found = _load_vocabulary(spec)
  if found.vocab_size > config.vocab_size:
    raise CheckpointError(
      f'the vocabulary {spec} has {found.vocab_size} ids, the network only '
      f'{config.vocab_size}: they do not belong together'
    )
  return found, notes


def check_options(
  options: Options,
  config: T5Config,
  vocabulary: vocab.Vocabulary | None,
  place: Path,
) -> None:
  """Checks that options, if given, agree with a checkpoint.

  Args:
    options: The user's.
    config: The checkpoint's network.
    vocabulary: The checkpoint's, None if it names none. Sentinels, which a file
      may lack, are not compared.
    place: The checkpoint, for the message.

  Raises:
    ContradictionError: They differ.
    CheckpointError: `options.vocabulary` names no vocabulary.
  """
  activation = config.mlp_activations[0]
  if options.activation not in (None, activation):
    raise ContradictionError(
      f'--activation {options.activation}: {place} says {activation}; leave '
      'the option out'
    )
  if options.vocabulary is None or vocabulary is None:
    return
  if _pieces(_load_vocabulary(options.vocabulary)) != _pieces(vocabulary):
    raise ContradictionError(
      f'--vocabulary {options.vocabulary}: {place} says {vocabulary}, with '
      'which the network was trained; leave the option out'
    )


def _load_vocabulary(spec: str) -> vocab.Vocabulary:
  try:
    return vocab.load_vocabulary(spec)
  except (OSError, ValueError) as error:
    raise CheckpointError(str(error)) from error


def _pieces(vocabulary: vocab.Vocabulary) -> bytes:
  """What defines a vocabulary, except its sentinels."""
  if isinstance(vocabulary, vocab.SentencePieceVocabulary):
    return vocabulary.bare_model_bytes
  return b''
