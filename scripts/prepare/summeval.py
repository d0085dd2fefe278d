r"""Converts SummEval or REALSumm to records for training a regressor.

    python scripts/prepare/summeval.py summeval DATA/summeval_experts.jsonl.gz \
        DATA/summeval_references.jsonl.gz DATA/summeval.jsonl.gz \
        summeval.jsonl.gz
    python scripts/prepare/summeval.py realsumm DATA/realsumm.jsonl.gz \
        realsumm.jsonl.gz --leave_out summeval.jsonl.gz

SummEval (Fabbri et al. 2021) becomes a row for each article, system and expert:
source, hypothesis, 11 references (the highlights, then those of Kryscinski et
al. 2020), and coherence, consistency, fluency and relevance as that expert
rated them, 1 (worst) to 5. Nothing is averaged: COMES learns from each
judgment (section 4.1). The highlights were also rated like the output of a
system; here they are a reference, and a system only with --human.

REALSumm (Bhandari et al. 2020) becomes a row for each article and system with
the rating litepyramid, the share of the reference's content units that a
summary has, 0 to 1. Articles of another file of records can be left out, as in
COMES (appendix A.2). One system occurs twice with the same summaries; both
count in the published tables, and both are kept.

Not here: instances and folds (`t5score_jax.data.instances`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

DIMENSIONS = ('coherence', 'consistency', 'fluency', 'relevance')
HIGHLIGHTS = 'Human-H'

# Converts Treebank's tokens, separated by spaces, to running text.
_REPAIRS = (
  (r'-LRB-', '('),
  (r'-RRB-', ')'),
  (r'-LSB-', '['),
  (r'-RSB-', ']'),
  (r"`\s*|\s*''", '"'),
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
    'summeval', help="experts' ratings, 1 to 5, a row per expert"
  )
  summeval.add_argument('experts', help='JSONL with expert_annotations')
  summeval.add_argument(
    'references', help='JSONL with ten references per article'
  )
  summeval.add_argument('articles', help='JSONL with the sources')
  summeval.add_argument('output', help='the records to write')
  summeval.add_argument(
    '--human',
    action='store_true',
    help='also keep the rated highlights as a system',
  )
  realsumm = corpora.add_parser(
    'realsumm', help='LitePyramid, 0 to 1, a row per summary'
  )
  realsumm.add_argument('summaries', help='JSONL with litepyramid_recall')
  realsumm.add_argument('output', help='the records to write')
  realsumm.add_argument(
    '--leave_out',
    metavar='RECORDS',
    help='leave out articles that occur as sources in this file',
  )
  return result


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  from t5score_jax.data import files, records  # slow, and --help needs none

  try:
    read = ('experts', 'references', 'articles', 'summaries', 'leave_out')
    inputs = [getattr(args, name, None) for name in read]
    files.check_not_input(args.output, inputs, 'output')
    if args.corpus == 'summeval':
      segments = _summeval(args)
    else:
      segments = _realsumm(args)
    records.write_records(args.output, segments)
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
    row.text('seg_id'): row.text('hyp')
    for row in experts
    if row.text('SYS') == HIGHLIGHTS
  }
  references = {
    row.text('seg_id'): row.texts('refs') for row in _lines(args.references)
  }
  # The corpus and its part precede the article's own number.
  articles = {
    row.text('doc_id').rpartition('-')[2]: detokenized(row.text('src'))
    for row in _lines(args.articles)
  }
  segments = []
  for row in experts:
    document = row.text('seg_id')
    if row.text('SYS') == HIGHLIGHTS and not args.human:
      continue
    for known, what in (
      (highlights, args.experts),
      (references, args.references),
      (articles, args.articles),
    ):
      if document not in known:
        raise ValueError(f'{what}: there is nothing about article {document}')
    for annotation in row.rows('expert_annotations'):
      segments.append(
        Segment(
          hypothesis=row.text('hyp'),
          source=articles[document],
          references=(highlights[document], *references[document]),
          system=row.text('SYS'),
          document=document,
          segment=document,
          ratings={name: annotation.number(name) for name in DIMENSIONS},
        )
      )
  if not segments:
    raise ValueError(f'{args.experts}: there is no system in it')
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
    document = row.name('doc_id')
    if _letters(row.text('src')) in known:
      left_out.add(document)
      continue
    name = row.text('system').removesuffix('.txt')
    segments.append(
      records.Segment(
        hypothesis=untagged(row.text('hyp')),
        source=detokenized(row.text('src')),
        references=(untagged(row.text('ref')),),
        # The same system is among both the extractive and the abstractive ones.
        system=f'{row.text("split")}/{name}',
        document=document,
        segment=document,
        ratings={'litepyramid': row.number('litepyramid_recall')},
      )
    )
  if not segments:
    why = f'; {args.leave_out} has all its articles' if left_out else ''
    raise ValueError(f'{args.summaries}: no row is left{why}')
  if args.leave_out:
    print(f'{len(left_out)} articles of {args.leave_out} left out')
  return segments


def detokenized(text: str) -> str:
  r"""Treebank's tokens as running text.

  >>> detokenized("( CNN ) It 's ` late '' , he did n't say .")
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
  """The letters at the beginning of a text, in lower case."""
  return re.sub(r'[^a-z0-9]', '', text.lower())[:150]


class _Row:
  """An object of a JSON file whose fields are checked when they are read.

  Every method raises RecordError, which names file, line and field.
  """

  def __init__(self, values: dict[str, Any], path: str, line: int):
    self._values, self._path, self._line = values, path, line

  def _error(self, problem: str, field: str) -> Exception:
    from t5score_jax.data import files

    return files.RecordError(
      f'{problem}; fetch the corpus again',
      path=self._path,
      line=self._line,
      field=field,
    )

  def _get(self, field: str) -> Any:
    if field not in self._values:
      raise self._error('is missing', field)
    return self._values[field]

  def text(self, field: str) -> str:
    """Returns a string."""
    value = self._get(field)
    if not isinstance(value, str):
      raise self._error(f'is no text, but {_kind(value)}', field)
    return value

  def name(self, field: str) -> str:
    """Returns a string or an integer, as a string."""
    value = self._get(field)
    if isinstance(value, int) and not isinstance(value, bool):
      return str(value)
    return self.text(field)

  def number(self, field: str) -> float:
    """Returns a finite number."""
    value = self._get(field)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
      # A comparison cannot overflow, unlike a conversion.
      if abs(value) <= sys.float_info.max:
        return float(value)
      raise self._error('is no finite number', field)
    raise self._error(f'is no number, but {_kind(value)}', field)

  def texts(self, field: str) -> list[str]:
    """Returns a non-empty list of strings."""
    value = self._get(field)
    if not (value and isinstance(value, list)):
      raise self._error(f'is no list of texts, but {_kind(value)}', field)
    for number, one in enumerate(value, 1):
      if not isinstance(one, str):
        raise self._error(f'text {number} is {_kind(one)}', field)
    return value

  def rows(self, field: str) -> list[_Row]:
    """Returns a non-empty list of objects."""
    value = self._get(field)
    if not (value and isinstance(value, list)):
      raise self._error(f'is no list of objects, but {_kind(value)}', field)
    for number, one in enumerate(value, 1):
      if not isinstance(one, dict):
        raise self._error(f'object {number} is {_kind(one)}', field)
    return [_Row(one, self._path, self._line) for one in value]


def _kind(value: Any) -> str:
  """The type of a JSON value, for messages."""
  text = json.dumps(value)
  return text if len(text) <= 40 else f'{text[:40]}...'


def _lines(path: str) -> Iterator[_Row]:
  from t5score_jax.data import files

  empty = True
  with files.open_text(path) as lines:
    for number, line in enumerate(lines, 1):
      empty = False
      try:
        row = json.loads(line)
      except ValueError as error:
        raise files.RecordError(
          f'not JSON ({error})', path=path, line=number
        ) from error
      if not isinstance(row, dict):
        raise files.RecordError('not an object', path=path, line=number)
      yield _Row(row, path, number)
  if empty:
    raise files.RecordError('the file is empty; fetch it again', path=path)


if __name__ == '__main__':
  sys.exit(main())
