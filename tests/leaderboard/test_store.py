"""Boards as files: what is written reads back, and a kill harms nothing."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip('sklearn')
pytest.importorskip('pandas')

import board_data  # noqa: E402
from board_data import made_up, write_table  # noqa: E402

from t5score_jax.data.files import RecordError  # noqa: E402
from t5score_jax.leaderboard import (  # noqa: E402
  changes,
  folders,
  layouts,
  renewal,
  schema,
  score_table,
)
from t5score_jax.leaderboard.entries import (  # noqa: E402
  GIVEN,
  BoardError,
  Generator,
  Metric,
)
from t5score_jax.leaderboard.store import Store  # noqa: E402

INPUTS = [
  '{"id": "a", "source": "eins", "X": "one", "Y": "1"}',
  '{"id": "b", "source": "zwei\\nhalb", "X": "two", "Y": "2"}',
  '{"id": "c", "source": "", "X": "three\\u2028", "Y": "3"}',
]


@pytest.fixture
def small_board(tmp_path):
  return board_data.small_board(tmp_path)


@pytest.fixture
def text_board(tmp_path):
  """A board with sources, two references and two generators."""
  inputs = tmp_path / 'inputs.jsonl'
  inputs.write_text('\n'.join(INPUTS) + '\n')
  path = tmp_path / 'text.db'
  layouts.import_inputs(path, inputs, 'text', 'German', {'X': 'X', 'Y': 'Y'})
  with Store(path) as store:
    first = changes.add_generator(
      store, Generator('g/1'.replace('/', ' ')), ['1', '', '3\n']
    )
    changes.add_generator(store, Generator('Ünï +1', human=True), list('xyz'))
    metric = changes.add_metric(
      store,
      Metric('m', 'command', {'references': True, 'isolation': 'none'}, True),
      b'#!/bin/sh\n\x00',
    )
    changes.set_scores(
      store, [(metric, first, np.array([0.1, np.nan, 3]))], 'X+Y'
    )
    changes.add_ratings(store, 'da', [(first, np.array([1.0, 2.0, np.nan]))])
    changes.set_role(store, 'default', ['Ünï +1'], 'X')
  return path


def _everything(store):
  return {
    'ids': store.ids(),
    'sources': store.sources(),
    'references': store.references(),
    'outputs': {g.name: store.outputs(g.id) for g in store.generators()},
    'humans': [g.human for g in store.generators()],
    'metrics': [(m.name, m.kind, m.negated) for m in store.metrics()],
    'programs': [store.program(m.id) for m in store.metrics()],
    'scores': sorted(
      (m.name, s, g, x.tobytes())
      for m in store.metrics()
      for s in (GIVEN, 'X', 'Y', 'X+Y')
      for g, x in store.scores(m.id, s)
    ),
    'ratings': {
      n: sorted((g, x.tobytes()) for g, x in store.ratings(n))
      for n in store.rating_names()
    },
    'roles': store.roles(),
    'human': store.board().human,
    'versions': [v.signature for v in store.versions()],
  }


def test_table_reads_back_every_digit(tmp_path):
  systems, ids, columns = made_up()
  table = score_table.read(
    write_table(tmp_path / 't.tsv', systems, ids, columns)
  )
  assert (table.systems, table.ids) == (systems, ids)
  for name, values in columns.items():
    np.testing.assert_array_equal(table.columns[name], values)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'empty'),
    ('system\tm\na\t1\n', 'no column of examples'),
    ('system\tseg_id\tm\ta\na\te\t1\tx\n', r"line 2, field 'a': 'x' is not"),
    ('system\tseg_id\tm\na\te\t1\na\te\t2\n', 'line 3.*line 2 already'),
    ('system\tseg_id\tm\na\te\t1\t2\n', 'line 2: 4 fields'),
    ('system\tseg_id\tm\na\te\t1\na\tf', 'line 3: 2 fields'),
    ('system\tseg_id\tm\na\te\t1\n\na\tf\t1\n', 'line 3: 1 fields'),
    ('system\tseg_id\tm\na\te\tinf\n', "line 2, field 'm'"),
    ('system\tseg_id\tm\tm\n', 'occurs 2 times'),
    ('system\tseg_id\tm\n', 'no rows'),
  ],
)
def test_wrong_tables_are_explained(tmp_path, text, message):
  path = tmp_path / 'wrong.tsv'
  path.write_text(text)
  with pytest.raises(RecordError, match=message):
    score_table.read(path)


def test_board_from_table(small_board):
  systems, ids, columns = made_up()
  with Store(small_board) as store:
    assert store.ids() == ids
    assert [g.name for g in store.generators()] == systems
    assert [g.human for g in store.generators()] == [True] + [False] * 4
    assert store.board().human == 'human'
    for metric in store.metrics():
      for generator, values in store.scores(metric.id, GIVEN):
        np.testing.assert_array_equal(
          values, columns[metric.name][generator - 1]
        )


def test_failed_import_leaves_nothing(tmp_path):
  table = write_table(tmp_path / 't.tsv', *made_up())
  with pytest.raises(BoardError, match="no column 'mqm'"):
    layouts.read_and_import(tmp_path / 'b.db', table, 'mqm')
  assert sorted(p.name for p in tmp_path.iterdir()) == ['t.tsv']
  (tmp_path / 'b.db').write_text('mine')
  with pytest.raises(BoardError, match='b.db'):
    layouts.read_and_import(tmp_path / 'b.db', table, 'human')
  assert (tmp_path / 'b.db').read_text() == 'mine'


def test_other_files_are_no_boards(tmp_path):
  with pytest.raises(BoardError, match='none.db'):
    Store(tmp_path / 'none.db')
  (tmp_path / 'text.db').write_text('not a database, but long enough' * 50)
  with pytest.raises(BoardError, match='text.db'):
    Store(tmp_path / 'text.db')
  sqlite3.connect(tmp_path / 'other.db').execute('CREATE TABLE t (x)')
  with pytest.raises(BoardError, match='other.db'):
    Store(tmp_path / 'other.db')


def test_read_only_boards_are_read(small_board, monkeypatch):
  monkeypatch.setattr(os, 'access', lambda *_: False)
  with Store(small_board) as store:
    assert renewal.current(store)['board']['name'] == 'small'
    with pytest.raises(BoardError, match='small.db'):
      changes.add_generator(store, Generator('new'))
  assert not small_board.with_name('small.db-wal').exists()


def test_later_versions_are_refused(small_board):
  connection = sqlite3.connect(small_board)
  connection.execute(f'PRAGMA user_version = {schema.VERSION + 1}')
  connection.close()
  with pytest.raises(BoardError, match=str(schema.VERSION + 1)):
    Store(small_board)


def test_transactions_are_whole(small_board):
  with Store(small_board) as store:
    before = _everything(store)
    with pytest.raises(BoardError, match="'new'"):
      with store.transaction():
        changes.add_generator(store, Generator('new'))
        changes.add_generator(store, Generator('new'))
    assert _everything(store) == before
    with pytest.raises(BoardError, match=str([store.size()])[1:-1]):
      changes.set_scores(store, [(1, 1, np.full(store.size(), np.inf))], GIVEN)
    with pytest.raises(BoardError, match="'human'"):
      changes.add_ratings(store, 'human', [(1, np.zeros(store.size()))])
    for name in ('', 'a|b', '../x', ' x', 'a\nb', 'x' * 101):
      with pytest.raises(BoardError):
        changes.add_generator(store, Generator(name))
    assert _everything(store) == before


def test_a_full_disk_leaves_the_board_as_it_was(small_board):
  with Store(small_board) as store:
    before = _everything(store)
    pages = store.connection.execute('PRAGMA page_count').fetchone()[0]
    store.connection.execute(f'PRAGMA max_page_count = {pages + 2}')
    noise = np.random.default_rng(0).normal(size=(40, store.size()))
    texts = [''.join(map(str, row)) for row in noise.T]
    with pytest.raises(BoardError, match='full'):
      changes.add_generator(store, Generator('large'), texts)
    assert _everything(store) == before


_FULL = """
mkdir "$1/full" && mount -t tmpfs -o size=1M none "$1/full" || exit 77
cp "$1/small.db" "$1/full"
dd if=/dev/zero of="$1/full/fill" bs=1k 2>"$1/dd"
exec "$2" -m t5score_jax.cli board rank "$1/full/small.db"
"""


@pytest.mark.slow
def test_a_full_disk_is_named(small_board):
  """SQLite says 'disk I/O error' when it opens the board."""
  command = ['unshare', '--user', '--map-root-user', '--mount', 'sh', '-c']
  command += [_FULL, 'sh', str(small_board.parent), sys.executable]
  if shutil.which('unshare') is None:
    pytest.skip('needs unshare')
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode != 1:
    pytest.skip(f'needs user namespaces: {done.stderr}')
  (line,) = done.stderr.splitlines()
  assert f'no space left on the disk of {small_board.parent}' in line


_WRITER = """
import sys
import numpy as np
from t5score_jax.leaderboard import changes
from t5score_jax.leaderboard.entries import Generator
from t5score_jax.leaderboard.store import Store
with Store(sys.argv[1]) as store:
  for n in range(10_000):
    with store.transaction():
      key = changes.add_generator(store, Generator(f'g{n}'))
      for metric in store.metrics():
        changes.set_scores(
          store, [(metric.id, key, np.zeros(store.size()))], 'given'
        )
    print(n, flush=True)
"""


@pytest.mark.slow
def test_kills_leave_whole_generators(small_board):
  """Killed at any moment, what was announced is there, and nothing by half."""
  for delay in (0.0, 0.03):
    path = small_board.with_name(f'copy{delay}.db')
    path.write_bytes(small_board.read_bytes())
    writer = subprocess.Popen(
      [sys.executable, '-c', _WRITER, str(path)], stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    written = [writer.stdout.readline() for _ in range(3)]
    time.sleep(delay)
    os.kill(writer.pid, signal.SIGKILL)
    written += writer.stdout.readlines()
    writer.wait()
    last = int(written[-1].split()[0])
    with Store(path) as store:
      found = [g for g in store.generators() if g.name.startswith('g')]
      assert len(found) in (last + 1, last + 2)
      for metric in store.metrics():
        scored = {g for g, _ in store.scores(metric.id, GIVEN)}
        assert {g.id for g in found} <= scored
      assert store.connection.execute('PRAGMA integrity_check').fetchone() == (
        'ok',
      )


def test_export_and_import_billboard(text_board, tmp_path):
  with Store(text_board) as store:
    before = _everything(store)
    folders.export(store, tmp_path / 'out')
    with pytest.raises(BoardError, match='out'):
      folders.export(store, tmp_path / 'out')
  folders.import_folder(tmp_path / 'again.db', tmp_path / 'out')
  with Store(tmp_path / 'again.db') as store:
    after = _everything(store)
    # A folder may come from anyone: what it says of isolation does not count.
    assert 'isolation' not in store.metrics()[0].settings
  assert after == before


@pytest.mark.parametrize(
  ('file', 'old', 'new', 'named'),
  [
    ('board.json', 't5score board 1', 'x', r'board.json.*\$.format'),
    ('board.json', '"human": true', '"human": 1', r'generators\[1\].human'),
    ('board.json', '"command"', '"magic"', "metric 'm' is not valid"),
    ('inputs.jsonl', '"Y"', '"Z"', "inputs.jsonl: 'Y'"),
    ('inputs.jsonl', '{', '[', 'inputs.jsonl'),
    ('outputs/g 1.jsonl', '"id": "a"', '"id": "z"', "no input 'z'"),
  ],
)
def test_damaged_folders_are_named(text_board, tmp_path, file, old, new, named):
  with Store(text_board) as store:
    folders.export(store, tmp_path / 'out')
  path = tmp_path / 'out' / file
  text = path.read_text()
  assert old in text
  path.write_text(text.replace(old, new))
  with pytest.raises((BoardError, RecordError), match=named):
    folders.import_folder(tmp_path / 'again.db', tmp_path / 'out')
  assert not list(tmp_path.glob('*again*'))


def test_export_of_a_table_is_a_table(small_board, tmp_path):
  with Store(small_board) as store:
    folders.export(store, tmp_path / 'out')
    versions = [v.signature for v in store.versions()]
  table = score_table.read(tmp_path / 'out' / 'scores' / 'given.tsv.gz')
  for name, values in made_up()[2].items():
    np.testing.assert_array_equal(table.columns[name], values)
  folders.import_folder(tmp_path / 'again.db', tmp_path / 'out')
  with Store(tmp_path / 'again.db') as store:
    kept = [v.signature for v in store.versions()]
    assert kept == versions


def test_export_and_import_wmt(tmp_path):
  inputs = tmp_path / 'inputs.jsonl'
  inputs.write_text('\n'.join(INPUTS).replace('\\nhalb', '') + '\n')
  layouts.import_inputs(
    tmp_path / 'b.db', inputs, 'en-de', '', {'X': 'X', 'Y': 'Y'}
  )
  with Store(tmp_path / 'b.db') as store:
    keys = [
      changes.add_generator(store, Generator(n, human='H' in n), list(t))
      for n, t in (('Human-A', 'xyz'), ('sys.1', 'abc'))
    ]
    for name, sets in (('QE', [GIVEN]), ('BLEU', ['X', 'X+Y'])):
      metric = changes.add_metric(store, Metric(name, 'column'))
      for n, reference_set in enumerate(sets):
        changes.set_scores(
          store,
          [(metric, k, np.array([0.5, n, np.nan])) for k in keys],
          reference_set,
        )
    changes.add_ratings(store, 'mqm', [(keys[1], np.array([-1, np.nan, 0.25]))])
    before = _everything(store)
    folders.export(store, tmp_path / 'wmt', 'wmt')
  lines = (tmp_path / 'wmt/human-scores/en-de.mqm.seg.score').read_text()
  assert lines.splitlines()[3:] == ['sys.1\t-1.0', 'sys.1\tNone', 'sys.1\t0.25']
  assert (
    tmp_path / 'wmt/metric-scores/en-de/BLEU-refX.refY.seg.score'
  ).is_file()
  system = (tmp_path / 'wmt/metric-scores/en-de/QE-src.sys.score').read_text()
  assert system.splitlines() == ['Human-A\t0.25', 'sys.1\t0.25']
  folders.import_folder(tmp_path / 'c.db', tmp_path / 'wmt')
  with Store(tmp_path / 'c.db') as store:
    after = _everything(store)
  # The layout has no ids, and metrics come in the order of their names.
  assert after['ids'] == ['1', '2', '3']
  for name in ('sources', 'references', 'outputs', 'humans', 'ratings'):
    assert after[name] == before[name], name
  assert {(m, s, x) for m, s, _, x in after['scores']} == {
    (m, s, x) for m, s, _, x in before['scores']
  }


def test_wmt_cannot_hold_line_ends(text_board, tmp_path):
  with Store(text_board) as store:
    with pytest.raises(RecordError, match='line'):
      folders.export(store, tmp_path / 'wmt', 'wmt', 'de-en')
  assert not (tmp_path / 'wmt').exists()


def test_snapshot_follows_changes(small_board):
  with Store(small_board) as store:
    first = renewal.current(store)
    assert renewal.current(store) == first
    count = len(store.versions())
    changes.add_generator(store, Generator('new'))
    second = renewal.current(store)
    assert 'new' in [g['name'] for g in second['generators']]
    assert len(store.versions()) == count + 1
