"""What `t5score score` writes: scores, the summary, a progress bar."""

import io
import sys

import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.commands import _score_output
from t5score_jax.data import records
from t5score_jax.inference import scoring
from t5score_jax.metrics import systems
from tests.commands.conftest import lines_of


def test_summary(run, metric):
  shown = run('-r', 'ref.txt', '-t', 'one=A.txt', 'B.txt')
  segments = records.read_parallel({'one': 'A.txt', 'B': 'B.txt'}, ['ref.txt'])
  scores = metric.score_segments(segments)
  one, two = systems.system_scores(segments, scores)
  header, first, second, _, signature = shown.err.splitlines()
  assert header.split() == ['system', 'segments', 'score', '95%', 'interval']
  for line, entry in ((first, one), (second, two)):
    assert line.split() == [
      entry.system,
      '3',
      f'{entry.value:.4f}',
      f'[{entry.low:.4f},',
      f'{entry.high:.4f}]',
    ]
  assert signature == f'signature: {scores.signature}'
  assert '|direction:f|conditioning:reference|nrefs:1|' in signature


def test_summary_goes_where_the_scores_do_not(run, folder):
  on_screen = run('-m', 'chrf', '-r', 'ref.txt', '-t', 'A.txt')
  to_file = run('-m', 'chrf', '-r', 'ref.txt', '-t', 'A.txt', '-o', 'out.jsonl')
  assert to_file.out == on_screen.err
  assert to_file.err == ''
  assert (folder / 'out.jsonl').read_text() == on_screen.out


def test_quiet_and_no_intervals(run):
  quiet = run('-m', 'chrf', '-r', 'ref.txt', '-t', 'A.txt', '--quiet')
  assert quiet.err == ''
  assert len(lines_of(quiet.out)) == 3
  shown = run('-m', 'chrf', '-r', 'ref.txt', '-t', 'A.txt', '--bootstrap', 0)
  assert 'interval' not in shown.err


def test_seed_moves_the_interval(run, folder):
  # Three segments have too few resamples to differ.
  for name in ('ref', 'A'):
    text = (folder / f'{name}.txt').read_text('utf-8')
    words = (text.split() * 9)[:9]
    more = ''.join(f'{word} the cat\n' for word in words)
    (folder / f'{name}.txt').write_text(text + more, 'utf-8')
  words = '-m', 'chrf', '-r', 'ref.txt', '-t', 'A.txt', '--bootstrap', 100
  first, other = (run(*words, '--seed', seed).err for seed in (1, 2))
  assert first != other


def test_text_and_tsv(run, folder):
  arguments = ('-r', 'ref.txt', '-t', 'A.txt')
  rows = lines_of(run(*arguments).out)
  text = run(*arguments, '--format', 'text').out
  assert [float(line) for line in text.splitlines()] == [
    row['score'] for row in rows
  ]
  run(*arguments, '-o', 'out.tsv')  # the name says the format
  header, *lines = (folder / 'out.tsv').read_text().splitlines()
  assert header.split('\t') == [
    *('system', 'segment', 'score', 'precision', 'recall')
  ]
  for line, row in zip(lines, rows, strict=True):
    assert [float(cell) for cell in line.split('\t')[2:]] == [
      row[name] for name in ('score', 'precision', 'recall')
    ]


def test_tokens(run):
  rows = lines_of(run('-r', 'ref.txt', '-t', 'A.txt', '--tokens').out)
  for row in rows:
    means = [np.mean(v) for v in row['token_log_probs'].values()]
    assert row['score'] == pytest.approx(np.mean(means), abs=1e-5)
  assert len(rows[1]['token_log_probs']['precision']) == 1


def test_a_failed_write_keeps_the_old_file(fails, folder, monkeypatch):
  (folder / 'out.jsonl').write_text('old\n')

  def full(*arguments):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(records.tables.files.os, 'fsync', full)
  before = sorted(folder.iterdir())
  err = fails('-r', 'ref.txt', '-t', 'A.txt', '-o', 'out.jsonl')
  assert 'No space left' in err
  assert (folder / 'out.jsonl').read_text() == 'old\n'
  assert sorted(folder.iterdir()) == before


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def test_progress_on_a_terminal_only(folder, random_bundle, monkeypatch):
  files = ['-r', 'ref.txt', '-t', 'A.txt', '-o', 'out.jsonl']
  monkeypatch.setattr(_score_output, '_LONG_WORK', 0.0)
  monkeypatch.setattr(scoring, '_WINDOW', 1)
  monkeypatch.setenv('TERM', 'xterm')
  for stream, quiet, wanted in (
    (_Terminal(), [], True),
    (_Terminal(), ['--quiet'], False),
    (io.StringIO(), [], False),
  ):
    monkeypatch.setattr(sys, 'stderr', stream)
    cli.main(['score', '-m', str(random_bundle), *files, *quiet])
    assert ('scoring' in stream.getvalue()) == wanted


@pytest.mark.parametrize('name', ['x.csv', 'x.CSV.gz', 'x.parquet', 'x.json'])
def test_names_of_other_formats_are_refused(run, fails, folder, name):
  words = '-m', 'chrf', '-t', 'A.txt', '-r', 'ref.txt'
  shown = fails(*words, '-o', name, code=2)
  assert f'-o {name}: ' in shown and '--format jsonl, tsv, text' in shown
  assert not (folder / name).exists()
  # Whoever says what is wanted gets it; a name may have no ending, or its own.
  run(*words, '-o', name, '--format', 'tsv')
  run(*words, '-o', 'out')
  run(*words, '-o', 'A.scores')
  assert (folder / name).exists() and (folder / 'A.scores').exists()
