r"""Converts annotated or rated pairs to arrays for training FrugalScore.

    t5score annotate pairs/ -m moverscore ... -o annotated/
    python scripts/prepare/cache_pairs.py annotated/ --tokenizer bert-tiny/ \
        --held-out-share 0.02 --standardise -o arrays/

    python scripts/prepare/cache_pairs.py --input wmt.tsv reference=ref \
        hypothesis=hyp \
        --rating da_z --tokenizer bert-tiny/ -o judged/

The first prepares phase 2 from the output of `t5score annotate` (Kamal Eddine
et al. 2022), the second phase 3 from human ratings. A folder holds `tokens.npy`
and `token_types.npy`, integers [examples, length]: hypothesis and reference as
one sequence, the longer cut first; `ratings.npy`, float32 [examples]; and
`info.json`. `datasets.ArrayDataset` reads it. With --held-out-share there are
two, OUT/train and OUT/held_out, and no source has pairs in both. Equal pairs
become one example with the mean of their ratings. OUT appears whole or not at
all, both parts at once; memory holds a few numbers a pair, no texts.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.commands import _record_files
from t5score_jax.data import folders, pair_shards, subwords
from t5score_jax.data import pairs as data_pairs
from t5score_jax.inputs import datasets

_CHUNK = 2048
TRAIN, HELD_OUT = 'train', 'held_out'
_LARGEST = float(np.finfo(np.float32).max)
ARRAYS = ('tokens', 'token_types', 'ratings')


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  result.add_argument(
    'folders',
    nargs='*',
    metavar='ANNOTATED',
    help='folders that t5score annotate wrote, with one metric',
  )
  result.add_argument(
    '--input',
    nargs='+',
    action='append',
    default=[],
    metavar=('FILE', 'NAME=VALUE'),
    help=_record_files.HELP + '. Every reference makes an example; records '
    'without the rating are left out and counted',
  )
  result.add_argument(
    '--rating',
    default='score',
    metavar='NAME',
    help='the column to learn (default: %(default)s)',
  )
  result.add_argument(
    '--tokenizer',
    required=True,
    metavar='MODEL',
    help='name or folder of the encoder that will be trained',
  )
  result.add_argument(
    '--max-length',
    type=int,
    default=128,
    metavar='N',
    help='tokens per pair, special tokens included (default: %(default)s)',
  )
  result.add_argument(
    '--standardise',
    action='store_true',
    help='ratings with mean 0 and deviation 1; info.json has what they were, '
    'of the training part',
  )
  result.add_argument(
    '--swap',
    action='store_true',
    help='every pair the other way round as well; an error unless annotate '
    'found the metric symmetric',
  )
  result.add_argument(
    '--held-out-share',
    type=float,
    default=0.0,
    metavar='X',
    help='of the sources, for a second folder (default: none)',
  )
  result.add_argument(
    '--seed',
    type=int,
    default=0,
    metavar='N',
    help='seed of the held-out part (default: %(default)s)',
  )
  result.add_argument(
    '-o',
    '--output',
    required=True,
    type=pathlib.Path,
    metavar='OUT',
    help='the folder to be made; it must not be there, see --overwrite',
  )
  result.add_argument(
    '--overwrite',
    action='store_true',
    help='replace the folder if it exists and holds such arrays alone, in one '
    'part or two',
  )
  return result


@dataclasses.dataclass(frozen=True)
class Example:
  """A pair with its rating; `source` identifies its source."""

  hypothesis: str
  reference: str
  rating: float
  source: str


class Annotated:
  """The pairs of folders that one metric annotated."""

  def __init__(self, folders: Sequence[str], rating: str):
    """Checks that the folders are complete and of the same metric."""
    self._rating = rating
    self._shards = {f: pair_shards.complete(f, 'annotations') for f in folders}
    found = {f: pair_shards.manifest(f, 'annotations') for f in folders}
    for folder, manifest in found.items():
      if manifest['identity']['rating'] != rating:
        raise ValueError(
          f'{folder}: its scores are called '
          f'{manifest["identity"]["rating"]!r}; give --rating'
        )
    signatures = {m['identity']['signature'] for m in found.values()}
    if len(signatures) > 1:
      raise ValueError(
        'the folders were annotated by unlike metrics: '
        + ' and '.join(sorted(signatures))
      )
    self.signature = signatures.pop()
    self.symmetric = all(m.get('symmetric') for m in found.values())

  def __iter__(self) -> Iterator[Example]:
    for folder, shards in self._shards.items():
      for number, shard in enumerate(shards):
        rows = pair_shards.read_rows(folder, number, shard['sha256'])
        for line, row in enumerate(rows, 1):
          ids = [row.get(k) for k in ('language_pair', 'document', 'segment')]
          rating = row[self._rating]
          if not _fits(rating):
            name = pair_shards.shard_name(number)
            raise _too_large(rating, f'{folder}/{name}, line {line}')
          yield Example(row['hypothesis'], row['reference'], rating, str(ids))


class Judged:
  """The rated records of files."""

  signature = None
  symmetric = False

  def __init__(self, files: Sequence[Sequence[str]], rating: str):
    """Stores the file names; files are read on iteration."""
    self._rating = rating
    self._files = [_record_files.parse(words, '--input') for words in files]
    self.left_out = 0

  def __iter__(self) -> Iterator[Example]:
    self.left_out = 0
    for file in self._files:
      for number, s in enumerate(file.segments([self._rating]), 1):
        if self._rating not in s.ratings or not s.references:
          self.left_out += 1
          continue
        rating = s.ratings[self._rating]
        if not _fits(rating):
          chosen = ' of those chosen' if file.where else ''
          raise _too_large(rating, f'{file.path}, record {number}{chosen}')
        shared = s.source or s.references[0]
        # Files may number segments per system: the text identifies them.
        source = str([s.language_pair, shared])
        for reference in s.references:
          yield Example(s.hypothesis, reference, rating, source)


def _fits(rating: float) -> bool:
  return abs(rating) <= _LARGEST


def _too_large(rating: float, place: str) -> ValueError:
  return ValueError(
    f'{place}: the rating {rating:g} is beyond single precision; correct it, '
    'or leave the row out'
  )


@dataclasses.dataclass(frozen=True)
class Plan:
  """The treatment of each row of a source of examples.

  Attributes:
    first: bool [rows], the first of equal pairs.
    ratings: float64 [rows], the mean over equal pairs.
    held_out: bool [rows].
  """

  first: np.ndarray
  ratings: np.ndarray
  held_out: np.ndarray


def plan(examples: Iterable[Example], share: float, seed: int) -> Plan:
  """Reads all examples once: duplicates, means and the held-out part.

  Raises:
    ValueError: There are no examples.
  """
  keys, ratings, even = [], [], []
  for example in examples:
    # A length keeps ('a', 'bc') and ('ab', 'c') apart.
    joined = f'{len(example.hypothesis)} {example.hypothesis}'
    keys.append(data_pairs.text_key(joined + example.reference))
    ratings.append(example.rating)
    name = f'{seed} {example.source}'.encode()
    even.append(hashlib.blake2b(name, digest_size=4).digest())
  if not keys:
    raise ValueError('there is no example with this rating')
  _, first, group = np.unique(
    np.frombuffer(b''.join(keys), np.uint64),
    return_index=True,
    return_inverse=True,
  )
  means = np.bincount(group, ratings) / np.bincount(group)
  is_first = np.zeros(len(keys), bool)
  is_first[first] = True
  numbers = np.frombuffer(b''.join(even), np.uint32)
  # Equal pairs count as the first of them.
  held_out = (numbers < share * 2**32)[first][group]
  return Plan(is_first, means[group], held_out)


class Tokens:
  """Pairs of texts as rows of ids, padded."""

  def __init__(self, folder: pathlib.Path, max_length: int):
    """Loads the tokenizer and its padding id."""
    self._tokenizer = subwords.load_tokenizer(folder)
    self.max_length = max_length
    self.pad_id = 0
    if (folder / encoders.CONFIG_FILE).is_file():
      self.pad_id = encoders.read_config(folder).pad_id
    self.vocab_size = self._tokenizer.vocab_size
    self.fingerprint = self._tokenizer.fingerprint()
    self.dtype = np.dtype(np.int16 if self.vocab_size <= 2**15 else np.int32)
    self.cut = 0

  def __call__(
    self, pairs: Sequence[tuple[str, str]]
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns token ids and types, [pairs, max_length] each."""
    shape = len(pairs), self.max_length
    tokens = np.full(shape, self.pad_id, self.dtype)
    types = np.zeros(shape, np.int8)
    found = self._tokenizer.encode_pairs(pairs, self.max_length)
    for row, encoded in enumerate(found):
      tokens[row, : len(encoded.ids)] = encoded.ids
      types[row, : len(encoded.ids)] = encoded.types
      self.cut += encoded.cut
    return tokens, types


def write(
  folder: pathlib.Path,
  examples: Iterable[Example],
  keep: np.ndarray,
  ratings: np.ndarray,
  tokens: Tokens,
  info: dict[str, Any],
  swap: bool = False,
) -> dict[str, Any]:
  """Writes one folder of arrays.

  Args:
    folder: A new folder.
    examples: All examples, in the order of `keep`.
    keep: bool [rows], the rows to write.
    ratings: [rows], the target values.
    tokens: The tokenizer.
    info: Further content of `info.json`.
    swap: Whether to write each pair in both orders, one after the other.

  Returns:
    The content of `info.json`.
  """
  count = int(keep.sum()) * (2 if swap else 1)
  shape = count, tokens.max_length
  shapes = {
    'tokens': (tokens.dtype, shape),
    'token_types': (np.dtype(np.int8), shape),
    'ratings': (np.dtype(np.float32), shape[:1]),
  }
  folder.mkdir(exist_ok=True)
  arrays = {
    name: np.lib.format.open_memmap(
      folder / f'{name}.npy', 'w+', dtype=dtype, shape=found
    )
    for name, (dtype, found) in shapes.items()
  }
  arrays['ratings'][:] = np.repeat(ratings[keep], 2 if swap else 1)
  tokens.cut, place = 0, 0
  wanted = itertools.compress(examples, keep)
  while chunk := list(itertools.islice(wanted, _CHUNK)):
    texts = [(e.hypothesis, e.reference) for e in chunk]
    if swap:
      texts = [order for pair in texts for order in (pair, pair[::-1])]
    part = slice(place, place + len(texts))
    arrays['tokens'][part], arrays['token_types'][part] = tokens(texts)
    place += len(texts)
  if place != count:
    raise ValueError('the files changed while they were read: run it again')
  for array in arrays.values():
    array.flush()
  info = {
    **info,
    'examples': count,
    'cut': tokens.cut,
    'arrays': {name: str(dtype) for name, (dtype, _) in shapes.items()},
  }
  text = json.dumps(info, indent=2, ensure_ascii=False)
  (folder / datasets.INFO_FILE).write_text(text + '\n', 'utf-8')
  return info


def check_output(folder: pathlib.Path, overwrite: bool) -> None:
  """Checks that a folder may be created or replaced, before the work.

  Args:
    folder: The folder.
    overwrite: Whether to replace arrays that this program wrote, in one part or
      two.

  Raises:
    FileExistsError: The name is taken (with `overwrite`: by something other
      than such arrays).
  """
  if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
    return
  if not overwrite:
    raise FileExistsError(f'{folder}: is there already (see --overwrite)')
  if strange := _strange(folder):
    raise FileExistsError(
      f'{folder}: is left as it is, for {strange} is none of the arrays that '
      'this program writes; choose another name'
    )


def _strange(folder: pathlib.Path) -> pathlib.Path | None:
  """The first file that this program would not have written there, if any."""
  if not folder.is_dir():
    return folder
  known = {*(f'{name}.npy' for name in ARRAYS), datasets.INFO_FILE}
  for path in sorted(folder.iterdir()):
    if path.name in (TRAIN, HELD_OUT) and path.is_dir():
      for inner in sorted(path.iterdir()):
        if inner.name not in known or not inner.is_file():
          return inner
    elif path.name not in known or not path.is_file():
      return path
  return None


def _examples(args: argparse.Namespace) -> Annotated | Judged:
  """The examples that the command line names.

  Raises:
    ValueError: No input, both kinds of input, or a metric that is not
      symmetric.
  """
  if bool(args.folders) == bool(args.input):
    raise ValueError('give either folders of t5score annotate, or --input')
  found = (
    Annotated(args.folders, args.rating)
    if args.folders
    else Judged(args.input, args.rating)
  )
  if args.swap and not found.symmetric:
    raise ValueError(
      '--swap: the scores are not symmetric, as far as is known (a manifest '
      'says so once `t5score annotate` was run again; ratings by people are '
      'not)'
    )
  return found


def _cache(args: argparse.Namespace) -> None:
  check_output(args.output, args.overwrite)
  examples = _examples(args)
  tokens = Tokens(kinds.folder(args.tokenizer), args.max_length)
  found = plan(examples, args.held_out_share, args.seed)
  train = found.first & ~found.held_out
  parts = {'': train}
  if args.held_out_share:
    parts = {TRAIN: train, HELD_OUT: found.first & found.held_out}
  for name, keep in parts.items():
    if not keep.any():
      raise ValueError(
        f'{args.output / name}: no example; change --held-out-share'
      )
  mean = float(found.ratings[train].mean())
  deviation = float(found.ratings[train].std())
  ratings = found.ratings
  if args.standardise:
    if not deviation > 0:
      raise ValueError(f'--standardise: all ratings are {mean}')
    ratings = (ratings - mean) / deviation
  info = {
    'rating': args.rating,
    'signature': examples.signature,
    'tokenizer': tokens.fingerprint,
    'vocab_size': tokens.vocab_size,
    'pad_id': tokens.pad_id,
    'max_length': args.max_length,
    'mean': mean,
    'deviation': deviation,
    'standardised': args.standardise,
    'swapped': args.swap,
    'seed': args.seed,
  }
  if isinstance(examples, Judged) and examples.left_out:
    print(f'{examples.left_out} records left out: no rating or no reference')
  # Resolved: if the name is a link, its target is replaced.
  with folders.new_folder(args.output.resolve()) as temporary:
    written = {
      name: write(
        temporary / name, examples, keep, ratings, tokens, info, args.swap
      )
      for name, keep in parts.items()
    }
  for name, one in written.items():
    print(
      f'{args.output / name}: {one["examples"]} examples, {one["cut"]} of them '
      f'cut; mean {mean:.4f}, deviation {deviation:.4f}'
    )


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  command = parser()
  args = command.parse_args(arguments)
  if args.max_length < 8:
    command.error(f'--max-length {args.max_length}: at least 8')
  if not 0 <= args.held_out_share < 1:
    command.error(f'--held-out-share {args.held_out_share}: from 0, below 1')
  try:
    _cache(args)
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
