"""`t5score mbr` on files."""

import io
import json
import os
import types

import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.commands import mbr
from t5score_jax.metrics import registry

CANDIDATES = [
  ['the cat sees the moon.', 'a cat sees a moon.', 'music'],
  ['', 'a dog', 'a dog follows'],
  ['this town', 'this town', 'the old town'],
]
SOURCES = ['die Katze', 'ein Hund', 'diese Stadt']


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
  """Runs the verb in a folder with candidates."""
  monkeypatch.chdir(tmp_path)
  for n, texts in enumerate(zip(*CANDIDATES, strict=True)):
    (tmp_path / f'{n}.txt').write_text('\n'.join(texts) + '\n')
  joined = [text for some in CANDIDATES for text in some]
  (tmp_path / 'all.txt').write_text('\n'.join(joined) + '\n')
  (tmp_path / 'src.txt').write_text('\n'.join(SOURCES) + '\n')
  with open('in.jsonl', 'w') as out:
    for n, (some, source) in enumerate(zip(CANDIDATES, SOURCES, strict=True)):
      row = {'segment': n, 'candidates': some, 'source': source}
      print(json.dumps(row), file=out)

  def run(*arguments, code=0):
    capsys.readouterr()
    words = ['mbr', *(str(a) for a in arguments)]
    assert cli.main(words) == code
    return capsys.readouterr()

  return run


def rows_of(text):
  return [json.loads(line) for line in text.splitlines()]


def expected(metric):
  """The expected utilities of all candidates."""
  return [
    [np.mean(metric.score([h] * 3, some, [s] * 3).values) for h in some]
    for some, s in zip(CANDIDATES, SOURCES, strict=True)
  ]


@pytest.mark.parametrize('name', ['chrf', 'bleu', 'ter'])
def test_utilities_are_the_scores_of_the_metric(run, name):
  wanted = expected(registry.load_metric(name))
  shown = run('-m', name, '-t', 'all.txt', '-n', 3, '--top', 3)
  for some, means, row in zip(
    CANDIDATES, wanted, rows_of(shown.out), strict=True
  ):
    for choice in row['predictions']:
      assert choice['score'] == pytest.approx(means[choice['index']])
      assert choice['prediction'] == some[choice['index']]
    assert row['predictions'][0]['score'] == pytest.approx(max(means))
  assert 'signature: metric:' in shown.err


def test_a_model_decodes_as_it_scores(run, random_bundle):
  wanted = expected(registry.load(random_bundle, direction='ref_src'))
  words = '-m', random_bundle, '--direction', 'ref_src', '--input', 'in.jsonl'
  rows = rows_of(run(*words).out)
  for n, (row, means) in enumerate(zip(rows, wanted, strict=True)):
    assert row['score'] == pytest.approx(max(means), abs=1e-5)
    assert row['index'] == int(np.argmax(means))
    assert (row['segment'], row['source']) == (str(n), SOURCES[n])
  alone = rows_of(run(*words, '--shard-size', 1).out)
  assert [row.pop('score') for row in alone] == pytest.approx(
    [row.pop('score') for row in rows], abs=1e-5
  )
  assert alone == rows


def test_all_inputs_mean_the_same(run):
  parallel = run('-m', 'chrf', '-t', '0.txt', '1.txt', '2.txt').out
  assert run('-m', 'chrf', '-t', 'all.txt', '-n', 3).out == parallel
  sourced = rows_of(run('-m', 'chrf', '-t', 'all.txt', '-s', 'src.txt').out)
  assert [row.pop('source') for row in sourced] == SOURCES
  assert sourced == rows_of(parallel)
  # The output of one run is the input of another.
  run('-m', 'ter', '-t', 'all.txt', '-n', 3, '--top', 3, '-o', 'out.jsonl')
  again = rows_of(run('-m', 'chrf', '--input', 'out.jsonl').out)
  assert [(r['prediction'], r['score']) for r in again] == [
    (r['prediction'], pytest.approx(r['score'])) for r in sourced[:2]
  ] + [(again[2]['prediction'], again[2]['score'])]
  run('-m', 'chrf', '-t', 'all.txt', '-n', 3, '-o', 'best.txt')
  with open('best.txt') as lines:
    assert lines.read().splitlines() == [r['prediction'] for r in sourced]


def test_standard_input_and_log_probabilities_of_infer(run, monkeypatch):
  rows = [
    {
      'inputs': 's',
      'predictions': [
        {'prediction': 'a cat', 'log_prob': -1.0},
        {'prediction': 'a dog', 'log_prob': -3.0},
      ],
    }
  ]
  data = ''.join(json.dumps(row) + '\n' for row in rows).encode()

  def stdin():
    monkeypatch.setattr(
      'sys.stdin', types.SimpleNamespace(buffer=io.BytesIO(data))
    )

  stdin()
  words = '-m', 'chrf', '--input', '-', '--weights', 'log_probs'
  (row,) = rows_of(run(*words).out)
  metric = registry.load_metric('chrf')
  other = metric.score(['a cat'], ['a dog']).values[0]
  share = 1 / (1 + np.exp(-2.0))
  assert row['prediction'] == 'a cat'
  assert row['score'] == pytest.approx(100 * share + other * (1 - share))
  assert row['source'] == 's'


def test_a_run_resumes_where_it_stopped(run, monkeypatch):
  words = '-m', 'chrf', '--input', 'in.jsonl', '-o', 'out.jsonl'
  words += '--shard-size', 1, '--quiet'
  run(*words)
  with open('out.jsonl') as lines:
    whole = lines.read()
  os.remove('out.jsonl')
  rows, calls = mbr.Work.rows, []

  def breaks(self, examples):
    calls.append(examples)
    if len(calls) == 3:
      raise KeyboardInterrupt
    return rows(self, examples)

  with monkeypatch.context() as patch:
    patch.setattr(mbr.Work, 'rows', breaks)
    run(*words, code=130)
  assert sorted(os.listdir('out.jsonl.parts')) == [
    *('000000.jsonl', '000001.jsonl', 'run.json')
  ]
  assert 'another run' in run(*words, '--top', 2, code=1).err
  calls.clear()
  monkeypatch.setattr(mbr.Work, 'rows', breaks)
  run(*words)
  assert len(calls) == 1
  with open('out.jsonl') as lines:
    assert lines.read() == whole
  assert not os.path.exists('out.jsonl.parts')


def test_every_process_takes_a_share(run, monkeypatch):
  """Two processes, played one after the other."""
  items = list(mbr.candidates.read_jsonl('in.jsonl'))
  work = mbr.Work(registry.load_metric('chrf'), mbr.decoding.Options())
  whole, _ = work.rows(items)
  sent = []
  monkeypatch.setattr(mbr.processes, 'count', lambda: 2)
  monkeypatch.setattr(mbr.balance, 'gather', lambda data: [*sent, data])
  for process in (0, 1):
    monkeypatch.setattr(mbr.processes, 'index', lambda p=process: p)
    if process:
      rows, totals = work.rows(items)
    else:
      monkeypatch.setattr(mbr.balance, 'gather', sent.append)
      with pytest.raises(TypeError):
        work.rows(items)
      monkeypatch.setattr(mbr.balance, 'gather', lambda data: [*sent, data])
  assert rows == whole
  assert len(json.loads(sent[0])[0]) < 3
  assert totals.examples == 3


@pytest.mark.parametrize(
  ('words', 'code', 'message'),
  [
    (
      ('-t', '0.txt', 'all.txt', '-s', 'src.txt', '-n', '1'),
      1,
      'all.txt: 9 lines for 3',
    ),
    (('-t', 'all.txt', '-n', '2'), 1, '9 lines for 4 segments'),
    ((), 2, 'no candidates'),
    (('--input', 'in.jsonl', '-n', '2'), 2, '-n is for parallel files'),
    (('--input', 'bad.jsonl'), 1, 'bad.jsonl, line 1'),
    (('-t', '0.txt', '--weights', 'weights'), 2, '--weights is for --input'),
    (('-t', '0.txt', '--confidence', '0.9'), 2, '--confidence is for'),
    (('-t', '0.txt', '--method', 'rerank'), 2, 'reads no references'),
    (('-t', '-', '-', '-n', '1'), 2, 'only one of the files'),
    (
      ('--input', 'in.jsonl', '--weights', 'weights'),
      *(1, "line 1, field 'weights': is missing"),
    ),
  ],
)
def test_errors_are_one_line(run, words, code, message):
  with open('bad.jsonl', 'w') as out:
    out.write('{"candidates": []}\n')
  shown = run('-m', 'chrf', *words, code=code)
  assert message in shown.err
  assert shown.err.count('\n') == 1
  assert not shown.out
