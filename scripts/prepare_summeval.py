r"""Writes SummEval, or REALSumm, as records that an estimator learns from.

    python scripts/prepare_summeval.py summeval DATA/summeval_experts.jsonl.gz \
        DATA/summeval_references.jsonl.gz DATA/summeval.jsonl.gz \
        summeval.jsonl.gz
    python scripts/prepare_summeval.py realsumm DATA/realsumm.jsonl.gz \
        realsumm.jsonl.gz --leave_out summeval.jsonl.gz

SummEval (Fabbri et al. 2021) becomes a row for each article, system and expert:
source, hypothesis, 11 references (the highlights, then those of Kryscinski et
al. 2020), and coherence, consistency, fluency and relevance as that expert
rated them, 1 (worst) to 5. Nothing is averaged: COMES learns from each
judgment (section 4.1). The highlights were rated as if a system had written
them; they are a reference here, and no system unless --human asks for it.

REALSumm (Bhandari et al. 2020) becomes a row for each article and system with
the rating litepyramid, the share of the reference's content units that a
summary has, 0 to 1. Articles of another file of records can be left out, as
COMES does (appendix A.2). One system took part twice, with the same summaries;
both count in the published tables, and both are kept.

Not here: instances and folds (`t5score_jax.data.instances`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DIMENSIONS = ('coherence', 'consistency', 'fluency', 'relevance')
HIGHLIGHTS = 'Human-H'

# Treebank's tokens, apart from each other by spaces, to running text.
_REPAIRS = (
  (r'-LRB-', '('),
  (r'-RRB-', ')'),
  (r'-LSB-', '['),
  (r'-RSB-', ']'),
  (r"``\s*|\s*''", '"'),
  (r"\s+(n't|'s|'re|'ve|'ll|'d|'m)\b", r'\1'),
  (r'([(\[$£#@])\s+', r'\1'),
  (r'\s+([.,;:!?%)\]])', r'\1'),
  (r'\s+', ' '),
)


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description='Writes SummEval or REALSumm as records with ratings.'
  )
  corpora = result.add_subparsers(dest='corpus', required=True)
  summeval = corpora.add_parser(
    'summeval', help="experts' ratings, 1 to 5, a row for each expert"
  )
  summeval.add_argument('experts', help='JSONL with expert_annotations')
  summeval.add_argument('references', help='JSONL with ten references each')
  summeval.add_argument('articles', help='JSONL with the sources')
  summeval.add_argument('output', help='the records')
  summeval.add_argument(
    '--human',
    action='store_true',
    help='keep the rated highlights as a system (they are a reference, too)',
  )
  realsumm = corpora.add_parser(
    'realsumm', help='LitePyramid, 0 to 1, a row for each summary'
  )
  realsumm.add_argument('summaries', help='JSONL with litepyramid_recall')
  realsumm.add_argument('output', help='the records')
  realsumm.add_argument(
    '--leave_out',
    metavar='RECORDS',
    help='leave out articles that are sources in this file',
  )
  return result


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  from t5score_jax.data import records  # slow: --help does not need them

  try:
    if args.corpus == 'summeval':
      segments = _summeval(args)
    else:
      segments = _realsumm(args)
    records.write_records(args.output, segments)
  except KeyError as error:
    print(f'error: a line of the corpus has no {error}', file=sys.stderr)
    return 1
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  systems = {segment.system for segment in segments}
  documents = {segment.document for segment in segments}
  print(
    f'{args.output}: {len(segments)} rows, {len(documents)} articles, '
    f'{len(systems)} systems'
  )
  return 0


def _summeval(args: argparse.Namespace) -> list[Any]:
  from t5score_jax.data.records import Segment

  experts = list(_lines(args.experts))
  highlights = {
    row['seg_id']: row['hyp'] for row in experts if row['SYS'] == HIGHLIGHTS
  }
  references = {row['seg_id']: row['refs'] for row in _lines(args.references)}
  # Named by the corpus and its part before the article's own number.
  articles = {
    row['doc_id'].rpartition('-')[2]: detokenized(row['src'])
    for row in _lines(args.articles)
  }
  segments = []
  for row in experts:
    document = row['seg_id']
    if row['SYS'] == HIGHLIGHTS and not args.human:
      continue
    for known, what in (
      (highlights, args.experts),
      (references, args.references),
      (articles, args.articles),
    ):
      if document not in known:
        raise ValueError(f'{what}: there is nothing about article {document}')
    for annotation in row['expert_annotations']:
      segments.append(
        Segment(
          hypothesis=row['hyp'],
          source=articles[document],
          references=(highlights[document], *references[document]),
          system=row['SYS'],
          document=document,
          segment=document,
          ratings={name: float(annotation[name]) for name in DIMENSIONS},
        )
      )
  return segments


def _realsumm(args: argparse.Namespace) -> list[Any]:
  from t5score_jax.data import records

  known = set()
  if args.leave_out:
    known = {
      _letters(segment.source or '')
      for segment in records.stream_records(args.leave_out)
    }
  segments, left_out = [], set()
  for row in _lines(args.summaries):
    document = str(row['doc_id'])
    if _letters(row['src']) in known:
      left_out.add(document)
      continue
    name = row['system'].removesuffix('.txt')
    segments.append(
      records.Segment(
        hypothesis=untagged(row['hyp']),
        source=detokenized(row['src']),
        references=(untagged(row['ref']),),
        # The same system took part among extractive and abstractive ones.
        system=f'{row["split"]}/{name}',
        document=document,
        segment=document,
        ratings={'litepyramid': float(row['litepyramid_recall'])},
      )
    )
  if args.leave_out:
    print(f'{len(left_out)} articles of {args.leave_out} left out')
  return segments


def detokenized(text: str) -> str:
  r"""Treebank's tokens as running text.

  >>> detokenized("( CNN ) It 's `` late '' , he did n't say .")
  '(CNN) It\'s "late", he didn\'t say.'
  """
  for pattern, repaired in _REPAIRS:
    text = re.sub(pattern, repaired, text)
  return text.strip()


def untagged(text: str) -> str:
  """A summary without the tags that some systems put around sentences.

  >>> untagged('<t> one . </t> <t> two </t>')
  'one. two'
  """
  return detokenized(re.sub(r'</?t>', ' ', text))


def _letters(text: str) -> str:
  """The beginning of a text as all tokenizers and cases have it."""
  return re.sub(r'[^a-z0-9]', '', text.lower())[:150]


def _lines(path: str | Path) -> Iterator[dict[str, Any]]:
  from t5score_jax.data import files

  with files.open_text(path) as lines:
    for number, line in enumerate(lines, 1):
      try:
        row = json.loads(line)
      except ValueError as error:
        raise files.RecordError(
          f'not JSON ({error})', path=str(path), line=number
        ) from error
      if not isinstance(row, dict):
        raise files.RecordError('not an object', path=str(path), line=number)
      yield row


if __name__ == '__main__':
  sys.exit(main())
