"""`t5score board` as a user runs it."""

import itertools
import json
import os
import sqlite3
import subprocess
import sys

import board_data
import pytest

pytest.importorskip('sklearn')
pytest.importorskip('pandas')

from t5score_jax import cli  # noqa: E402


@pytest.fixture
def table(tmp_path):
  return board_data.write_table(tmp_path / 'table.tsv', *board_data.made_up())


def _run(capsys, *words):
  code = cli.main(['board', *map(str, words)])
  out, err = capsys.readouterr()
  return code, out, err


def test_init_and_rank(table, tmp_path, capsys):
  board = tmp_path / 'b.db'
  code, out, _ = _run(
    capsys, 'init', board, '--scores', table, '--human', 'human'
  )
  assert (code, out) == (
    0,
    f'{board}: 40 examples, 5 generators, 5 metrics\n',
  )
  code, out, _ = _run(capsys, 'rank', board, '--format', 'json')
  document = json.loads(out)
  assert set(document) == {'metrics', 'generators', 'ensemble', 'overrating'}
  assert [set(m) for m in document['metrics']] == [{'name', 'pearson'}] * 5
  values = [m['pearson'] for m in document['metrics']]
  assert values == sorted(values, reverse=True)
  assert set(document['ensemble']) == {'weights', 'leave_one_out', 'signature'}
  assert all(
    set(fit) == {'beta', 'ci90'} for fit in document['overrating'].values()
  )
  code, out, _ = _run(
    capsys,
    *('rank', board, '--format', 'json', '--intervals', '--costs'),
    *('--statistic', 'kendall'),
  )
  first = json.loads(out)['metrics'][0]
  assert {'interval', 'pareto_seconds', 'correlation'} <= set(first)
  code, out, _ = _run(capsys, 'rank', board)
  assert 'leave-one-generator-out' in out and 'overrates' in out


def test_a_board_that_lacks_everything_says_what(tmp_path, capsys):
  (tmp_path / 'in.tsv').write_text('id\tsource\treference\na\tx\ty\n')
  board = tmp_path / 'b.db'
  assert _run(capsys, 'init', board, '--inputs', tmp_path / 'in.tsv')[0] == 0
  code, out, _ = _run(capsys, 'rank', board)
  assert code == 0
  for what in ('metric', 'generator', 'human'):
    assert f'`t5score board add-{what}` adds' in out
  assert 'overrates' not in out


def test_a_metric_is_named_as_for_score(tmp_path, capsys, random_bundle):
  rows = 'id\tsource\treference\na\tx\tthe cat\nb\tx\ta dog\n'
  (tmp_path / 'in.tsv').write_text(rows)
  (tmp_path / 'one.txt').write_text('a cat\nthe dog\n')
  board = tmp_path / 'b.db'
  _run(capsys, 'init', board, '--inputs', tmp_path / 'in.tsv')
  _run(capsys, 'add-generator', board, tmp_path / 'one.txt')
  for spec in (random_bundle, f't5score={random_bundle}', 'chrf++'):
    code, out, err = _run(capsys, 'add-metric', board, '--library', spec)
    assert code == 0, err
  code, out, _ = _run(capsys, 'rank', board, '--format', 'json')
  names = {m['name'] for m in json.loads(out)['metrics']}
  assert names == {random_bundle.name, 't5score', 'chrf++'}


def test_ensemble_scores_a_table(table, tmp_path, capsys):
  board = tmp_path / 'b.db'
  _run(capsys, 'init', board, '--scores', table, '--human', 'human')
  _, out, _ = _run(capsys, 'ensemble', board, '--format', 'json')
  value = json.loads(out)['ensemble']
  code, out, _ = _run(capsys, 'ensemble', board, '--scores-table', table)
  lines = [json.loads(line) for line in out.splitlines()]
  assert len(lines) == 200
  for line in lines[:3]:
    assert line['score'] == pytest.approx(
      value['intercept'] + sum(w * line[n] for n, w in value['weights'].items())
    )
  code, _, err = _run(capsys, 'ensemble', board, '--version', '9')
  assert code == 1 and 'no version 9' in err
  before = table.read_bytes()
  code, _, err = _run(
    capsys, 'ensemble', board, '--scores-table', table, '-o', table
  )
  assert code == 2 and 'is an input too' in err and table.read_bytes() == before


def test_the_whole_way(table, tmp_path, capsys):
  """Export, import, build, roles, tokens."""
  board = tmp_path / 'b.db'
  _run(capsys, 'init', board, '--scores', table, '--human', 'human')
  assert _run(capsys, 'export', board, tmp_path / 'out')[0] == 0
  again = tmp_path / 'c.db'
  assert _run(capsys, 'init', again, '--folder', tmp_path / 'out')[0] == 0
  assert _run(capsys, 'build', again, tmp_path / 'site')[0] == 0
  assert (tmp_path / 'site' / 'index.html').is_file()
  code, out, _ = _run(
    capsys, 'overrating', again, '--set-role', 'mine=Human-X:given'
  )
  assert code == 0 and 'role mine' in out
  code, out, _ = _run(capsys, 'serve', again, '--new-token', 'ada:generator')
  assert code == 0 and len(out.strip()) > 30
  assert _run(capsys, 'serve', again, '--revoke', 'ada')[0] == 0


def test_boards_without_ranks_say_why(tmp_path, capsys):
  """No metric yet, then one that is constant; costs are counts."""
  board, texts = tmp_path / 'b.db', tmp_path / 'texts.txt'
  inputs = tmp_path / 'inputs.jsonl'
  inputs.write_text(
    '{"id": "a", "reference": "x"}\n{"id": "b", "reference": "y"}\n'
  )
  texts.write_text('x\ny\n')
  _run(capsys, 'init', board, '--inputs', inputs)
  words = ('add-generator', board, texts, '--parameters', '6e7')
  _, out, _ = _run(capsys, *words, '--name', 'one')
  assert 'not ranked' in out and ' of ' not in out.partition(',')[0]
  ratings = tmp_path / 'r.tsv'
  ratings.write_text('system\tid\tda\none\ta\t1\none\tb\t2\n')
  _, out, _ = _run(capsys, 'add-human', board, ratings)
  assert 'None' not in out and 'add-metric' in out
  _, out, _ = _run(capsys, 'add-metric', board, '--library', 'chrf')
  assert 'constant' in out
  _, out, _ = _run(capsys, 'rank', board, '--costs')
  assert ' 60,000,000' in out and '.000*' not in out.replace('0.000*', '')
  assert 'warning: a small board, 2 examples' in out


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (('rank', 'none.db'), 'no such board'),
    (('init', 'x.db', '--scores', 'none.tsv', '--human', 'h'), 'none.tsv'),
    (
      ('init', 'x.db', '--scores', 'table.tsv', '--human', 'human')
      + ('--ignore', 'm9'),
      "line 1: no column 'm9'",
    ),
    (('add-metric', 'B', '--library', 'nothing'), "no model 'nothing'"),
    (('add-metric', 'B', '--library', 'chfr'), "did you mean 'chrf'?"),
    (('add-metric', 'B', '--library', 'chrf'), 'give a table of scores'),
    (('add-human', 'B', 'none.tsv'), 'none.tsv'),
    (('overrating', 'B', '--role', 'x'), "no human role 'x'"),
    (('overrating', 'B', '--number-of-references'), 'without references'),
    (('build', 'B', 'none/there'), 'none'),
  ],
)
def test_errors_are_one_line(words, message, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  board_data.write_table(tmp_path / 'table.tsv', *board_data.made_up())
  board = board_data.small_board(tmp_path)
  code, out, err = _run(capsys, *(board if w == 'B' else w for w in words))
  assert code == 1 and out == ''
  assert message in err and err.count('\n') == 1, err
  assert not (tmp_path / 'x.db').exists()


_SCORES = ('init', 'x.db', '--scores', 'table.tsv', '--human', 'human')


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (('init', 'x.db', '--scores', 'none.tsv'), '--human COL'),
    ((*_SCORES, '--people', '('), "'(' is not a regular expression"),
    ((*_SCORES, '--reference', 'A=x'), '--reference is not for --scores'),
    ((*_SCORES, '--pair', 'en-de'), '--pair is not for --scores'),
    (('init', 'x.db', '--inputs', 'i', '--negate', 'm'), 'not for --inputs'),
    (('init', 'x.db', '--inputs', 'i', '--reference', 'x'), 'LABEL=COLUMN'),
    (('init', 'x.db', '--folder', 'f', '--ignore', 'm'), 'not for --folder'),
    (('init', 'x.db', '--folder', 'f', '--people', '('), 'regular expression'),
    (('rank', 'B', '--intervals'), '--intervals is for --format json'),
    (('ensemble', 'B', '-o', 'x'), 'is for --input and --scores-table'),
    (
      ('ensemble', 'B', '--scores-table', 'table.tsv', '--format', 'json'),
      '--format is not for scores',
    ),
    (('overrating', 'B', '--set-role', 'x'), 'NAME=GENERATOR'),
    (
      ('overrating', 'B', '--role', 'x', '--number-of-references'),
      '--role is not for',
    ),
    (('export', 'B', 'out', '--pair', 'en-de'), '--pair is for --layout wmt'),
    (('serve', 'B', '--new-token', 'a:king'), 'a role is one of'),
    (('serve', 'B', '--new-token', 'a:admin', '--revoke', 'b'), 'or --revoke'),
    (
      ('add-metric', 'B', '--library', 'chrf', '--several', 'max'),
      '--several is for --command',
    ),
    (
      ('add-metric', 'B', '--scores', 'table.tsv', '--option', 'a=b'),
      '--option is for --library',
    ),
    (('add-metric', 'B', '--library', 'chrf', '--option', 'a'), 'NAME=VALUE'),
    (('add-metric', 'B', '--command', 'table.tsv', '--limit', 'a'), 'a number'),
  ],
)
def test_wrong_usage_is_one_line(words, message, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  board_data.write_table(tmp_path / 'table.tsv', *board_data.made_up())
  board = board_data.small_board(tmp_path)
  code, out, err = _run(capsys, *(board if w == 'B' else w for w in words))
  assert code == 2 and out == ''
  assert message in err and err.count('\n') == 1, err
  assert not (tmp_path / 'x.db').exists()


def test_an_ensemble_that_is_not_stored_says_so(table, tmp_path, capsys):
  board = tmp_path / 'b.db'
  _run(capsys, 'init', board, '--scores', table, '--human', 'human')
  signature = _run(capsys, 'ensemble', board)[1].splitlines()[2]
  # Fitted to the same ratings: these are version 1 itself.
  for words in (
    ['--statistic', 'kendall'],
    ['--level', 'system'],
    ['--direction', 'either'],
    ['--several', 'max'],
  ):
    code, out, _ = _run(capsys, 'rank', board, *words)
    assert code == 0 and '\nensemble version 1: ' in out
    assert f'\n{signature}\n' in out
  # Fitted to fewer ratings: another one.
  systems, ids, columns = board_data.made_up()
  columns = {n: c.copy() for n, c in columns.items()}
  columns['human'][1] += 50
  far = tmp_path / 'far.db'
  path = board_data.write_table(tmp_path / 'far.tsv', systems, ids, columns)
  _run(capsys, 'init', far, '--scores', path, '--human', 'human')
  out = _run(capsys, 'rank', far, '--without-outliers')[1]
  assert '\nensemble of this ranking, not stored: ' in out
  assert '+version.0|' in out and 'version 2' not in out
  assert len(_versions(capsys, far)) == 1


def _versions(capsys, board):
  out = _run(capsys, 'ensemble', board, '--format', 'json')[1]
  return json.loads(out)['versions']


def test_import_keeps_versions_as_they_are(table, tmp_path, capsys):
  board, again, third = (tmp_path / f'{n}.db' for n in 'abc')
  _run(capsys, 'init', board, '--scores', table, '--human', 'human')
  with sqlite3.connect(board) as connection:
    for name, column in (
      ('version', 'created'),
      ('generator', 'submitted'),
      ('metric', 'submitted'),
    ):
      connection.execute(
        f"UPDATE {name} SET {column} = '2020-02-02T02:02:02+00:00'"
      )
  before = _versions(capsys, board)
  assert len(before) == 1 and before[0]['created'].startswith('2020')
  assert _run(capsys, 'export', board, tmp_path / 'out')[0] == 0
  words = 'init', again, '--folder', tmp_path / 'out'
  code, _, err = _run(capsys, *words, '--task', 'x')
  assert code == 2 and '--task is not for the folder of an exported' in err
  assert _run(capsys, *words)[0] == 0
  assert _versions(capsys, again) == before
  _run(capsys, 'export', again, tmp_path / 'more')
  for path in sorted((tmp_path / 'out').rglob('*')):
    if path.is_file():
      there = tmp_path / 'more' / path.relative_to(tmp_path / 'out')
      assert there.read_bytes() == path.read_bytes(), path
  ranks = [_run(capsys, 'rank', b)[1] for b in (board, again)]
  assert ranks[0] == ranks[1]
  # Under another name too; the version says whose it was.
  _run(capsys, 'init', third, '--folder', tmp_path / 'out', '--name', 'other')
  assert _versions(capsys, third) == before
  # A time that is none is an error.
  path = tmp_path / 'out' / 'versions.jsonl'
  path.write_text(path.read_text().replace('2020-02', 'then'))
  code, _, err = _run(
    capsys, 'init', tmp_path / 'd.db', '--folder', tmp_path / 'out'
  )
  assert code == 1 and 'then-02' in err


@pytest.mark.slow
def test_tables_where_the_output_is_ascii(table, tmp_path, capsys):
  board = tmp_path / 'b.db'
  assert not _run(capsys, 'init', board, '--scores', table, '--human', 'human')[
    0
  ]
  done = subprocess.run(
    [sys.executable, '-m', 't5score_jax', 'board', 'overrating', str(board)],
    env={**os.environ, 'PYTHONIOENCODING': 'ascii', 'LC_ALL': 'C'},
    capture_output=True,
  )
  assert done.returncode == 0, done.stderr
  assert ' ±' in done.stdout.decode('utf-8')
  # And where the reader goes away.
  with subprocess.Popen(
    [sys.executable, '-m', 't5score_jax', 'board', 'rank', str(board)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  ) as process:
    process.stdout.close()
    errors = process.stderr.read()
  assert process.returncode == 141 and not errors


def test_a_missing_extra_is_named(tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, 'uvicorn', None)
  code, _, err = _run(capsys, 'serve', board_data.small_board(tmp_path))
  assert code == 1
  assert "pip install 't5score-jax[server]'" in err


@pytest.mark.parametrize(
  'subcommand',
  ['init', 'export', 'add-generator', 'add-metric', 'add-human', 'rank']
  + ['ensemble', 'overrating', 'build', 'serve'],
)
def test_help_is_wrapped(subcommand, capsys, monkeypatch):
  monkeypatch.setenv('COLUMNS', '80')
  with pytest.raises(SystemExit):
    cli.main(['board', subcommand, '--help'])
  lines = capsys.readouterr().out.splitlines()
  # Usage lines are argparse's own.
  assert max(map(len, lines[lines.index('') :])) <= 80
  # No line of a description ends long before the next word would.
  shown = lines[lines.index('') + 1 :]
  for line, following in itertools.pairwise(shown[: shown.index('')]):
    first = following.split()[0] if following.split() else ''
    if line and first and not line.endswith((':', '.')):
      indent = len(following) - len(following.lstrip())
      assert indent or len(line) + 1 + len(first) > 76, line


def test_help_lists_all_options(capsys):
  with pytest.raises(SystemExit) as done:
    cli.main(['board', '--help'])
  assert done.value.code == 0
  out = capsys.readouterr().out
  for option in ('--scores', '--statistic', '--new-token', '--several'):
    assert option in out
