r"""Creates the initial encoder of a FrugalScore miniature.

    python scripts/reproduce/initial_miniature.py ENCODER -o initial \
        --texts pairs/texts.txt.gz --width 128 --vocabulary 8000

From an encoder of the BERT family, such as the teacher's:

  truncated   (--start truncated) its embeddings and first --layers layers
  matching    (--start matching, for any width) weights that compare words
              (`scripts/reproduce/matching_init.py`). Word similarity comes
              from the encoder: the mean state of each piece over the texts, in
              layer --layer, centred and reduced by principal components.

A smaller vocabulary (--vocabulary) keeps the special pieces, single characters,
so that no text becomes unknown, and the most frequent pieces of the texts. It
and --start matching need the encoder's list of WordPieces (vocab.txt). The
folder is written atomically; an existing one is an error.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import matching_init
import numpy as np

from t5score_jax.checkpoints import convert, cross_encoders
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data import files, folders, subwords
from t5score_jax.inference import encoding
from t5score_jax.nn import cross_encoder
from t5score_jax.nn.bert import BertConfig

_SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
_CHUNK = 2000
# Tokens of a text whose states are averaged.
_LENGTH = 128
# The shortest useful pair in tokens, as in `scripts/prepare/cache_pairs.py`.
_FEWEST = 8


def _positive(text: str) -> int:
  if not (text.isascii() and text.isdecimal() and int(text)):
    raise argparse.ArgumentTypeError(f'{text}: a whole number from 1 on')
  return int(text)


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  result.add_argument(
    'encoder', metavar='ENCODER', help='folder of the encoder'
  )
  result.add_argument(
    '-o',
    '--output',
    required=True,
    metavar='FOLDER',
    help='a new folder in the layout of Hugging Face',
  )
  result.add_argument(
    '--start',
    choices=('matching', 'truncated'),
    default='matching',
    help='(default: %(default)s)',
  )
  result.add_argument(
    '--texts', metavar='FILE', help='one text per line, .gz or not'
  )
  result.add_argument(
    '--limit',
    type=_positive,
    default=10000,
    metavar='N',
    help='number of texts that the encoder reads (default: %(default)s)',
  )
  result.add_argument(
    '--vocabulary',
    type=_positive,
    metavar='N',
    help='number of pieces, the most frequent in --texts (default: the '
    "encoder's)",
  )
  result.add_argument(
    '--layers', type=_positive, default=2, help='(default: %(default)s)'
  )
  result.add_argument(
    '--width',
    type=_positive,
    help="width of a matching start (default: the encoder's)",
  )
  result.add_argument(
    '--heads',
    type=_positive,
    default=2,
    help='attention heads of a matching start (default: %(default)s)',
  )
  result.add_argument(
    '--mlp',
    type=_positive,
    metavar='N',
    help='feed-forward width of a matching start (default: 4 x width)',
  )
  result.add_argument(
    '--positions',
    type=_positive,
    metavar='N',
    help=f'longest pair, in tokens, {_FEWEST} or more; a truncated start has '
    "no more than the encoder (default: 128, or the encoder's if fewer)",
  )
  result.add_argument(
    '--layer',
    type=int,
    default=-1,
    help="the encoder's layer that defines similarity (default: the last)",
  )
  result.add_argument(
    '--seed',
    type=int,
    default=0,
    help='of the random weights (default: %(default)s)',
  )
  return result


def count_pieces(
  tokenizer: subwords.SubwordTokenizer, texts: Sequence[str]
) -> collections.Counter[str]:
  """Counts each piece in the texts."""
  counts: collections.Counter[str] = collections.Counter()
  for start in range(0, len(texts), _CHUNK):
    for one in tokenizer.encode_batch(texts[start : start + _CHUNK], 512):
      counts.update(one.tokens)
  return counts


def small_tokenizer(
  folder: Path, counts: collections.Counter[str], size: int
) -> tuple[subwords.SubwordTokenizer, list[str]]:
  """A tokenizer with fewer pieces, and the pieces in the order of their ids.

  Raises:
    ValueError: `size` is smaller than the number of characters.
  """
  file = folder / subwords.WORDPIECE_FILE
  known = file.read_text('utf-8').splitlines()
  characters = [p for p in known if len(p.removeprefix('##')) == 1]
  kept = [*_SPECIAL, *characters]
  if missing := sorted({*_SPECIAL} - {*known}):
    raise ValueError(f'{file}: there is no piece {", ".join(missing)}')
  if len(kept) > size:
    raise ValueError(
      f'--vocabulary {size}: special pieces and characters alone are '
      f'{len(kept)}'
    )
  ranked = sorted(set(known) - set(kept), key=lambda p: (-counts[p], p))
  pieces = [*kept, *ranked[: size - len(kept)]]
  with tempfile.TemporaryDirectory() as temporary:
    path = Path(temporary)
    text = '\n'.join(pieces) + '\n'
    (path / subwords.WORDPIECE_FILE).write_text(text, 'utf-8')
    settings = folder / 'tokenizer_config.json'
    if settings.is_file():
      (path / settings.name).write_bytes(settings.read_bytes())
    return subwords.load_tokenizer(path), pieces


def mean_states(
  bundle: encoders.EncoderBundle, texts: Sequence[str], layer: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """The mean state of each piece, [width], and the mean of all tokens."""
  length = min(_LENGTH, bundle.config.max_length)
  encoder = encoding.TextEncoder(bundle, [layer], max_length=length)
  sums: dict[str, np.ndarray] = {}
  total = np.zeros(bundle.config.emb_dim)
  counts: collections.Counter[str] = collections.Counter()
  for start in range(0, len(texts), _CHUNK):
    for one in encoder.states(texts[start : start + _CHUNK]):
      states = one.states[0].astype(np.float64)
      states /= np.linalg.norm(states, axis=1, keepdims=True)
      for piece, state in zip(one.encoded.tokens, states, strict=True):
        sums[piece] = sums.get(piece, 0.0) + state
        total += state
        counts[piece] += 1
  means = {piece: sums[piece] / counts[piece] for piece in sums}
  return means, total / counts.total()


def word_vectors(
  bundle: encoders.EncoderBundle,
  pieces: Sequence[str],
  texts: Sequence[str],
  layer: int,
  size: int,
) -> np.ndarray:
  """Vectors of pieces whose cosines are the encoder's similarities.

  Pieces that do not occur in the texts are encoded alone.
  """
  means, centre = mean_states(bundle, texts, layer)
  absent = [p for p in pieces if p not in means]
  alone = encoding.TextEncoder(bundle, [layer]).states(
    [piece.removeprefix('##') for piece in absent]
  )
  for piece, one in zip(absent, alone, strict=True):
    inside = one.states[0][1:-1] if len(one.encoded.ids) > 2 else one.states[0]
    state = inside.mean(axis=0).astype(np.float64)
    means[piece] = state / np.linalg.norm(state)
  matrix = np.stack([means[piece] for piece in pieces]) - centre
  if size >= matrix.shape[1]:
    return np.pad(matrix, ((0, 0), (0, size - matrix.shape[1])))
  directions = np.linalg.svd(matrix, full_matrices=False)[2]
  reduced = matrix @ directions[:size].T
  # A random rotation spreads the large components over all dimensions.
  rotation = np.random.default_rng(0).normal(size=(size, size))
  return np.asarray(reduced @ np.linalg.qr(rotation)[0])


def truncated(
  bundle: encoders.EncoderBundle, rows: np.ndarray, layers: int, seed: int
) -> tuple[BertConfig, dict[str, Any]]:
  """The encoder's first layers with the chosen rows of its embeddings."""
  if not 0 < layers <= bundle.config.num_layers:
    raise ValueError(
      f'--layers {layers}: the encoder has {bundle.config.num_layers}'
    )
  config = dataclasses.replace(
    bundle.config, vocab_size=len(rows), num_layers=layers
  )
  kept = {
    name: part
    for name, part in bundle.params.items()
    if not name.startswith('layers_') or int(name[len('layers_') :]) < layers
  }
  embeddings = dict(kept['embeddings'])
  embeddings['word'] = np.asarray(embeddings['word'])[rows]
  encoder = {**kept, 'embeddings': embeddings}
  params = cross_encoder.init_params(config, jax.random.key(seed), encoder)
  return config, dict(params)


def check_places(encoder: Path, output: Path) -> None:
  """Checks, before the work, that the folder may be created.

  Raises:
    CheckpointError: The name is taken.
    ValueError: It is the encoder's folder, or inside it.
  """
  if output.resolve().is_relative_to(encoder.resolve()):
    raise ValueError(f'-o {output}: is in ENCODER; choose another place')
  convert.check_output(output)


def positions(args: argparse.Namespace, bundle: encoders.EncoderBundle) -> int:
  """The maximum length of a pair in tokens.

  Raises:
    ValueError: Too short, or longer than a truncated encoder reads.
  """
  most = bundle.config.max_length
  if args.positions is None:
    return min(cross_encoders.MAX_LENGTH, most)
  if args.positions < _FEWEST:
    raise ValueError(f'--positions {args.positions}: at least {_FEWEST}')
  if args.start == 'truncated' and args.positions > most:
    raise ValueError(
      f'--positions {args.positions}: a truncated start keeps those of the '
      f'encoder, {most}; give no more'
    )
  return int(args.positions)


def read_pieces(folder: Path, size: int) -> list[str]:
  """The encoder's WordPieces in the order of their ids.

  Raises:
    ValueError: It has no list of WordPieces, or one that lacks ids of its
      tokenizer.
  """
  file = folder / subwords.WORDPIECE_FILE
  if not file.is_file():
    raise ValueError(
      f'{file}: is not there; --start matching and --vocabulary need the '
      'list of WordPieces (--start truncated without --vocabulary does not)'
    )
  pieces = file.read_text('utf-8').splitlines()
  if len(pieces) < size:
    raise ValueError(
      f'{file}: {len(pieces)} pieces, but the tokenizer has {size}; give the '
      "encoder's own list"
    )
  return pieces


def read_texts(args: argparse.Namespace) -> list[str]:
  """The texts, if there are any.

  Raises:
    ValueError: Texts are needed, and there are none.
  """
  if not args.texts:
    if args.vocabulary or args.start == 'matching':
      raise ValueError('--vocabulary and --start matching need --texts')
    return []
  texts = files.read_lines(args.texts)
  if not any(map(str.strip, texts)):
    raise ValueError(f'--texts {args.texts}: there is no text in it')
  return texts


def matching(
  args: argparse.Namespace,
  bundle: encoders.EncoderBundle,
  pieces: Sequence[str],
  texts: Sequence[str],
) -> tuple[BertConfig, dict[str, Any]]:
  """A network of the requested shape that compares words."""
  width = args.width or bundle.config.emb_dim
  config = BertConfig(
    vocab_size=len(pieces),
    emb_dim=width,
    num_heads=args.heads,
    mlp_dim=args.mlp or 4 * width,
    num_layers=args.layers,
    max_positions=positions(args, bundle),
    pad_id=pieces.index('[PAD]'),
  )
  size = matching_init.word_dimensions(config)
  if size < 1:
    raise ValueError(
      f'--width {width} with --heads {args.heads}: a head needs more than '
      f'{matching_init.FLAGS} dimensions'
    )
  chosen = np.linspace(0, len(texts) - 1, min(args.limit, len(texts)))
  words = word_vectors(
    bundle, pieces, [texts[n] for n in chosen.astype(int)], args.layer, size
  )
  params = matching_init.with_matching_heads(
    config, jax.random.key(args.seed), words
  )
  return config, params


def run(args: argparse.Namespace) -> str:
  """Creates the folder; returns a description."""
  folder, output = Path(args.encoder), Path(args.output)
  check_places(folder, output)
  bundle = encoders.load_encoder(folder)
  length = positions(args, bundle)
  kind = encoders.settings_from_config(bundle.config)['model_type']
  if args.start == 'truncated' and kind != 'bert':
    raise ValueError(
      f'{folder}: is of the kind {kind}, and a miniature can only be a BERT; '
      'give such an encoder'
    )
  texts = read_texts(args)
  counts = count_pieces(bundle.tokenizer, texts)
  tokenizer = bundle.tokenizer
  rows = np.arange(bundle.config.vocab_size)
  pieces: list[str] = []
  if args.vocabulary or args.start == 'matching':
    pieces = read_pieces(folder, tokenizer.vocab_size)
  if args.vocabulary:
    ids = {piece: n for n, piece in enumerate(pieces)}
    tokenizer, pieces = small_tokenizer(folder, counts, args.vocabulary)
    rows = np.array([ids[piece] for piece in pieces])
  if args.start == 'truncated':
    config, params = truncated(bundle, rows, args.layers, args.seed)
  else:
    config, params = matching(args, bundle, pieces, texts)
  settings = {'name': output.resolve().name, 'max_length': length}
  model = cross_encoders.CrossEncoder(
    config, jax.device_get(params), tokenizer, settings
  )
  with folders.new_folder(output) as temporary:
    cross_encoders.save(model, temporary)
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  summary = f'{output}: {count:,} parameters, {tokenizer.vocab_size:,} pieces'
  if not texts:
    return summary
  known = sum(counts[p] for p in pieces) if pieces else counts.total()
  share = known / counts.total()
  return f'{summary}, which are {share:.1%} of those in the texts'


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  try:
    print(run(args))
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
