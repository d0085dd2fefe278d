"""What `t5score mine` and `t5score remap` share: corpora, filters, encoders.

Not a verb by itself (hence the underscore).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5score_jax.commands import _usage
from t5score_jax.data import files, runs
from t5score_jax.errors import UsageError

if TYPE_CHECKING:
  from t5score_jax.crosslingual import mining
  from t5score_jax.inference import encoding

_MANIFEST = 'mining.json'
# Seconds between lines of progress.
_EVERY = 30.0


def add_corpora(parser: argparse.ArgumentParser, required: bool = True) -> None:
  """Declares two monolingual files and their filters."""
  group = parser.add_argument_group('corpora')
  for side in ('source', 'target'):
    group.add_argument(
      f'--{side}s',
      required=required,
      metavar='FILE',
      help=f'{side} sentences, one per line; may be compressed (.gz)',
    )
  for side in ('source', 'target'):
    group.add_argument(
      f'--{side}-language',
      default='',
      metavar='CODE',
      help='ISO 639-1 code, for example de: sentences that are identified as '
      'another language are dropped (default: all are kept)',
    )
  group.add_argument(
    '--min-tokens',
    type=_usage.count,
    default=3,
    metavar='N',
    help='drop shorter sentences (default: %(default)s)',
  )
  group.add_argument(
    '--max-tokens',
    type=_usage.positive,
    default=30,
    metavar='N',
    help='drop longer sentences (default: %(default)s)',
  )
  group.add_argument(
    '--max-overlap',
    type=_usage.fraction,
    default=0.5,
    metavar='SHARE',
    help='drop pairs whose texts are more similar by edit distance, 0 to 1 '
    '(default: %(default)s)',
  )


def add_encoder(
  parser: argparse.ArgumentParser,
  layer: str = 'hidden states that are compared; 0 the embeddings (default: '
  'the last layer)',
) -> argparse._ArgumentGroup:
  """Declares the encoder and how it runs; returns the group.

  Args:
    parser: The verb's parser.
    layer: Help of --layer.
  """
  group = parser.add_argument_group('encoder')
  group.add_argument(
    '-m',
    '--model',
    required=True,
    metavar='ENCODER',
    help='a folder of a multilingual encoder as Hugging Face saves it, or the '
    'name of an installed one (e5-small)',
  )
  group.add_argument(
    '--layer',
    type=int,
    default=-1,
    metavar='N',
    help=layer,
  )
  group.add_argument(
    '--batch-tokens',
    type=_usage.positive,
    metavar='N',
    help='tokens per batch on one device; bounds memory only',
  )
  group.add_argument(
    '--dtype',
    choices=('float32', 'bfloat16'),
    default='float32',
    help='of the computation (default: %(default)s)',
  )
  group.add_argument(
    '--backend',
    choices=('auto', 'faiss', 'jax', 'approximate'),
    default='auto',
    help='search by faiss on the host or by JAX on its devices; approximate: '
    'by JAX with a recall of about 0.95 (default: faiss on CPUs)',
  )
  return group


def add_output(
  parser: argparse.ArgumentParser, what: str, metavar: str = 'FILE'
) -> None:
  """Declares the output and the work folder."""
  group = parser.add_argument_group('output')
  group.add_argument(
    '-o', '--output', required=True, metavar=metavar, help=what
  )
  group.add_argument(
    '--work',
    metavar='FOLDER',
    help='folder of encoded sentences (default: OUTPUT.work, removed at the '
    'end; a folder that is named here is kept)',
  )
  group.add_argument('--quiet', action='store_true', help='print errors only')


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The sentences of a file that pass the filters.

  Attributes:
    texts: N sentences.
    lines: Their line numbers from 1, int [N].
  """

  texts: list[str]
  lines: list[int]


def read_corpora(
  args: argparse.Namespace, say: Callable[[str], None]
) -> tuple[Corpus, Corpus]:
  """Reads and filters the sources and the targets."""
  from t5score_jax.crosslingual import filters

  if args.min_tokens > args.max_tokens:
    raise UsageError('--min-tokens is larger than --max-tokens')
  sides: list[Corpus] = []
  for side in ('source', 'target'):
    path = getattr(args, f'{side}s')
    texts = [text.strip() for text in files.read_lines(path)]
    found = filters.sentences(
      texts,
      getattr(args, f'{side}_language'),
      args.min_tokens,
      args.max_tokens,
    )
    dropped = ', '.join(
      f'{count} {reason}' for reason, count in sorted(found.dropped.items())
    )
    say(
      f'{path}: {len(found.lines)} of {len(texts)} sentences'
      + (f' (dropped: {dropped})' if dropped else '')
    )
    sides.append(
      Corpus(
        [texts[line] for line in found.lines],
        [line + 1 for line in found.lines],
      )
    )
  return sides[0], sides[1]


def load_encoder(
  args: argparse.Namespace, layers: Callable[[int], Sequence[int]]
) -> tuple[encoding.TextEncoder, str, str]:
  """Loads the encoder.

  Args:
    args: The parsed arguments.
    layers: Returns the layers to compute, given their number.

  Returns:
    The `TextEncoder`, and its bundle's name and digest.
  """
  from t5score_jax.checkpoints import bundle as bundles
  from t5score_jax.checkpoints import kinds
  from t5score_jax.checkpoints.formats.huggingface import encoders
  from t5score_jax.crosslingual import neighbours
  from t5score_jax.inference import encoding

  # Report a missing backend now, not after hours of encoding.
  neighbours.resolve(args.backend)
  bundle = encoders.load_encoder(kinds.folder(args.model))
  encoder = encoding.TextEncoder(
    bundle,
    layers(bundle.config.num_layers),
    batch_tokens=args.batch_tokens,
    dtype=args.dtype,
  )
  return encoder, bundle.name, bundles.checkpoint_hash(bundle.params)


@contextlib.contextmanager
def work_folder(
  path: Path, identity: dict[str, Any], keep: bool
) -> Iterator[Path]:
  """Yields a run's folder, and removes it after success unless `keep`.

  Raises:
    runs.RunError: It belongs to another run.
  """
  runs.claim(path, _MANIFEST, identity, 'choose another --work or remove it')
  yield path
  if not keep:
    shutil.rmtree(path)


def identity(
  args: argparse.Namespace, checkpoint: str, layer: int
) -> dict[str, Any]:
  """Everything on which encoded vectors and mined pairs depend."""
  from t5score_jax.crosslingual import corpus

  return {
    'shard': corpus.SHARD,
    'files': [
      {'file': path, 'sha256': runs.digest(path)}
      for path in (args.sources, args.targets)
    ],
    'languages': [args.source_language, args.target_language],
    'tokens': [args.min_tokens, args.max_tokens],
    'checkpoint': checkpoint,
    'layer': layer,
    'dtype': args.dtype,
    'backend': args.backend,
  }


class Reporter:
  """Prints a line of progress every half minute."""

  def __init__(self, say: Callable[[str], None]):
    self._say = say
    self._last = time.monotonic()

  def __call__(self, step: str, done: int, total: int) -> None:
    """Reports that `done` of `total` sentences are through a step."""
    now = time.monotonic()
    if now - self._last > _EVERY:
      self._last = now
      self._say(f'{step}: {done} of {total}')


def write_pairs(
  path: str, pairs: mining.Pairs, sources: Corpus, targets: Corpus
) -> None:
  """Writes mined pairs as JSON lines, the best first."""

  def lines() -> Iterator[str]:
    for source, target, score in zip(
      pairs.sources, pairs.targets, pairs.scores, strict=True
    ):
      row = {
        'source': sources.texts[source],
        'target': targets.texts[target],
        'score': round(float(score), 6),
        'source_line': sources.lines[source],
        'target_line': targets.lines[target],
      }
      yield json.dumps(row, ensure_ascii=False)

  files.write_lines(path, lines())
