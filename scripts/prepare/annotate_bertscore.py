r"""Adds BERTScore's F of a sentence encoder to records, as extra ratings.

    python scripts/prepare/annotate_bertscore.py groups.jsonl \
        -o annotated.jsonl \
        --encoder sentence-encoder/ --layer 4 --share 0.5

A single human rating of a translation is noisy. A metric with a large encoder
is not, and agrees with human judgments on average. Only records with human
ratings are annotated. Two ratings are added: `bertscore`, and `mixed`, the sum
of `bertscore` in standard deviations and `--weight` times `z`. The
output is written when all scores are computed.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import transformers

from t5score_jax.data import records

_BATCH = 64
# Number of records whose token states are in memory at a time.
_CHUNK = 4096
_MAX_LENGTH = 200


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  result.add_argument('records', help='TSV or JSONL, as t5score reads them')
  result.add_argument(
    '-o',
    '--output',
    required=True,
    metavar='FILE',
    help='JSONL of the records with both ratings',
  )
  result.add_argument(
    '--encoder',
    required=True,
    type=pathlib.Path,
    metavar='FOLDER',
    help='encoder of the BERT family, a folder that transformers reads',
  )
  result.add_argument(
    '--layer',
    type=int,
    required=True,
    help='layer whose states are compared; 0: the embeddings',
  )
  result.add_argument(
    '--share',
    type=float,
    default=1.0,
    help='of the segments to annotate and write, by a hash of their id '
    '(default: %(default)s)',
  )
  result.add_argument(
    '--weight',
    type=float,
    default=0.5,
    help='of z in the rating `mixed` (default: %(default)s)',
  )
  return result


class Encoder:
  """Normalised states of one layer for the tokens of texts."""

  def __init__(self, folder: pathlib.Path, layer: int):
    """Loads the encoder."""
    self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    self._model = transformers.AutoModel.from_pretrained(folder).eval()
    layers = self._model.config.num_hidden_layers
    if not 0 <= layer <= layers:
      raise ValueError(f'--layer {layer}: {folder} has 0 to {layers}')
    # Layers above are not computed.
    self._model.encoder.layer = self._model.encoder.layer[:layer]

  def __call__(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
    """Text -> [tokens, width], without the first and the last token."""
    found = {}
    ordered = sorted(texts, key=len)
    with torch.inference_mode():
      for start in range(0, len(ordered), _BATCH):
        part = ordered[start : start + _BATCH]
        batch = self._tokenizer(
          part,
          padding=True,
          truncation=True,
          max_length=_MAX_LENGTH,
          return_tensors='pt',
        )
        states = self._model(**batch).last_hidden_state
        states = torch.nn.functional.normalize(states, dim=-1)
        lengths = batch['attention_mask'].sum(1).tolist()
        for row, (text, length) in enumerate(zip(part, lengths, strict=True)):
          found[text] = states[row, 1 : int(length) - 1].clone()
    return found


def f_score(one: torch.Tensor, other: torch.Tensor) -> float:
  """BERTScore's F of two texts' states; 0 if one is empty."""
  if not len(one) or not len(other):
    return 0.0
  similar = one @ other.T
  precision = similar.max(1).values.mean().item()
  recall = similar.max(0).values.mean().item()
  total = precision + recall
  return 2 * precision * recall / total if total > 0 else 0.0


def chosen(segment: records.Segment, share: float) -> bool:
  """Whether a record is annotated; records of one segment are treated alike."""
  digest = hashlib.sha1((segment.segment or '').encode()).digest()
  return int.from_bytes(digest[:4], 'big') < share * 2**32


def annotate(
  segments: Sequence[records.Segment], encoder: Encoder
) -> Iterator[float]:
  """Yields the score of each record."""
  start = time.monotonic()
  for begin in range(0, len(segments), _CHUNK):
    part = segments[begin : begin + _CHUNK]
    texts = {t for s in part for t in (s.hypothesis, s.references[0])}
    states = encoder(sorted(texts))
    for segment in part:
      yield f_score(states[segment.hypothesis], states[segment.references[0]])
    done = begin + len(part)
    seconds = time.monotonic() - start
    print(f'{done}/{len(segments)}, {seconds:.0f} s', file=sys.stderr)


def main() -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args()
  try:
    encoder = Encoder(args.encoder, args.layer)
    segments = [
      segment
      for segment in records.read_records(args.records, ratings=('z',))
      if 'z' in segment.ratings and segment.references
      if chosen(segment, args.share)
    ]
    if not segments:
      raise ValueError(f'{args.records}: no record to annotate')
    scores = np.array(list(annotate(segments, encoder)))
    deviations = (scores - scores.mean()) / scores.std()
    records.write_records(
      args.output,
      [
        dataclasses.replace(
          segment,
          ratings={
            'z': segment.ratings['z'],
            'bertscore': float(score),
            'mixed': float(deviation + args.weight * segment.ratings['z']),
          },
        )
        for segment, score, deviation in zip(
          segments, scores, deviations, strict=True
        )
      ],
    )
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  ratings = [segment.ratings['z'] for segment in segments]
  print(
    f'{args.output}: {len(segments)} records; correlation of bertscore and z: '
    f'{np.corrcoef(scores, ratings)[0, 1]:.3f}'
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
