r"""Makes arrays of groups from records, for training without TensorFlow.

    python scripts/prepare/cache_groups.py groups.jsonl --vocabulary \
        vocabulary.model \
        -o arrays --name train --size 4 --lengths 40,72,128

A group is a reference with its hypotheses. Each becomes one example of
`t5score.ParaphraseModel` or `t5score.GroupModel`, in the bucket of its longest
text: the folder `NAME_SIZE_LENGTH` of --output holds `shared_tokens` [N, L],
`hypothesis_tokens` [N, G, L], `ratings` [N, G] and `group_mask` [N, G].
Groups of one hypothesis have their own buckets (G = 1); larger groups are
divided into parts of at most --size. `inputs/bucketing.py` reads these folders.

For corpora that SeqIO reads use scripts/prepare/cache_batches.py.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t5score_jax.data import records, vocab
from t5score_jax.inputs import datasets

_UNRATED = 0.0


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  result.add_argument('records', help='TSV or JSONL, as t5score reads them')
  result.add_argument(
    '--vocabulary',
    required=True,
    metavar='FILE',
    help="SentencePiece model, 'bytes', or a model's name or folder",
  )
  result.add_argument(
    '-o',
    '--output',
    required=True,
    type=pathlib.Path,
    metavar='FOLDER',
    help='folder that gets a folder of arrays for each bucket',
  )
  result.add_argument(
    '--name',
    default='train',
    help='prefix of the folders (default: %(default)s)',
  )
  result.add_argument(
    '--size',
    type=int,
    default=8,
    metavar='G',
    help='hypotheses per example (default: %(default)s)',
  )
  result.add_argument(
    '--lengths',
    default='40,72,128',
    metavar='L,...',
    help='lengths of the buckets in tokens, </s> included; longer texts are '
    'cut to the last (default: %(default)s)',
  )
  result.add_argument(
    '--rating',
    metavar='NAME',
    help='leave out hypotheses without this rating, and groups of one; '
    'without it no rating is read and all texts are used',
  )
  result.add_argument(
    '--seed',
    type=int,
    default=0,
    help='seed of the division of larger groups (default: %(default)s)',
  )
  return result


def read_groups(
  path: str, rating: str | None, size: int, seed: int
) -> tuple[list[tuple[str, list[str], list[float]]], int]:
  """Groups records by segment and reference, in parts of at most `size`.

  Returns:
    (reference, hypotheses, ratings) of each part; and the number of records
    without a reference.
  """
  groups: dict[tuple[str | None, str], list[records.Segment]] = {}
  without = 0
  ratings = (rating,) if rating else ()
  for segment in records.read_records(path, ratings=ratings):
    if not segment.references:
      without += 1
    elif rating is None or rating in segment.ratings:
      key = segment.segment, segment.references[0]
      groups.setdefault(key, []).append(segment)
  generator = np.random.default_rng(seed)
  parts = []
  for (_, reference), members in groups.items():
    if rating is not None and len(members) < 2:
      continue
    order = generator.permutation(len(members))
    # Parts of nearly equal size: 9 with at most 4 become 3 + 3 + 3.
    for chosen in np.array_split(order, -(-len(members) // size)):
      parts.append(
        (
          reference,
          [members[i].hypothesis for i in chosen],
          [
            members[i].ratings.get(rating, _UNRATED) if rating else _UNRATED
            for i in chosen
          ],
        )
      )
  return parts, without


def tokenize(
  parts: Sequence[tuple[str, list[str], list[float]]],
  vocabulary: vocab.Vocabulary,
  max_length: int,
) -> tuple[list[list[list[int]]], int]:
  """Token ids of each part's texts, the reference first; and the number cut."""
  texts = [text for shared, hyps, _ in parts for text in (shared, *hyps)]
  ids, cut = vocab.encode_batch_for_model(texts, vocabulary, max_length)
  rows = iter(ids)
  encoded = [
    [list(next(rows)) for _ in range(1 + len(hyps))] for _, hyps, _ in parts
  ]
  return encoded, int(np.sum(cut))


def buckets(
  parts: Sequence[tuple[str, list[str], list[float]]],
  encoded: Sequence[list[list[int]]],
  lengths: Sequence[int],
  size: int,
) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
  """Yields (group size, length, arrays) of each bucket that is not empty."""
  longest = np.array([max(map(len, rows)) for rows in encoded])
  place = np.searchsorted(lengths, longest)
  single = np.array([len(rows) == 2 for rows in encoded])
  for width, chosen_size in ((1, single), (size, ~single)):
    for index, length in enumerate(lengths):
      members = np.flatnonzero(chosen_size & (place == index))
      if not len(members):
        continue
      tokens = np.zeros((len(members), 1 + width, length), np.int32)
      values = np.zeros((len(members), width), np.float32)
      mask = np.zeros((len(members), width), np.float32)
      for row, member in enumerate(members.tolist()):
        for column, ids in enumerate(encoded[member]):
          tokens[row, column, : len(ids)] = ids
        ratings = parts[member][2]
        values[row, : len(ratings)] = ratings
        mask[row, : len(ratings)] = 1.0
      small = tokens.max() < 2**16
      tokens = tokens.astype(np.uint16) if small else tokens
      yield (
        width,
        length,
        {
          'shared_tokens': tokens[:, 0],
          'hypothesis_tokens': tokens[:, 1:],
          'ratings': values,
          'group_mask': mask,
        },
      )


def write_folder(
  folder: pathlib.Path, arrays: dict[str, np.ndarray], info: dict[str, Any]
) -> None:
  """Writes a folder of arrays, replacing an earlier one."""
  with datasets.new_array_folder(folder, overwrite=True) as temporary:
    for key, array in arrays.items():
      np.save(temporary / f'{key}.npy', array)
    (temporary / datasets.INFO_FILE).write_text(
      json.dumps(info, indent=2) + '\n', 'utf-8'
    )


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  command = parser()
  args = command.parse_args(arguments)
  try:
    lengths = sorted({int(part) for part in args.lengths.split(',')})
  except ValueError:
    command.error(f'--lengths {args.lengths}: use whole numbers, as 40,72,128')
  if lengths[0] < 2 or args.size < 1:
    command.error('--lengths must be at least 2 and --size at least 1')
  try:
    vocabulary = vocab.load_vocabulary(args.vocabulary)
    parts, without = read_groups(
      args.records, args.rating, args.size, args.seed
    )
    if not parts:
      raise ValueError(f'{args.records}: no group that fits')
    encoded, cut = tokenize(parts, vocabulary, lengths[-1])
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  info = {
    'records': args.records,
    'rating': args.rating,
    'vocabulary': vocabulary.fingerprint(),
  }
  for width, length, arrays in buckets(parts, encoded, lengths, args.size):
    folder = args.output / f'{args.name}_{width}_{length}'
    try:
      write_folder(folder, arrays, info)
    except OSError as error:
      print(f'error: {error}', file=sys.stderr)
      return 1
    real = int(np.count_nonzero(arrays['hypothesis_tokens']))
    print(
      f'{folder}: {len(arrays["ratings"])} groups, '
      f'{int(arrays["group_mask"].sum())} hypotheses, {real} tokens '
      f'({real / arrays["hypothesis_tokens"].size:.0%} of the array)'
    )
  print(f'{cut} texts cut to {lengths[-1]}; {without} without a reference')
  return 0


if __name__ == '__main__':
  sys.exit(main())
