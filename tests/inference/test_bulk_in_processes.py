"""Two processes of two devices score and write what one does, once."""

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys

import devices
import numpy as np
import pytest

from t5score_jax.inference import generation, scoring
from t5score_jax.inference.search import Method
from tests.inference.test_scoring import PAIRS

pytestmark = pytest.mark.slow

_PROGRAM = (
  pathlib.Path(__file__).parents[1] / 'support' / 'infer_in_processes.py'
)


def _free_port():
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


def _start(commands):
  return [
    subprocess.Popen(
      command,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env=devices.environment(2),
    )
    for command in commands
  ]


def _ended(started):
  """Waits for processes; their exit codes, outputs and errors."""
  try:
    texts = [process.communicate(timeout=150) for process in started]
  finally:
    for process in started:
      process.kill()
  return [(p.returncode, *s) for p, s in zip(started, texts, strict=True)]


def _prepare(folder):
  (folder / 'texts.json').write_text(json.dumps({'pairs': PAIRS}))
  clean = [(a, b.replace('\x00', ' ')) for a, b in PAIRS]
  (folder / 'inputs.txt').write_text('\n'.join(a for a, _ in clean) + '\n')
  (folder / 'targets.txt').write_text('\n'.join(b for _, b in clean) + '\n')
  return clean


def _program(model, folder, *more):
  port = _free_port()
  return [
    [sys.executable, _PROGRAM, model, folder, str(port), str(index), *more]
    for index in range(2)
  ]


@pytest.fixture(scope='module')
def found(random_bundle, tmp_path_factory):
  folder = tmp_path_factory.mktemp('two')
  clean = _prepare(folder)
  for code, _, errors in _ended(_start(_program(random_bundle, folder))):
    assert code == 0, errors
  result = [
    json.loads((folder / f'found-{index}.json').read_text())
    for index in range(2)
  ]
  rows = (folder / 'out.jsonl').read_text().splitlines()
  return result, clean, [json.loads(row) for row in rows]


@pytest.fixture(scope='module')
def scorer(random_model):
  return scoring.Scorer(random_model)


def test_scores_are_those_of_one_process(found, scorer):
  expected = scorer.score_pairs(PAIRS, token_log_probs=True)
  for result in found[0]:
    assert result['devices'] == [2, 2]
    np.testing.assert_allclose(result['scores'], expected.values, atol=1e-5)
    assert result['lengths'] == expected.lengths.tolist()
    assert result['truncated'] == expected.truncated
    for tokens, wanted in zip(
      result['tokens'], expected.token_log_probs, strict=True
    ):
      np.testing.assert_allclose(tokens, wanted, atol=1e-5)


def test_each_does_half(found, scorer):
  """What they tell: a number a pair and one a token of it."""
  sent = [t['sent'] for t in found[0]]
  distinct = dict.fromkeys(PAIRS)
  lengths = scorer.score_pairs(list(distinct)).lengths
  assert sum(sent) == 4 * (len(distinct) + lengths.sum())
  assert max(sent) < 0.7 * sum(sent)


def test_weights_in_parts_score_the_same(found, scorer):
  for result in found[0]:
    # [32, 16] over two devices.
    assert result['shard'] == [16, 16]
    np.testing.assert_allclose(
      result['partitioned'], scorer.scores(PAIRS), atol=1e-5
    )


def test_written_texts_are_those_of_one_process(found, random_model):
  method = Method(max_tokens=5, beams=2, outputs=2)
  made = generation.Generator(random_model, method)
  outputs = made.generate([a for a, _ in PAIRS[:8]]).outputs
  for result in found[0]:
    for some, expected in zip(result['written'], outputs, strict=True):
      assert [text for text, _ in some] == [o.text for o in expected]
      np.testing.assert_allclose(
        [p for _, p in some], [o.log_prob for o in expected], atol=1e-4
      )


def test_rows_stay_on_their_device(found):
  """Beam search moves nothing between devices but whether all are done."""
  for text in found[0][0]['programs']:
    assert re.findall(r'= (\S+) all-(?:gather|reduce|to-all)\(', text) == [
      'pred[]'
    ]
    assert 'collective-permute' not in text


def test_one_output_in_order(found, scorer):
  _, clean, rows = found
  assert [(r['inputs'], r['targets']) for r in rows] == clean
  np.testing.assert_allclose(
    [r['score'] for r in rows], scorer.scores(clean), atol=1e-5
  )


def test_different_texts_are_an_error(found):
  for result in found[0]:
    assert 'processes differ in the texts' in result['differ']


@pytest.mark.slow
def test_the_death_of_one_ends_the_other(random_bundle, tmp_path):
  _prepare(tmp_path)
  first, second = _ended(_start(_program(random_bundle, tmp_path, 'dies')))
  assert second[0] == -signal.SIGKILL
  assert first[0] not in (0, None)
  assert 'process 1' in first[2] or 'lost another process' in first[2]
  assert not list(tmp_path.glob('found-*')) and not list(tmp_path.glob('out*'))


@pytest.mark.slow
@pytest.mark.parametrize('verb', ['score', 'infer'])
def test_the_command_line(verb, random_bundle, tmp_path):
  _prepare(tmp_path)
  inputs, targets = tmp_path / 'inputs.txt', tmp_path / 'targets.txt'
  command = [sys.executable, '-m', 't5score_jax', verb, '-m', random_bundle]
  if verb == 'score':
    command += ['-r', inputs, '-t', targets, '--format', 'jsonl']
  else:
    command += ['--mode=score', '--inputs', inputs, '--targets', targets]
  port = _free_port()
  many = [
    *command,
    *('-o', tmp_path / 'two.jsonl', '--process_count=2'),
    f'--coordinator_address=127.0.0.1:{port}',
  ]
  ended = _ended(
    _start([[*many, f'--process_index={index}'] for index in range(2)])
  )
  assert [code for code, _, _ in ended] == [0, 0], ended
  assert ended[1][1] == ''
  [(code, _, errors)] = _ended(_start([[*command, '-o', tmp_path / 'one']]))
  assert code == 0, errors
  one, two = (
    [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
    for name in ('one', 'two.jsonl')
  )
  assert len(one) == len(two) == len(PAIRS)
  np.testing.assert_allclose(
    [row['score'] for row in two], [row['score'] for row in one], atol=1e-5
  )
