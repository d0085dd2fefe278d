"""`t5score board` as a user runs it."""

import json
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


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (('rank', 'none.db'), 'no such board'),
    (('init', 'x.db', '--scores', 'none.tsv', '--human', 'h'), 'none.tsv'),
    (('init', 'x.db', '--scores', 'none.tsv'), '--human COL'),
    (('add-metric', 'B', '--library', 'nothing'), "no metric 'nothing'"),
    (('add-metric', 'B', '--library', 'chrf'), 'give a table of scores'),
    (('add-human', 'B', 'none.tsv'), 'none.tsv'),
    (('overrating', 'B', '--role', 'x'), "no human role 'x'"),
    (('overrating', 'B', '--set-role', 'x'), 'NAME=GENERATOR'),
    (('overrating', 'B', '--number-of-references'), 'without references'),
    (('serve', 'B', '--new-token', 'a:king'), 'a role is one of'),
    (('build', 'B', 'none/there'), 'no folder'),
  ],
)
def test_errors_are_one_line(words, message, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  board = board_data.small_board(tmp_path)
  code, out, err = _run(capsys, *(board if w == 'B' else w for w in words))
  assert code == 1 and out == ''
  assert message in err and err.count('\n') == 1, err


def test_a_missing_extra_is_named(tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, 'uvicorn', None)
  code, _, err = _run(capsys, 'serve', board_data.small_board(tmp_path))
  assert code == 1
  assert "pip install 't5score-jax[server]'" in err


def test_help_lists_all_options(capsys):
  with pytest.raises(SystemExit) as done:
    cli.main(['board', '--help'])
  assert done.value.code == 0
  out = capsys.readouterr().out
  for option in ('--scores', '--statistic', '--new-token', '--several'):
    assert option in out
