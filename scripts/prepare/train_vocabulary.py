r"""Trains a SentencePiece vocabulary for a small model.

    python scripts/prepare/train_vocabulary.py text.txt.gz -o vocabulary.model \
        --size 4096 --lowercase

The ids are T5's: 0 padding, 1 `</s>`, 2 unknown, no `<s>`. The same texts and
options give the same file, byte for byte, with the same version of the
sentencepiece library. It is written atomically, after `t5score_jax.data.vocab`
has loaded it.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
from collections.abc import Iterable, Iterator

import sentencepiece

from t5score_jax.data import files, vocab

#: SentencePiece silently drops longer texts, which are therefore split here.
_MAX_BYTES = 16_000
# The sums in training a unigram model depend on the distribution of texts over
# threads, so this number affects the result.
_THREADS = 4


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description='Trains a SentencePiece vocabulary for a small model.',
    epilog='The same texts and options give the same file.',
  )
  result.add_argument(
    'texts',
    nargs='+',
    metavar='TEXT',
    help='plain text, one text a line, compressed with gzip or not; '
    "'-' is standard input",
  )
  result.add_argument(
    '-o',
    '--output',
    required=True,
    metavar='FILE',
    help='the model to write, for example vocabulary.model',
  )
  result.add_argument(
    '--size',
    type=int,
    default=4096,
    metavar='N',
    help='number of pieces, without sentinels (default: %(default)s)',
  )
  result.add_argument(
    '--model-type',
    choices=('unigram', 'bpe'),
    default='unigram',
    help='the segmentation algorithm (default: %(default)s)',
  )
  result.add_argument(
    '--lowercase',
    action='store_true',
    help='fold case (the rule nmt_nfkc_cf); the model never sees capitals',
  )
  result.add_argument(
    '--byte-fallback',
    action='store_true',
    help='spell characters without a piece in bytes (256 pieces of --size '
    'are the bytes), so that nothing is unknown',
  )
  result.add_argument(
    '--coverage',
    type=float,
    default=0.9995,
    metavar='SHARE',
    help='share of the characters, by frequency, that get a piece '
    '(default: %(default)s)',
  )
  result.add_argument(
    '--extra-ids',
    type=int,
    default=0,
    metavar='N',
    help='sentinels to add at the end, for span corruption (T5 has 100; '
    'default: %(default)s)',
  )
  result.add_argument(
    '--max-texts',
    type=int,
    metavar='N',
    help='train on a random sample of this size (default: all texts)',
  )
  result.add_argument(
    '--seed',
    type=int,
    default=0,
    metavar='N',
    help='seed of the sample (default: %(default)s)',
  )
  result.add_argument('--quiet', action='store_true', help='print only errors')
  return result


def read_texts(paths: Iterable[str]) -> Iterator[str]:
  """Yields all texts that are not blank, in parts where they are too long.

  Yields:
    Texts of at most `_MAX_BYTES` bytes.
  """
  for path in paths:
    with files.open_text(path) as lines:
      for line in lines:
        if line.strip():
          yield from _parts(line)


def _parts(text: str) -> Iterator[str]:
  """Splits a text into parts of `_MAX_BYTES` bytes, at spaces if possible."""
  limit = _MAX_BYTES // 4  # characters; none takes more than four bytes
  while len(text) > limit:
    cut = text.rfind(' ', 1, limit) + 1 or limit
    yield text[:cut]
    text = text[cut:]
  if text.strip():
    yield text


def sample(texts: Iterable[str], size: int, seed: int) -> list[str]:
  """Draws a uniform sample (Vitter's algorithm R), in the texts' order."""
  generator = random.Random(seed)
  kept: list[tuple[int, str]] = []
  for index, text in enumerate(texts):
    if index < size:
      kept.append((index, text))
    elif (place := generator.randrange(index + 1)) < size:
      kept[place] = (index, text)
  return [text for _, text in sorted(kept)]


def train(
  texts: Iterable[str],
  size: int,
  *,
  model_type: str = 'unigram',
  lowercase: bool = False,
  byte_fallback: bool = False,
  coverage: float = 0.9995,
  extra_ids: int = 0,
) -> vocab.SentencePieceVocabulary:
  """Trains a vocabulary.

  Args:
    texts: The texts, none longer than SentencePiece reads.
    size: Number of pieces, without sentinels.
    model_type: `'unigram'` or `'bpe'`.
    lowercase: Whether to fold case.
    byte_fallback: Whether to spell characters without a piece in bytes.
    coverage: Share of the characters, by frequency, that become pieces.
    extra_ids: Number of sentinels at the end.

  Returns:
    The vocabulary, whose `model_bytes` is the file.

  Raises:
    ValueError: SentencePiece cannot train it, usually because the vocabulary is
      too large for the texts.
  """
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts),
      model_writer=model,
      vocab_size=size,
      model_type=model_type,
      normalization_rule_name='nmt_nfkc_cf' if lowercase else 'nmt_nfkc',
      byte_fallback=byte_fallback,
      character_coverage=coverage,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      max_sentence_length=_MAX_BYTES,
      num_threads=_THREADS,
      minloglevel=2,
    )
  except (RuntimeError, OSError) as error:
    raise ValueError(
      f'SentencePiece could not train on these texts: {error}'
    ) from error
  return vocab.SentencePieceVocabulary(model.getvalue(), extra_ids)


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  command = parser()
  args = command.parse_args(arguments)
  if args.size < 8 or args.extra_ids < 0 or not 0 < args.coverage <= 1:
    command.error(
      '--size must be at least 8, --extra-ids at least 0, and --coverage above'
      ' 0 and at most 1'
    )
  if args.max_texts is not None and args.max_texts < 1:
    command.error('--max-texts must be at least 1')
  try:
    texts: Iterable[str] = read_texts(args.texts)
    if args.max_texts:
      texts = sample(texts, args.max_texts, args.seed)
    else:
      texts = list(texts)
    if not texts:
      raise ValueError(f'{", ".join(args.texts)}: no text in there')
    vocabulary = train(
      texts,
      args.size,
      model_type=args.model_type,
      lowercase=args.lowercase,
      byte_fallback=args.byte_fallback,
      coverage=args.coverage,
      extra_ids=args.extra_ids,
    )
    with files.write_atomically(args.output, 'wb') as out:
      out.write(vocabulary.model_bytes)
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  if not args.quiet:
    ids = [i for row in vocabulary.encode_batch(texts[:10_000]) for i in row]
    words = sum(len(text.split()) for text in texts[:10_000])
    unknown = ids.count(vocabulary.unk_id) / max(len(ids), 1)
    print(
      f'{args.output}: {vocabulary.vocab_size} ids from {len(texts)} texts,'
      f' {len(ids) / max(words, 1):.2f} a word, {unknown:.3%} unknown,'
      f' fingerprint {vocabulary.fingerprint()[:12]}'
    )
  return 0


if __name__ == '__main__':
  sys.exit(main())
