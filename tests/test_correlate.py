"""`t5score correlate` on files, as a user would run it."""

import argparse
import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from t5score_jax.commands import correlate

SYSTEMS = ('A', 'B', 'C')


def run(*arguments):
  parser = argparse.ArgumentParser()
  correlate.add_arguments(parser)
  return correlate.run(parser.parse_args([str(a) for a in arguments]))


@pytest.fixture
def folder(tmp_path):
  """human.tsv and two JSONL files as `t5score score` writes them."""
  rng = np.random.default_rng(0)
  rows = [(s, str(n)) for s in SYSTEMS for n in range(20)]
  human = rng.normal(size=len(rows)) + np.repeat([0, 1, 2], 20)
  good = human + 0.3 * rng.normal(size=len(rows))
  poor = rng.normal(size=len(rows))
  with open(tmp_path / 'human.tsv', 'w') as out:
    out.write('lp\tsystem\tseg_id\ttext\tmqm\n')
    for (system, segment), z in zip(rows, human, strict=True):
      out.write(f'zh-en\t{system}\t{segment}\t"a\t{float(z)!r}\n')
  for name, values in (('good', good), ('poor', poor)):
    with gzip.open(tmp_path / f'{name}.jsonl.gz', 'wt') as out:
      # Another order than the ratings': files are joined by name.
      for i in rng.permutation(len(rows)):
        row = {
          'system': rows[i][0],
          'segment': rows[i][1],
          'language_pair': 'zh-en',
          'score': float(values[i]),
        }
        out.write(json.dumps(row) + '\n')
  expected = {
    name: np.corrcoef(human, values)[0, 1]
    for name, values in (('good', good), ('poor', poor))
  }
  (tmp_path / 'expected.json').write_text(json.dumps(expected))
  return tmp_path


@pytest.fixture
def inputs(folder):
  return [
    folder / 'human.tsv',
    f'good={folder / "good.jsonl.gz"}',
    f'poor={folder / "poor.jsonl.gz"}',
    '--human',
    'mqm',
  ]


def test_files_are_joined_by_name_whatever_their_order(folder, inputs, capsys):
  assert run(*inputs, '--format', 'json') == 0
  found = json.loads(capsys.readouterr().out)
  assert found['statistic'] == 'pearson'
  values = {r['metric']: r['value'] for r in found['results']}
  assert values == pytest.approx(
    json.loads((folder / 'expected.json').read_text())
  )
  assert {r['language_pair'] for r in found['results']} == {'zh-en'}


def test_the_table_says_what_it_compared(inputs, capsys):
  assert run(*inputs, '--baseline', 'poor', '--seed', 3) == 0
  text = capsys.readouterr().out
  assert 'good' in text and 'minus poor' in text
  assert '1000 resamples, seed 3' in text


def test_system_level_and_output_file(folder, inputs, capsys):
  out = folder / 'table.md'
  code = run(*inputs, '--level', 'system', '--format', 'markdown', '-o', out)
  assert code == 0
  assert capsys.readouterr().out == ''
  assert out.read_text().startswith('| metric')
  assert '| n      |      3 |' in out.read_text()


def test_ranked_pairs_need_no_human_column(folder, capsys):
  pairs = folder / 'pairs.tsv'
  pairs.write_text('lp\tsid\tbetter\tworse\nzh-en\t3\tC\tA\nzh-en\t4\tB\tA\n')
  metric = f'good={folder / "good.jsonl.gz"}'
  assert run(metric, '--stat', 'darr', '--pairs', pairs) == 0
  assert capsys.readouterr().out.splitlines()[-1].split() == ['n', '2']


def test_columns_can_be_renamed(folder, capsys):
  (folder / 'odd.csv').write_text(
    'which,id,"the, rating",m\nA,1,0.5,1\nA,2,0.7,2\nA,3,"0.6",1.5\n'
  )
  code = run(
    folder / 'odd.csv',
    '--columns',
    'system=which,segment=id,mqm=the; rating'.replace(';', ','),
    '--human',
    'mqm',
    '--metrics',
    'm',
  )
  # A comma separates the pairs of --columns, so this name cannot be given.
  assert code == 1
  assert 'NAME=COLUMN' in capsys.readouterr().err
  (folder / 'odd.csv').write_text(
    'which,id,"rating",m\nA,1,0.5,1\nA,2,0.7,2\nA,3,"0.6",1.5\n'
  )
  code = run(
    folder / 'odd.csv',
    '--columns',
    'system=which,segment=id,mqm=rating',
    '--human',
    'mqm',
    '--metrics',
    'm',
    '--format',
    'json',
  )
  assert code == 0
  (row,) = json.loads(capsys.readouterr().out)['results']
  assert row['value'] == pytest.approx(1.0)


def problem(capsys, *arguments):
  assert run(*arguments) == 1
  captured = capsys.readouterr()
  assert captured.out == ''
  return captured.err


def test_errors_name_file_line_and_field(folder, inputs, capsys):
  bad = folder / 'bad.tsv'
  head = 'lp\tsystem\tsegment\tscore\n'
  bad.write_text(head + 'zh-en\tA\t0\t1.0\nzh-en\tA\t1\tnan\n')
  said = problem(capsys, *inputs[:1], f'bad={bad}', '--human', 'mqm')
  assert "bad.tsv, line 3, field 'score'" in said and 'finite' in said
  bad.write_text(head + 'zh-en\tA\t0\t1.0\nzh-en\tA\n')
  said = problem(capsys, *inputs[:1], f'bad={bad}', '--human', 'mqm')
  assert 'bad.tsv, line 3' in said and '2 fields' in said
  bad.write_text(head + 'zh-en\tA\t0\t1.0\nzh-en\tA\t0\t2.0\n')
  said = problem(capsys, *inputs[:1], f'bad={bad}', '--human', 'mqm')
  assert 'bad.tsv, line 3' in said and 'second row' in said


def test_missing_entries_stop_unless_intersected(folder, inputs, capsys):
  short = folder / 'short.jsonl'
  with gzip.open(folder / 'good.jsonl.gz', 'rt') as lines:
    short.write_text(''.join(list(lines)[:-4]))
  arguments = [*inputs[:1], f'short={short}', '--human', 'mqm']
  assert '4 (system, segment) entries' in problem(capsys, *arguments)
  assert run(*arguments, '--intersect') == 0
  text = capsys.readouterr().out
  assert 'Note: zh-en: 4 (system, segment) entries left out' in text
  assert '56' in text


@pytest.mark.parametrize(
  'extra, said',
  [
    (['--human', 'nothing'], "no file has a column 'nothing'"),
    (['--baseline', 'x'], "the baseline 'x' is not among"),
    (['--metrics', 'good,good'], 'named twice'),
    (['--stat', 'darr', '--level', 'system'], 'no system level'),
    (
      ['--language-pair', 'de-en'],
      "no language pair 'de-en'; the files have zh-en",
    ),
    (['--columns', 'system'], 'NAME=COLUMN'),
    (['--exclude-systems', '['], 'regular expression'),
    (['--top-k', '1'], '2 or more'),
  ],
)
def test_contradictions_are_said(inputs, capsys, extra, said):
  assert said in problem(capsys, *inputs, *extra)


def test_files_with_other_keys_cannot_be_joined(folder, inputs, capsys):
  bare = folder / 'bare.tsv'
  bare.write_text('segment\tscore\n1\t2\n')
  said = problem(capsys, *inputs[:1], f'bare={bare}', '--human', 'mqm')
  assert 'bare.tsv has segment' in said and '--columns' in said


def test_a_missing_file_is_said(folder, capsys):
  assert 'nowhere.tsv' in problem(
    capsys, folder / 'nowhere.tsv', '--human', 'mqm'
  )


def test_pooling_over_language_pairs(folder, capsys):
  path = folder / 'two.tsv'
  rows = ['lp\tsystem\tsegment\thuman\tm']
  values = {
    'zh-en': [(1, 2), (2, 1), (3, 5)],
    'de-en': [(9, 7), (8, 8), (7, 9)],
  }
  for pair, scored in values.items():
    for n, (h, m) in enumerate(scored):
      rows.append(f'{pair}\tA\t{n}\t{h}\t{m}')
  path.write_text('\n'.join(rows) + '\n')
  arguments = [path, '--human', 'human', '--metrics', 'm', '--format', 'json']
  assert run(*arguments, '--by', 'none') == 0
  (row,) = json.loads(capsys.readouterr().out)['results']
  pooled = np.array([*values['zh-en'], *values['de-en']])
  assert row['value'] == pytest.approx(np.corrcoef(pooled.T)[0, 1])
  assert run(*arguments) == 0
  rows = json.loads(capsys.readouterr().out)['results']
  assert [r['language_pair'] for r in rows] == ['zh-en', 'de-en', 'Avg']


def test_correlating_imports_no_accelerator_library():
  code = (
    'import sys; import t5score_jax.commands.correlate; '
    'import t5score_jax.evaluation.permutation; '
    'import t5score_jax.evaluation.wmt_files; '
    "print([m for m in ('jax', 'flax', 'tensorflow', 'seqio') "
    'if m in sys.modules])'
  )
  found = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert found.stdout.strip() == '[]'


def test_a_file_for_each_language_pair(folder, inputs, capsys):
  for pair in ('de-en', 'en-cs'):
    for name in ('human.tsv', 'good.jsonl.gz'):
      path = folder / name
      if name.endswith('.gz'):
        with gzip.open(path, 'rt') as lines:
          text = lines.read()
      else:
        text = path.read_text()
      other = folder / f'{pair}.{name.removesuffix(".gz")}'
      other.write_text(text.replace('zh-en', pair))
  judged = inputs[:2]
  for pair in ('de-en', 'en-cs'):
    judged += [
      folder / f'{pair}.human.tsv',
      f'good={folder / f"{pair}.good.jsonl"}',
    ]
  options = ['--human', 'mqm', '--format', 'json']
  assert run(*judged, *options) == 0
  rows = json.loads(capsys.readouterr().out)['results']
  columns = ['zh-en', 'de-en', 'en-cs', 'Avg-en', 'Avg-x', 'Avg']
  assert [r['language_pair'] for r in rows] == columns
  assert rows[0]['value'] == pytest.approx(rows[2]['value'])
  # A language pair that nobody judged is left out, and said.
  (folder / 'en-cs.human.tsv').unlink()
  rest = [a for a in judged if not str(a).endswith('en-cs.human.tsv')]
  assert run(*rest, '--human', 'mqm') == 0
  assert 'without human judgments: en-cs' in capsys.readouterr().out
  twice = f'good={folder / "good.jsonl.gz"}'
  said = problem(capsys, *rest, twice, *options)
  assert 'good.jsonl.gz, line 1' in said and 'too; name one of them' in said


def test_an_output_that_is_an_input_is_refused(folder, inputs, capsys):
  path = folder / 'good.jsonl.gz'
  before = path.read_bytes()
  assert run(*inputs, '-o', path) == 2
  assert f'-o {path}: is an input too' in capsys.readouterr().err
  (folder / 'link.png').symlink_to(path)
  assert run(*inputs, '--plot', folder / 'link.png') == 2
  assert '--plot' in capsys.readouterr().err
  assert path.read_bytes() == before
