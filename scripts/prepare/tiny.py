"""Prepares the training records of `t5score-tiny` from collected judgments.

Reads a folder with the files named below and writes, into --output:

  groups.jsonl    one record per distinct translation, with its references and,
                  if it was rated, the rating `z`; all translations of a
                  source carry the same `segment`
  heldout.jsonl   the same for a share of the WMT21 documents
  validation.jsonl  WMT17 to English, for choosing between checkpoints
  text.txt        one text per line, for the vocabulary

WMT19 and WMT20 are never read. Identical translations of several systems are
merged and their ratings averaged, since a single rating is noisy.
"""

from __future__ import annotations

import argparse
import collections
import csv
import gzip
import hashlib
import pathlib
import sys
from collections.abc import Iterable, Iterator

from t5score_jax.data import numbers
from t5score_jax.data.files import write_lines
from t5score_jax.data.records import Segment, write_records

csv.field_size_limit(sys.maxsize)

FILES = {
  'da': 'wmt15-17_da.tsv.gz',
  'da21': 'wmt21_da_to-en.tsv.gz',
  'mqm21': 'wmt21_mqm.en-de.tsv.gz',
  'post_edits': 'mlqe-pe_da.tsv.gz',
}
RATING = 'z'


def read_rows(path: pathlib.Path, quoted: bool) -> Iterator[dict[str, str]]:
  """Rows of a gzip TSV with a header, as dicts of text."""
  with gzip.open(path, 'rt', encoding='utf-8', newline='') as lines:
    yield from csv.DictReader(
      lines,
      delimiter='\t',
      quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
    )


def z_score(row: dict[str, str]) -> float:
  """Returns the z-score of a row."""
  value = numbers.parse(row['da_z'])
  if value is None:
    raise SystemExit(f'{row["lp"]}: da_z is {row["da_z"]!r}, not a number')
  return value


def clean(text: str) -> str:
  """Normalizes white space, in which translations differ arbitrarily."""
  return ' '.join(text.split())


def merged(segments: Iterable[Segment]) -> list[Segment]:
  """Returns a record per distinct hypothesis of a source, with mean ratings."""
  ratings = collections.defaultdict(list)
  first: dict[tuple[str | None, str], Segment] = {}
  for segment in segments:
    key = segment.segment, segment.hypothesis
    first.setdefault(key, segment)
    if RATING in segment.ratings:
      ratings[key].append(segment.ratings[RATING])
  result = []
  for key, segment in first.items():
    values = ratings[key]
    mean = {RATING: sum(values) / len(values)} if values else {}
    result.append(
      Segment(
        hypothesis=segment.hypothesis,
        references=segment.references,
        system=segment.system,
        document=segment.document,
        segment=segment.segment,
        language_pair=segment.language_pair,
        ratings=mean,
      )
    )
  return result


def direct_assessments(
  folder: pathlib.Path, years: set[str], to: str
) -> Iterator[Segment]:
  """WMT15 to WMT17: one or few rated translations per source."""
  for row in read_rows(folder / FILES['da'], quoted=True):
    if row['year'] in years and row['lp'].endswith(f'-{to}'):
      source = hashlib.sha1(row['src'].encode()).hexdigest()[:12]
      yield Segment(
        hypothesis=clean(row['hyp']),
        references=(clean(row['ref']),),
        system=row['system'] or None,
        segment=f'wmt{row["year"]}/{row["lp"]}/{source}',
        language_pair=row['lp'],
        ratings={RATING: z_score(row)},
      )


def wmt21(folder: pathlib.Path) -> Iterator[Segment]:
  """WMT21 to English: all systems' translations of each source."""
  for row in read_rows(folder / FILES['da21'], quoted=False):
    yield Segment(
      hypothesis=clean(row['hyp']),
      references=(clean(row['ref_A']),),
      system=row['system'],
      document=f'{row["lp"]}/{row["doc"]}',
      segment=f'wmt2021/{row["lp"]}/{row["line"]}',
      language_pair=row['lp'],
      ratings={RATING: z_score(row)},
    )


def wmt21_german(folder: pathlib.Path) -> Iterator[Segment]:
  """WMT21 to German: only texts, since its annotations have another scale."""
  for row in read_rows(folder / FILES['mqm21'], quoted=False):
    references = tuple(
      clean(row[name]) for name in ('ref_A', 'ref_C', 'ref_D') if row[name]
    )
    yield Segment(
      hypothesis=clean(row['hyp']),
      references=references[:1],
      system=row['system'],
      segment=f'wmt2021/{row["lp"]}/{row["line"]}',
      language_pair=row['lp'],
    )


def post_edits(folder: pathlib.Path, targets: set[str]) -> Iterator[Segment]:
  """Machine translations with their post-edits as references."""
  for row in read_rows(folder / FILES['post_edits'], quoted=False):
    edited, text = clean(row['pe']), clean(row['mt'])
    if edited and text and row['lp'].split('-')[1] in targets:
      yield Segment(
        hypothesis=text,
        references=(edited,),
        system='mt',
        segment=f'mlqe/{row["lp"]}/{row["split"]}/{row["index"]}',
        language_pair=row['lp'],
      )


def main() -> int:
  """Runs the program."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--data',
    required=True,
    type=pathlib.Path,
    help='folder that holds ' + ', '.join(FILES.values()),
  )
  parser.add_argument(
    '--output', required=True, type=pathlib.Path, help='folder to write to'
  )
  parser.add_argument(
    '--heldout',
    type=float,
    default=0.04,
    help='share of WMT21 documents to hold out (default: %(default)s)',
  )
  args = parser.parse_args()
  missing = [n for n in FILES.values() if not (args.data / n).is_file()]
  if missing:
    parser.error(f'--data: {args.data} does not hold {", ".join(missing)}')
  args.output.mkdir(parents=True, exist_ok=True)

  def held_out(segment: Segment) -> bool:
    """Selects by a hash of the document, independently of the other data."""
    digest = hashlib.sha1((segment.document or '').encode()).digest()
    return int.from_bytes(digest[:4], 'big') < args.heldout * 2**32

  judged = merged(wmt21(args.data))
  train = [s for s in judged if not held_out(s)]
  train += merged(direct_assessments(args.data, {'2015', '2016'}, 'en'))
  train += merged(post_edits(args.data, {'en', 'de'}))
  train += merged(wmt21_german(args.data))
  heldout = [s for s in judged if held_out(s)]
  validation = list(direct_assessments(args.data, {'2017'}, 'en'))
  for name, segments in (
    ('groups', train),
    ('heldout', heldout),
    ('validation', validation),
  ):
    write_records(args.output / f'{name}.jsonl', segments)
    print(f'{name}: {len(segments)} records')
  texts = dict.fromkeys(
    text for s in train for text in (s.hypothesis, *s.references)
  )
  write_lines(args.output / 'text.txt', texts)
  print(f'text: {len(texts)} lines')
  return 0


if __name__ == '__main__':
  sys.exit(main())
