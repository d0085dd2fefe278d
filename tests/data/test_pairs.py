"""`t5score pairs`: which pairs, no leak, equal bytes, resumed runs."""

import gzip
import itertools
import json
import os
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5score_jax import cli
from t5score_jax.data import pair_shards, pairs, records, runs
from t5score_jax.data.records import Segment

WORDS = 'the a cat dog sat ran on over mat hill small green bird'.split()


def _text(rng, length=8):
  return ' '.join(rng.choice(WORDS, size=length)) + '.'


def _write(path, sources=12, systems=4, seed=0, pair='de-en', references=1):
  """Records in the order of systems, as the shared tasks have them."""
  rng = np.random.default_rng(seed)
  shared = [
    (
      f'{seed} Quelle {n}',
      [f'{seed} {n} {_text(rng)}' for _ in range(references)],
    )
    for n in range(sources)
  ]
  segments = [
    Segment(
      hypothesis=f'{seed} {n} {_text(rng)}',
      source=source,
      references=tuple(texts),
      system=f's{k}',
      document=f'd{n // 4}',
      segment=str(n),
      language_pair=pair,
      ratings={'z': float(rng.normal())},
    )
    for k in range(systems)
    for n, (source, texts) in enumerate(shared)
  ]
  records.write_records(path, segments)
  return segments


def _run(*arguments):
  return cli.main(['pairs', *map(str, arguments)])


def _rows(folder):
  count = pair_shards.manifest(folder, 'pairs')['shards']
  return [pair_shards.read_rows(folder, n) for n in range(count)]


def _flat(folder):
  return list(itertools.chain(*_rows(folder)))


def _bytes(folder):
  return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_references_with_hypotheses_and_hypotheses_with_each_other(
  tmp_path, capsys
):
  segments = _write(tmp_path / 'in.tsv', references=2)
  out = tmp_path / 'out'
  assert not _run('--input', tmp_path / 'in.tsv', '--per-source', 3, '-o', out)
  rows = _flat(out)
  by = {o: [r for r in rows if r['origin'] == o] for o in pairs.ORIGINS}
  wanted = {
    (s.hypothesis, reference) for s in segments for reference in s.references
  } | {(s.references[1], s.references[0]) for s in segments}
  assert {(r['hypothesis'], r['reference']) for r in by['reference']} == wanted
  # Three of the six pairs of each source.
  assert len(by['systems']) == 12 * 3
  ids = {s.hypothesis: (s.document, s.segment) for s in segments}
  for row in by['systems']:
    own = row['document'], row['segment']
    assert ids[row['hypothesis']] == ids[row['reference']] == own
    assert row['language_pair'] == 'de-en'
  assert not (by['denoised'] or by['paraphrases'])
  assert f'{len(rows)} pairs in 1 shard' in capsys.readouterr().out
  # They are records, for any other command.
  found = records.read_records(out / 'part-00000.jsonl.gz')
  assert [s.hypothesis for s in found] == [r['hypothesis'] for r in rows]


def test_sources_of_several_files_come_together_and_pairs_are_once(tmp_path):
  segments = _write(tmp_path / 'a.tsv', systems=4)
  records.write_records(tmp_path / 'b.jsonl', segments[:30])
  records.write_records(tmp_path / 'c.jsonl', segments[20:])
  _run('--input', tmp_path / 'a.tsv', '-o', tmp_path / 'one')
  _run(
    '--input',
    tmp_path / 'b.jsonl',
    '--input',
    tmp_path / 'c.jsonl',
    '-o',
    tmp_path / 'two',
  )
  sets = [
    {frozenset((r['hypothesis'], r['reference'])) for r in _flat(tmp_path / n)}
    for n in ('one', 'two')
  ]
  assert sets[0] == sets[1]
  assert len(_flat(tmp_path / 'two')) == len(sets[1]) == 12 * (4 + 6)


def test_all_pairs_of_variants(tmp_path):
  """5 summaries make 10 pairs, 4 paraphrases 6 (section 3.1)."""
  (tmp_path / 'p.tsv').write_text('a\tb\tc\td\n')
  (tmp_path / 'p.jsonl').write_text(
    json.dumps(['v', 'w', 'x', 'y', 'z']) + '\n'
  )
  (tmp_path / 'r.tsv').write_text('orig\tone\ttwo\n')
  _run(
    '--paraphrases',
    tmp_path / 'p.tsv',
    tmp_path / 'p.jsonl',
    '--reconstructions',
    tmp_path / 'r.tsv',
    '-o',
    tmp_path / 'out',
  )
  rows = _flat(tmp_path / 'out')
  made = {frozenset((r['hypothesis'], r['reference'])) for r in rows}
  wanted = [
    *itertools.combinations('abcd', 2),
    *itertools.combinations('vwxyz', 2),
  ]
  assert made == {
    frozenset(p) for p in [*wanted, ('orig', 'one'), ('orig', 'two')]
  }
  assert len(rows) == 6 + 10 + 2
  again = [r for r in rows if r['origin'] == 'reconstructions']
  assert {r['reference'] for r in again} == {'orig'}
  # What belongs together has one id.
  assert len({r['segment'] for r in rows}) == 3


def test_perturbed_references_and_lines(tmp_path):
  segments = _write(tmp_path / 'in.tsv')
  _run(
    '--input',
    tmp_path / 'in.tsv',
    '--denoise',
    '--versions',
    2,
    '--per-source',
    0,
    '--mask-token',
    '<mask>',
    '-o',
    tmp_path / 'one',
  )
  rows = [r for r in _flat(tmp_path / 'one') if r['origin'] == 'denoised']
  assert len(rows) == 24
  assert {r['reference'] for r in rows} == {s.references[0] for s in segments}
  corpus = {
    word
    for s in segments
    for t in (s.hypothesis, *s.references)
    for word in t.split()
  }
  for row in rows:
    assert set(row['hypothesis'].split()) <= corpus | {'<mask>'}
  assert any('<mask>' in r['hypothesis'] for r in rows)

  lines = [f'word{n} and more words of line {n}.' for n in range(400)]
  (tmp_path / 'text.txt').write_text('\n'.join(lines) + '\n')
  _run(
    '--denoise',
    tmp_path / 'text.txt',
    '--lengths',
    '1,20',
    '-o',
    tmp_path / 'two',
  )
  originals = [r['reference'] for r in _flat(tmp_path / 'two')]
  assert ' '.join(lines).startswith('word0 ')
  assert all(text in ' '.join(lines) for text in originals)
  sizes = [len(text.split()) for text in originals]
  assert min(sizes) <= 2 and max(sizes) == 20
  # Even, but for texts of one token of which nothing was left.
  assert np.mean(sizes) == pytest.approx(10.5, abs=1.5)


def test_shares_keep_what_they_say(tmp_path):
  _write(tmp_path / 'in.tsv', sources=300)
  whole = ['--input', tmp_path / 'in.tsv']
  _run(*whole, '-o', tmp_path / 'all')
  _run(*whole, '--share', 'systems=0.25', '-o', tmp_path / 'some')
  count = {
    name: {
      origin: sum(r['origin'] == origin for r in _flat(tmp_path / name))
      for origin in ('reference', 'systems')
    }
    for name in ('all', 'some')
  }
  assert count['all'] == {'reference': 1200, 'systems': 1800}
  assert count['some']['reference'] == 1200
  assert count['some']['systems'] == pytest.approx(450, rel=0.12)


def test_nothing_of_the_held_out_set_gets_in(tmp_path, capsys):
  segments = _write(tmp_path / 'in.tsv', sources=20)
  other = _write(tmp_path / 'other.tsv', sources=5, seed=1)
  # Held out: two sources by their source text, one by its reference in other
  # case and spacing, a hypothesis of a fourth.
  held = [
    Segment('h', source=segments[0].source),
    Segment('h', source=segments[1].source),
    Segment('h', references=(segments[2].references[0].upper() + '  ',)),
    Segment(segments[3].hypothesis),
    Segment(other[1].hypothesis.replace(' ', '\u00a0')),
  ]
  records.write_records(tmp_path / 'held.jsonl', held)
  (tmp_path / 'p.tsv').write_text(f'{segments[0].source}\tx\ny\tz\n')
  (tmp_path / 'd.txt').write_text(f'{segments[3].hypothesis}\n{_long()}\n')
  out = tmp_path / 'out'
  _run(
    '--input',
    tmp_path / 'in.tsv',
    '--input',
    tmp_path / 'other.tsv',
    '--paraphrases',
    tmp_path / 'p.tsv',
    '--denoise',
    tmp_path / 'd.txt',
    '--held-out',
    tmp_path / 'held.jsonl',
    '-o',
    out,
  )
  said = capsys.readouterr().out

  def plain(text):
    return ' '.join(text.lower().split())

  texts = {plain(r[k]) for r in _flat(out) for k in ('hypothesis', 'reference')}
  for segment in segments:
    if segment.segment in ('0', '1', '2'):
      assert plain(segment.hypothesis) not in texts
      assert plain(segment.references[0]) not in texts
  assert plain(segments[3].hypothesis) not in texts
  assert plain(other[1].hypothesis) not in texts
  assert plain(segments[23].hypothesis) in texts  # same source, other system
  assert 'y' in texts and 'x' not in texts
  for line in (
    '12 records of held-out sources',
    '2 held-out hypotheses',
    '1 held-out lines of paraphrases',
    '1 held-out texts to perturb',
  ):
    assert line in said
  # The corpus for an idf is what got in, each text once.
  with gzip.open(out / 'texts.txt.gz', 'rt', encoding='utf-8') as lines:
    corpus = lines.read().splitlines()
  assert len(corpus) == len(set(corpus))
  assert {plain(t) for t in corpus} == texts


def _long():
  return ' '.join(f'token{n}' for n in range(30))


def test_texts_of_one_source_stand_in_one_shard(tmp_path):
  _write(tmp_path / 'in.tsv', sources=60)
  _run(
    '--input',
    tmp_path / 'in.tsv',
    '--denoise',
    '--shard-size',
    40,
    '-o',
    tmp_path / 'out',
  )
  shards = _rows(tmp_path / 'out')
  sizes = [len(rows) for rows in shards]
  assert len(shards) > 5 and min(sizes[:-1]) >= 40 and max(sizes) < 40 + 11
  sources = [{(r['document'], r['segment']) for r in rows} for rows in shards]
  assert sum(map(len, sources)) == len(set.union(*sources)) == 60


def test_equal_commands_give_equal_bytes_and_seeds_matter(tmp_path):
  _write(tmp_path / 'in.tsv', sources=40)
  for name, seed in (('a', 5), ('b', 5), ('c', 6)):
    _run(
      '--input',
      tmp_path / 'in.tsv',
      '--denoise',
      '--seed',
      seed,
      '--per-source',
      2,
      '--shard-size',
      60,
      '-o',
      tmp_path / name,
    )
  a, b, c = (_bytes(tmp_path / n) for n in 'abc')
  assert a == b
  assert a['part-00000.jsonl.gz'] != c['part-00000.jsonl.gz']


def test_a_run_goes_on_where_it_was_cut_off(tmp_path, monkeypatch, capsys):
  _write(tmp_path / 'in.tsv', sources=40)
  command = ['--input', tmp_path / 'in.tsv', '--denoise', '--shard-size', 50]
  _run(*command, '-o', tmp_path / 'whole')
  whole = _bytes(tmp_path / 'whole')
  out = tmp_path / 'cut'
  true = pair_shards.Folder.write

  def write(self, number, rows, info):
    if number == 3:
      raise KeyboardInterrupt
    return true(self, number, rows, info)

  monkeypatch.setattr(pair_shards.Folder, 'write', write)
  assert _run(*command, '-o', out) == 130
  assert sorted(p.name for p in out.iterdir() if 'part' in p.name)[-1] == (
    'part-00002.jsonl.gz'
  )
  with pytest.raises(runs.RunError, match='not finished'):
    pair_shards.complete(out, 'pairs')
  written = []

  def count(self, number, rows, info):
    written.append(number)
    return true(self, number, rows, info)

  monkeypatch.setattr(pair_shards.Folder, 'write', count)
  # One was torn afterwards; a file of an earlier, longer run is left.
  torn = out / 'part-00001.jsonl.gz'
  torn.write_bytes(torn.read_bytes()[:-20])
  (out / 'part-00099.jsonl.gz').write_bytes(b'')
  assert not _run(*command, '-o', out)
  assert _bytes(out) == whole
  assert written == [
    1,
    *range(3, len([n for n in whole if n.endswith('.gz')]) - 1),
  ]
  # Once more there is nothing to do.
  written.clear()
  capsys.readouterr()
  assert not _run(*command, '-o', out)
  assert not written and 'there already' in capsys.readouterr().out


def test_another_run_leaves_the_folder_alone(tmp_path, capsys):
  _write(tmp_path / 'in.tsv')
  command = ['--input', tmp_path / 'in.tsv', '-o', tmp_path / 'out']
  _run(*command)
  before = _bytes(tmp_path / 'out')
  assert _run(*command, '--per-source', 2) == 1
  assert 'recipe: per_source: 10' in capsys.readouterr().err
  _write(tmp_path / 'in.tsv', seed=9)
  assert _run(*command) == 1
  assert 'input: in.tsv: the contents' in capsys.readouterr().err
  assert _bytes(tmp_path / 'out') == before
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine' / 'x').write_text('')
  assert _run('--input', tmp_path / 'in.tsv', '-o', tmp_path / 'mine') == 1
  assert 'has no manifest.json' in capsys.readouterr().err
  assert [p.name for p in (tmp_path / 'mine').iterdir()] == ['x']


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    ([], 2, 'no texts'),
    (['--denoise'], 2, 'no texts'),
    (['--input', '-'], 2, 'read twice'),
    (['--input', 'in.tsv', 'x'], 2, "'x' is not NAME=VALUE"),
    (['--input', 'in.tsv', 'quoting=x'], 2, 'quoting=x'),
    (['--input', 'in.tsv', '--share', 'other=1'], 2, "origin 'other'"),
    (['--input', 'in.tsv', '--share', 'systems'], 2, 'ORIGIN=X'),
    (['--input', 'in.tsv', '--lengths', '1,2'], 2, '--denoise FILE'),
    (['--denoise', 'in.tsv', '--lengths', '3,2'], 2, 'LOW <= HIGH'),
    (['--denoise', 'in.tsv', '--mask-share', '2'], 2, 'mask_share'),
    (['--input', 'in.tsv', '--mask-share', '.5'], 2, 'is for --denoise'),
    (['--input', 'in.tsv', '--mask-token', 'X'], 2, '--mask-token is for'),
    (['--input', 'in.tsv', '--versions', '1'], 2, '--versions is for'),
    (['--input', 'in.tsv', '--keep-sentences'], 2, 'is for --denoise'),
    (['--denoise', 'in.tsv', '--per-source', '3'], 2, 'is for --input'),
    (['--denoise', 'in.tsv', '--share', 'systems=.5'], 2, 'is for --input'),
    (['--input', 'in.tsv', '--share', 'denoised=.5'], 2, 'is for --denoise'),
    (['--input', 'in.tsv', '--share', 'paraphrases=1'], 2, '--paraphrases'),
    (['--input', 'none.tsv'], 1, 'none.tsv'),
    (['--input', 'in.tsv', 'where:a=1,b=2'], 2, 'for another column'),
    (['--input', 'in.tsv', 'where:year=1'], 1, "no column 'year'"),
    (['--input', 'in.tsv', 'where:system=z*'], 1, 'no row matches'),
    (
      ['--input', 'in.tsv', '--held-out', 'in.tsv', 'where:system=Z'],
      1,
      'in.tsv: no row matches where:system=Z',
    ),
    (['--input', 'in.tsv', '--denoise', '-'], 2, '--denoise -: is standard'),
    (['--input', '.'], 2, '--input .: is a folder'),
    (
      ['--input', 'in.tsv', '--share', 'reference=0', '--per-source', '0'],
      1,
      'no pairs',
    ),
    (['--paraphrases', 'in.tsv'], 0, ''),
    (['--paraphrases', 'one.txt'], 1, 'line 1: a line needs two texts'),
    (['--paraphrases', 'bad.jsonl'], 1, 'line 1: not a JSON list'),
  ],
)
def test_errors_say_what_to_do(
  arguments, code, message, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  _write('in.tsv')
  pathlib.Path('one.txt').write_text('alone\n')
  pathlib.Path('bad.jsonl').write_text('{"a": 1}\n')
  assert _run(*arguments, '-o', 'out') == code
  err = capsys.readouterr().err
  assert message in err and err.count('\n') == (code > 0)
  # Nothing is left of the work, nor in the way of the next try.
  assert not list(tmp_path.glob('out/.*'))
  assert not code or not pathlib.Path('out').exists()


@pytest.mark.parametrize(
  'option', ['input', 'held-out', 'paraphrases', 'reconstructions', 'denoise']
)
def test_what_cannot_be_read_twice_is_refused(option, tmp_path, capsys):
  """A full pipe, which would be empty when it is read once more."""
  _write(tmp_path / 'in.tsv')
  reading, writing = os.pipe()
  try:
    with open(writing, 'w') as pipe:
      pipe.write('a\tb\n')
    path = f'/dev/fd/{reading}'
    words = ['--input', tmp_path / 'in.tsv', f'--{option}', path]
    assert _run(*words, '-o', tmp_path / 'out') == 2
    err = capsys.readouterr().err
    assert f'--{option} {path}: is a pipe' in err and err.count('\n') == 1
    assert not (tmp_path / 'out').exists()
  finally:
    os.close(reading)


def test_a_mistake_in_an_input_can_be_corrected(tmp_path, capsys):
  _write(tmp_path / 'in.tsv')
  out = tmp_path / 'out'
  lines = tmp_path / 'lines.txt'
  lines.write_bytes(b'\xff\n')
  command = ['--input', tmp_path / 'in.tsv', '-o', out, '--denoise', lines]
  assert _run(*command) == 1
  assert 'invalid UTF-8' in capsys.readouterr().err
  lines.write_text(f'{_long()}\n')
  out.mkdir()  # somebody's empty folder is as good as none
  assert not _run(*command)
  # And later it is said in words what is another.
  lines.write_text(f'{_long()} more\n')
  assert _run(*command) == 1
  err = capsys.readouterr().err
  assert 'denoise: file 1: the contents' in err
  assert _run(*command[:-2], '--held-out', tmp_path / 'in.tsv') == 1
  err = capsys.readouterr().err
  assert (
    'held_out: 0 files before, 1 now; denoise: 1 files before, 0 now' in err
  )


def test_where_and_columns_choose_rows(tmp_path):
  lines = ['year\tlp\thyp\tref', '2015\tcs-en\ta\tb', '2016\ten-de\tc\td']
  (tmp_path / 'x.tsv').write_text('\n'.join([*lines, '2017\tcs-en\te\tf', '']))
  columns = 'hypothesis=hyp', 'reference=ref', 'language_pair=lp'
  rows = 'where:year=2015,2016', 'where:lp=*-en'
  _run('--input', tmp_path / 'x.tsv', *columns, *rows, '-o', tmp_path / 'out')
  (row,) = _flat(tmp_path / 'out')
  assert row == {
    'hypothesis': 'a',
    'reference': 'b',
    'origin': 'reference',
    'language_pair': 'cs-en',
  }


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=8))
def test_distinct_numbers(batches):
  found, seen = pairs.Distinct(), set()
  for batch in batches:
    new = found.add(np.array(batch, np.uint64))
    for number, flag in zip(batch, new, strict=True):
      assert flag == (number not in seen)
      seen.add(number)
  assert len(found) == len(seen)
