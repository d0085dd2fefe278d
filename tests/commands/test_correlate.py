"""`t5score correlate` on files, as a user would run it."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from t5score_jax import cli

SYSTEMS = ('A', 'B', 'C')


def run(*arguments):
  return cli.main(['correlate', *map(str, arguments)])


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
  assert run(*inputs, '--table', 'json') == 0
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
  code = run(*inputs, '--level', 'system', '--table', 'markdown', '-o', out)
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
  assert code == 2
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
    '--table',
    'json',
  )
  assert code == 0
  (row,) = json.loads(capsys.readouterr().out)['results']
  assert row['value'] == pytest.approx(1.0)


def problem(capsys, *arguments, code=1):
  assert run(*arguments) == code
  captured = capsys.readouterr()
  assert captured.out == '' and captured.err.count('\n') == 1
  return captured.err


def test_errors_name_file_line_and_field(folder, inputs, capsys):
  bad = folder / 'bad.tsv'
  head = 'lp\tsystem\tsegment\tscore\n'
  bad.write_text(head + 'zh-en\tA\t0\t1.0\nzh-en\tA\t1\tnan\n')
  message = problem(capsys, *inputs[:1], f'bad={bad}', '--human', 'mqm')
  assert "bad.tsv, line 3, field 'score'" in message and 'finite' in message
  bad.write_text(head + 'zh-en\tA\t0\t1.0\nzh-en\tA\n')
  message = problem(capsys, *inputs[:1], f'bad={bad}', '--human', 'mqm')
  assert 'bad.tsv, line 3' in message and '2 fields' in message
  bad.write_text(head + 'zh-en\tA\t0\t1.0\nzh-en\tA\t0\t2.0\n')
  message = problem(capsys, *inputs[:1], f'bad={bad}', '--human', 'mqm')
  assert 'bad.tsv, line 3' in message and 'second row' in message


@pytest.mark.parametrize('cell', ['1_0', ' 1', '١', 'nan', '1e999'])
def test_numbers_are_read_strictly(folder, capsys, cell):
  path = folder / 'odd.tsv'
  path.write_text(f'system\tsegment\thuman\tm\nA\t1\t2\t1\nA\t2\t3\t{cell}\n')
  message = problem(capsys, path, '--human', 'human', '--metrics', 'm')
  assert "odd.tsv, line 3, field 'm'" in message


def test_ranked_pairs_that_contradict_or_repeat_are_noted(folder, capsys):
  path, pairs = folder / 'scores.tsv', folder / 'pairs.tsv'
  rows = [f'a-b\t{s}\t{n}\t{v}' for n in '12' for s, v in ('A2', 'B1')]
  path.write_text('\n'.join(['lp\tsystem\tsegment\tm', *rows]) + '\n')
  ranked = ['1\tA\tB', '2\tA\tB', '1\tB\tA', '2\tA\tB']
  lines = ['lp\tsid\tbetter\tworse', *(f'a-b\t{row}' for row in ranked)]
  arguments = [path, '--metrics', 'm', '--stat', 'darr', '--pairs', pairs]
  pairs.write_text('\n'.join(lines) + '\n')
  assert run(*arguments, '--table', 'json') == 0
  report = json.loads(capsys.readouterr().out)
  assert report['results'][0]['value'] == 0.5
  assert [note.partition('pairs.tsv: ')[2] for note in report['notes']] == [
    '1 ranked pairs contradict earlier ones, the first in line 4; every row'
    ' counts',
    '1 ranked pairs repeat earlier ones, the first in line 5; every row counts',
  ]
  pairs.write_text('\n'.join(lines[:3]) + '\n')
  assert run(*arguments) == 0
  assert 'ranked pairs' not in capsys.readouterr().out


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
  'extra, code, message',
  [
    # What the files hold.
    (['--human', 'nothing'], 1, "no file has a column 'nothing'"),
    (
      ['--language-pair', 'de-en'],
      1,
      "no language pair 'de-en'; the files have zh-en",
    ),
    # What the command line says by itself.
    (['--baseline', 'x'], 2, '--baseline x: is not among'),
    (['--unsupervised', 'good,pour'], 2, "did you mean 'poor'"),
    (['--metrics', 'good,good'], 2, 'named twice'),
    (['--stat', 'darr', '--level', 'system'], 2, 'no system level'),
    (['--group', 'item', '--level', 'system'], 2, 'segment level'),
    (['--columns', 'system'], 2, 'NAME=COLUMN'),
    (['--exclude-systems', '['], 2, 'regular expression'),
    (['--exclude-outliers', '-1'], 2, 'above 0'),
    (['--top-k', '1'], 2, '2 or more'),
    (['--top-k', '0'], 2, '2 or more'),
    (['--top-k', ','], 2, '2 or more'),
    (['--top-k', '3,3'], 2, 'comes twice'),
    (['--plot', 'x.gif'], 2, 'x.gif: a picture is'),
    (['--mqm-weights', 'Major:x'], 2, '--mqm-weights is for a table of MQM'),
    (['--test-set', 'x'], 2, "is for WMT's score file, which no file is"),
    (['--by-line'], 2, '--by-line is for'),
    (['--normalise', 'z'], 2, '--normalise is for --report categories'),
    (['--data', 'x'], 2, '--data is for --report wmt20'),
    (['--swap', 'systems'], 2, '--swap is for --test permutation'),
    (['--swap', 'both', '--test', 'bootstrap'], 2, '--swap is for'),
    (['--no-early-stop'], 2, '--no-early-stop is for --test permutation'),
    (['--permutations', '9'], 2, '--permutations is for'),
    (['--plot-kind', 'curves'], 2, '--plot-kind is for --plot'),
    (['--min-gap', '25'], 2, '--min-gap is for --stat darr'),
    (['--ties', 'neutral'], 2, '--ties is for --stat darr'),
    (['--unit', 'pair'], 2, '--unit is for --stat darr'),
    (['--unit', 'pair', '--stat', 'darr'], 2, '--unit is for --stat darr'),
    (['--pairs', 'x'], 2, '--pairs is for --stat darr'),
    (
      ['--stat', 'darr', '--pairs', 'x', '--min-gap', '2'],
      2,
      '--min-gap is for --stat darr without --pairs',
    ),
    (['--report', 'categories', '--level', 'segment'], 2, 'is not for'),
    (['--report', 'categories', '--test', 'bootstrap'], 2, 'is not for'),
    (['--report', 'wmt20'], 2, '--human is not for --report wmt20'),
  ],
)
def test_contradictions_are_usage_errors(inputs, capsys, extra, code, message):
  assert message in problem(capsys, *inputs, *extra, code=code)


def test_a_reader_that_goes_away(inputs):
  words = ['-m', 't5score_jax', 'correlate', *map(str, inputs)]
  with subprocess.Popen(
    [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
  ) as process:
    process.stdout.close()
    message = process.stderr.read()
  assert process.returncode == 141 and not message


def test_human_scores_are_asked_for(inputs, capsys):
  assert '--human COL' in problem(capsys, *inputs[:3], code=2)


def test_options_with_an_effect_are_taken(inputs, capsys):
  for extra in (
    ['--stat', 'darr', '--ties', 'neutral', '--min-gap', 1],
    ['--stat', 'darr', '--min-gap', 1, '--unit', 'pair', '--bootstrap', 100],
    ['--test', 'permutation', '--swap', 'systems', '--permutations', 20],
    ['--quoting', 'none', '--level', 'segment', '--group', 'none'],
    ['--unsupervised', 'poor', '--bootstrap', 100],
  ):
    assert run(*inputs, *extra) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
  'extra, message',
  [
    (['--digits', '-1'], 'argument --digits: -1: must be 0 to 17'),
    (['--digits', '18'], 'must be 0 to 17'),
    (['--bootstrap', '-3'], 'argument --bootstrap: -3: must be 0, or at least'),
    (['--permutations', '0'], 'must be at least 1'),
    (['--seed', '-1'], 'must be at least 0'),
    (['--seed', 'x'], "invalid number value: 'x'"),
  ],
)
def test_numbers_out_of_range(inputs, capsys, extra, message):
  with pytest.raises(SystemExit) as done:
    run(*inputs, *extra)
  assert done.value.code == 2 and message in capsys.readouterr().err


def test_files_may_stand_between_options(folder, capsys):
  good, poor = (f'{n}={folder / n}.jsonl.gz' for n in ('good', 'poor'))
  options = '--human', 'mqm', '--bootstrap', 100
  tables = []
  for words in (
    [folder / 'human.tsv', good, poor, *options],
    [folder / 'human.tsv', *options[:2], good, poor, *options[2:]],
  ):
    assert run(*words) == 0
    tables.append(capsys.readouterr().out)
  assert tables[0] == tables[1]
  assert '20 segments are few: bootstrap intervals are too' in tables[0]


def _flat(path, segments):
  rows = [
    f'{s}\t{n}\t{h}\t.5'
    for n in range(segments)
    for h, s in [*enumerate('ABC')]
  ]
  path.write_text('\n'.join(['system\tsegment\th\tm', *rows]) + '\n')
  return [path, '--human', 'h', '--metrics', 'm', '--level', 'system']


def test_constant_scores_are_noted_by_every_statistic(tmp_path, capsys):
  words = _flat(tmp_path / 'flat.tsv', 3)
  for stat in ('pearson', 'kendall', 'accuracy', 'soft-accuracy'):
    assert run(*words, '--stat', stat) == 0
    assert 'scores of m do not vary' in capsys.readouterr().out, stat


def test_soft_accuracy_of_one_segment(tmp_path, capsys):
  words = _flat(tmp_path / 'one.tsv', 1)
  message = problem(capsys, *words, '--stat', 'soft-accuracy')
  assert 'permutes segments, and there is only one' in message


def test_a_missing_column_is_said_with_those_there_are(folder, capsys):
  message = problem(
    capsys, folder / 'human.tsv', '--human', 'mqm', '--metrics', 'txt'
  )
  assert "did you mean 'text'? There are: mqm, text" in message


def test_the_table_stays_if_it_cannot_be_drawn(folder, capsys):
  pytest.importorskip('matplotlib')
  names = [f'm{n}' for n in range(13)]
  lines = ['\t'.join(['system', 'segment', 'h', *names])]
  lines += [
    '\t'.join(['A', str(n), *(['1', '2', '4'][n] for _ in range(14))])
    for n in range(3)
  ]
  path = folder / 'many.tsv'
  path.write_text('\n'.join(lines) + '\n')
  picture = folder / 'x.png'
  code = run(
    path,
    '--human',
    'h',
    '--metrics',
    ','.join(names),
    '--plot',
    picture,
    '--plot-kind',
    'scatter',
  )
  shown = capsys.readouterr()
  assert code == 1 and 'do not fit' in shown.err
  assert shown.out.splitlines()[13].split() == ['m12', '1.0000']
  assert not picture.exists()


def test_curves_say_what_they_are_over(folder, capsys):
  rows = ['lp\tsystem\tsegment\th\tm']
  for pair in ('a-b', 'c-d', 'e-f'):
    rows += [
      f'{pair}\t{s}\t{n}\t{k + n}\t{k * n + k}'
      for k, s in enumerate('ABCD')
      for n in range(3)
    ]
  path = folder / 'pairs.tsv'
  path.write_text('\n'.join(rows) + '\n')
  words = [path, '--human', 'h', '--metrics', 'm', '--level', 'system']
  assert run(*words, '--top-k', '2,4') == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == 'Avg: mean over language pairs (n of them)'
  assert lines[-1].split() == ['n', '3', '3']
  assert run(*words, '--top-k', '2,4', '--language-pair', 'c-d') == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == 'c-d' and lines[-1].split() == ['n', '2', '4']


def test_files_with_other_keys_cannot_be_joined(folder, inputs, capsys):
  bare = folder / 'bare.tsv'
  bare.write_text('segment\tscore\n1\t2\n')
  message = problem(capsys, *inputs[:1], f'bare={bare}', '--human', 'mqm')
  assert 'bare.tsv has segment' in message and '--columns' in message


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
  arguments = [path, '--human', 'human', '--metrics', 'm', '--table', 'json']
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
    'import t5score_jax.evaluation.readers.wmt; '
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
  options = ['--human', 'mqm', '--table', 'json']
  assert run(*judged, *options) == 0
  rows = json.loads(capsys.readouterr().out)['results']
  columns = ['zh-en', 'de-en', 'en-cs', 'Avg-en', 'Avg-x', 'Avg']
  assert [r['language_pair'] for r in rows] == columns
  assert rows[0]['value'] == pytest.approx(rows[2]['value'])
  # A language pair that nobody judged is left out, and message.
  (folder / 'en-cs.human.tsv').unlink()
  rest = [a for a in judged if not str(a).endswith('en-cs.human.tsv')]
  assert run(*rest, '--human', 'mqm') == 0
  assert 'without human judgments: en-cs' in capsys.readouterr().out
  twice = f'good={folder / "good.jsonl.gz"}'
  message = problem(capsys, *rest, twice, *options)
  assert 'good.jsonl.gz, line 1' in message and 'NAME=FILE' in message


def test_an_output_that_is_an_input_is_refused(folder, inputs, capsys):
  path = folder / 'good.jsonl.gz'
  before = path.read_bytes()
  assert run(*inputs, '-o', path) == 2
  assert f'-o {path}: is an input too' in capsys.readouterr().err
  (folder / 'link.png').symlink_to(path)
  assert run(*inputs, '--plot', folder / 'link.png') == 2
  assert '--plot' in capsys.readouterr().err
  assert path.read_bytes() == before


def test_files_without_segments_are_joined_row_by_row(tmp_path, capsys):
  human = [3, 1, 2, 5, 4, 9]
  for name, key, values in (
    ('human', 'rating', human),
    ('ours', 'score', [2 * x for x in human]),
    ('short', 'score', human[:-1]),
  ):
    lines = [json.dumps({'system': 'A', key: value}) for value in values]
    (tmp_path / f'{name}.jsonl').write_text('\n'.join(lines))
  files = [tmp_path / 'human.jsonl', f'm={tmp_path / "ours.jsonl"}']
  assert run(*files, '--human', 'rating', '--table', 'json') == 0
  printed = capsys.readouterr().out
  assert '1.0' in printed and 'joined by their number' in printed
  files[1] = f'm={tmp_path / "short.jsonl"}'
  assert run(*files, '--human', 'rating') == 1
  message = capsys.readouterr().err
  assert '6 rows' in message and '5 rows' in message
