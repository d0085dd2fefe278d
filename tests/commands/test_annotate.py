"""`t5score annotate`: scores, resumed runs, shared work, refusals."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.commands import _metric_arguments
from t5score_jax.data import pair_shards, records, runs
from t5score_jax.data.records import Segment
from t5score_jax.metrics import base, registry

WORDS = 'the a cat dog sat ran on over mat hill small green bird'.split()


@pytest.fixture
def folder(tmp_path):
  """Pairs in six shards."""
  rng = np.random.default_rng(0)

  def text():
    return ' '.join(rng.choice(WORDS, size=7))

  segments = [
    Segment(text(), references=(reference,), segment=str(n))
    for n in range(30)
    for reference in [text()]
    for _ in range(3)
  ]
  records.write_records(tmp_path / 'in.jsonl', segments)
  out = tmp_path / 'pairs'
  assert not cli.main(
    ['pairs', '--input', str(tmp_path / 'in.jsonl'), '--shard-size', '30']
    + ['-o', str(out), '--quiet']
  )
  assert len(pair_shards.complete(out, 'pairs')) == 6
  return out


def _run(folder, out, *more, model='chrf'):
  return cli.main(
    ['annotate', str(folder), '-m', model, '-o', str(out), *map(str, more)]
  )


def _bytes(folder):
  return {p.name: p.read_bytes() for p in folder.glob('part-*.jsonl.gz')}


def test_scores_are_the_metrics(folder, tmp_path, capsys):
  out = tmp_path / 'out'
  assert not _run(folder, out, '--rating', 'chrf', '--option', 'beta=1')
  metric = registry.load_metric('chrf', beta=1)
  seen = 0
  for number, info in enumerate(pair_shards.complete(out, 'annotations')):
    before = pair_shards.read_rows(folder, number)
    rows = pair_shards.read_rows(out, number, info['sha256'])
    values = [row.pop('chrf') for row in rows]
    assert rows == before
    wanted = metric.score(
      [r['hypothesis'] for r in rows], [r['reference'] for r in rows]
    )
    np.testing.assert_allclose(values, wanted.values, rtol=1e-7)
    assert info['signature'] == wanted.signature
    seen += len(rows)
  manifest = pair_shards.manifest(out, 'annotations')
  assert manifest['rows'] == seen == 180
  assert manifest['identity']['signature'] == metric.signature()
  err = capsys.readouterr().err
  assert '6 of 6 shards' in err and '0 min left' in err


@pytest.mark.parametrize(('beta', 'symmetric'), [(1, True), (3, False)])
def test_finds_out_whether_a_metric_is_symmetric(
  folder, tmp_path, beta, symmetric
):
  _run(folder, tmp_path / 'out', '--option', f'beta={beta}')
  found = pair_shards.manifest(tmp_path / 'out', 'annotations')
  assert found['symmetric'] is symmetric


def test_a_killed_run_goes_on(folder, tmp_path, capsys):
  whole, out = tmp_path / 'whole', tmp_path / 'out'
  _run(folder, whole)
  program = (
    'import sys, time\n'
    'from t5score_jax import cli\n'
    'from t5score_jax.metrics import chrf\n'
    'true = chrf.Metric.score_segments\n'
    'def slow(self, segments):\n'
    '  time.sleep(0.3)\n'
    '  return true(self, segments)\n'
    'chrf.Metric.score_segments = slow\n'
    f'cli.main(["annotate", {str(folder)!r}, "-m", "chrf", "-o", {str(out)!r}])'
  )
  process = subprocess.Popen(
    [sys.executable, '-c', program], stderr=subprocess.DEVNULL
  )
  until = time.monotonic() + 60
  while not (out / 'part-00001.json').exists():
    assert process.poll() is None and time.monotonic() < until
    time.sleep(0.02)
  os.kill(process.pid, signal.SIGKILL)
  process.wait()
  there = set(_bytes(out))
  assert 2 <= len(there) < 6
  stamps = {name: (out / name).stat().st_mtime_ns for name in there}
  # A shard without its description is not done; one whose bytes are others
  # isn't either.
  (out / 'part-00000.json').unlink()
  torn = out / 'part-00001.jsonl.gz'
  torn.write_bytes(torn.read_bytes()[:-30])
  capsys.readouterr()
  assert not _run(folder, out)
  assert (
    f'{len(there) - 2} of 6 shards are there' in capsys.readouterr().err
    or (len(there) == 2)
  )
  assert _bytes(out) == _bytes(whole)
  for name in there - {'part-00000.jsonl.gz', 'part-00001.jsonl.gz'}:
    assert (out / name).stat().st_mtime_ns == stamps[name]


def test_machines_share_the_work(folder, tmp_path, capsys):
  whole, out = tmp_path / 'whole', tmp_path / 'out'
  _run(folder, whole)
  _run(folder, out, '--shard', '2/3')
  assert sorted(_bytes(out)) == ['part-00001.jsonl.gz', 'part-00004.jsonl.gz']
  with pytest.raises(runs.RunError, match='part-00000'):
    pair_shards.complete(out, 'annotations')
  # Another machine, another folder; then the files are put together.
  _run(folder, tmp_path / 'other', '--shard', '3/3')
  for path in (tmp_path / 'other').glob('part-*'):
    path.rename(out / path.name)
  _run(folder, out, '--shard', '1/3')
  assert len(pair_shards.complete(out, 'annotations')) == 6
  assert _bytes(out) == _bytes(whole)
  capsys.readouterr()
  assert not _run(folder, out, '--quiet')
  assert capsys.readouterr().err == ''


def test_another_metric_or_column_or_input_is_refused(folder, tmp_path, capsys):
  out = tmp_path / 'out'
  _run(folder, out, '--shard', '1/2')
  before = _bytes(out)
  capsys.readouterr()
  assert _run(folder, out, '--option', 'beta=1') == 1
  err = capsys.readouterr().err
  assert 'signature: ' in err and 'beta:1' in err
  assert _run(folder, out, model='bleu') == 1
  assert _run(folder, out, '--rating', 'other') == 1
  assert 'rating: ' in capsys.readouterr().err
  records.write_records(tmp_path / 'b.jsonl', [Segment('x', references=('y',))])
  other = tmp_path / 'other'
  cli.main(['pairs', '--input', str(tmp_path / 'b.jsonl'), '-o', str(other)])
  assert _run(other, out) == 1
  assert 'pairs: 6 files' in capsys.readouterr().err
  assert _bytes(out) == before


def test_a_damaged_shard_of_pairs_is_an_error(folder, tmp_path, capsys):
  path = folder / 'part-00002.jsonl.gz'
  path.write_bytes(path.read_bytes()[:-10])
  assert _run(folder, tmp_path / 'out') == 1
  assert 'part-00002.jsonl.gz: damaged' in capsys.readouterr().err
  # What came before is kept.
  assert len(_bytes(tmp_path / 'out')) == 2


@pytest.mark.parametrize('text', ['', '[]', '{}', '\x00'])
def test_a_shard_with_a_damaged_description_is_made_again(
  text, folder, tmp_path, capsys
):
  out = tmp_path / 'out'
  assert not _run(folder, out)
  before = _bytes(out)
  description = (out / 'part-00004.json').read_text()
  (out / 'part-00004.json').write_text(text)
  (out / 'part-00004.jsonl.gz').write_bytes(b'')
  capsys.readouterr()
  assert not _run(folder, out)
  assert '5 of 6 shards are there already' in capsys.readouterr().err
  assert _bytes(out) == before
  found = json.loads((out / 'part-00004.json').read_text())
  assert found['sha256'] == json.loads(description)['sha256']
  (folder / 'part-00003.json').write_text(text)
  assert _run(folder, tmp_path / 'other') == 1
  err = capsys.readouterr().err
  assert 'part-00003.json' in err


class _Idf(base.Metric):
  name = 'idf'

  def signature(self):
    return base.format_signature({'metric': 'x', 'idf': 'references'})

  def score_segments(self, segments):
    raise AssertionError('not to be scored')


def test_scores_that_depend_on_the_shard_are_refused(
  folder, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(_metric_arguments, 'load', lambda *given: _Idf())
  assert _run(folder, tmp_path / 'out') == 2
  assert 'texts.txt.gz' in capsys.readouterr().err
  assert not (tmp_path / 'out').exists()


def test_a_file_that_an_option_names_is_part_of_the_identity(
  folder, tmp_path, monkeypatch, capsys
):
  class Fixed(_Idf):
    def signature(self):
      return base.format_signature({'metric': 'x', 'idf': 'corpus.txt'})

    def score_segments(self, segments):
      return base.Scores(np.arange(len(segments)), self.signature())

  monkeypatch.setattr(_metric_arguments, 'load', lambda *given: Fixed())
  corpus = tmp_path / 'corpus.txt'
  corpus.write_text('a\n')
  option = '--option', f'idf={corpus}', '--shard', '1/2'
  assert not _run(folder, tmp_path / 'out', *option)
  assert not _run(folder, tmp_path / 'out', *option)
  corpus.write_text('b\n')
  assert _run(folder, tmp_path / 'out', *option) == 1
  assert 'option_files: idf' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    (['--shard', '3/2'], 2, 'I is from 1 to N'),
    (['--shard', 'x'], 2, 'I/N'),
    (['--rating', ''], 2, '--rating is empty'),
    (['--rating', 'origin'], 2, 'such a column'),
    (['--option', 'bta=1'], 2, "id you mean 'beta'"),
    (['--option', 'beta'], 2, 'NAME=VALUE'),
  ],
)
def test_errors_say_what_to_do(
  folder, tmp_path, arguments, code, message, capsys
):
  assert _run(folder, tmp_path / 'out', *arguments) == code
  err = capsys.readouterr().err
  assert message in err and err.count('\n') == 1
  assert not (tmp_path / 'out').exists()


def test_a_failed_run_leaves_no_empty_folder(
  folder, tmp_path, monkeypatch, capsys
):
  class Failing(_Idf):
    def signature(self):
      return base.format_signature({'metric': 'x'})

    def score_segments(self, segments):
      raise ValueError('no source')

  monkeypatch.setattr(_metric_arguments, 'load', lambda *given: Failing())
  assert _run(folder, tmp_path / 'out') == 1
  assert 'no source' in capsys.readouterr().err
  assert not (tmp_path / 'out').exists()
  # One that was there stays.
  (tmp_path / 'out').mkdir()
  assert _run(folder, tmp_path / 'out') == 1
  assert (tmp_path / 'out').is_dir()


def test_scores_of_tokens_are_not_written(folder, tmp_path, capsys):
  with pytest.raises(SystemExit) as done:
    _run(folder, tmp_path / 'out', '--tokens')
  assert done.value.code == 2
  assert '--tokens' in capsys.readouterr().err


def test_what_are_no_pairs_is_refused(folder, tmp_path, capsys):
  assert _run(tmp_path, tmp_path / 'out') == 1
  assert 'no folder of pairs' in capsys.readouterr().err
  assert _run(folder, folder) == 2
  assert 'choose another one' in capsys.readouterr().err
  _run(folder, tmp_path / 'done')
  capsys.readouterr()
  assert _run(tmp_path / 'done', tmp_path / 'out') == 1
  assert "holds 'annotations'" in capsys.readouterr().err
