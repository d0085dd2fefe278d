"""`t5score infer`: what it writes, how it goes on, what it says is wrong."""

import json

import jax
import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.checkpoints.bundle import load_bundle
from t5score_jax.commands import infer
from t5score_jax.inference import bulk, generation, placement, scoring, shards
from t5score_jax.inference.search import Method
from tests.conftest import made_up_text

_TEXTS = made_up_text()
INPUTS = [*_TEXTS[:5], '', _TEXTS[0], *_TEXTS[40:43]]
TARGETS = [*_TEXTS[50:58], '', _TEXTS[0]]
# Three shards of at most four.
SHARDS = ('--shard-size', '4')
SHORT = ('--max-tokens', '4')


@pytest.fixture(scope='module', autouse=True)
def _quick_compilation():
  """These tests spend their time on compiling, not on computing."""
  name = 'jax_disable_most_optimizations'
  before = jax.config.values[name]
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name, texts in (('in.txt', INPUTS), ('out.txt', TARGETS)):
    (tmp_path / name).write_text('\n'.join(texts) + '\n', 'utf-8')
  return tmp_path


@pytest.fixture
def run(folder, random_bundle, capsys):
  """Calls the verb; returns what it printed to standard error."""

  def call(*arguments, code=0, output='made.jsonl', inputs='in.txt'):
    files = ['-m', str(random_bundle), '--inputs', inputs, '-o', output]
    assert cli.main(['infer', *files, *arguments]) == code
    return capsys.readouterr()

  return call


def _score(*more):
  return ('--mode', 'score', '--targets', 'out.txt', *more)


def _rows(path):
  return [json.loads(line) for line in path.read_text('utf-8').splitlines()]


def test_choices_are_those_of_the_library():
  assert infer.MODES == bulk.MODES
  assert infer.FORMATS == shards.FORMATS
  assert infer.SHARD == shards.DEFAULT_SHARD
  fields = set(Method.__dataclass_fields__)
  assert set(infer._METHOD) == fields


def test_scores_are_the_scorers(run, folder, random_model):
  shown = run(*_score(*SHARDS)).err
  rows = _rows(folder / 'made.jsonl')
  assert [r['inputs'] for r in rows] == INPUTS
  assert [r['targets'] for r in rows] == TARGETS
  scorer = scoring.Scorer(random_model)
  pairs = list(zip(INPUTS, TARGETS, strict=True))
  tokens = scorer.token_log_probs(pairs)
  for row, log_probs in zip(rows, tokens, strict=True):
    assert row['score'] == pytest.approx(log_probs.mean(), abs=1e-5)
    assert row['log_prob'] == pytest.approx(log_probs.sum(), abs=1e-4)
    assert row['tokens'] == len(log_probs)
  assert '10 inputs' in shown
  assert not (folder / 'made.jsonl.parts').exists()


def test_predictions_are_the_generators(run, folder, random_model):
  shown = run(*SHORT, '--beams', '2').err
  rows = _rows(folder / 'made.jsonl')
  made = generation.Generator(random_model, Method(max_tokens=4, beams=2))
  expected = made.generate(INPUTS).outputs
  assert [r['inputs'] for r in rows] == INPUTS
  for row, [output] in zip(rows, expected, strict=True):
    assert row['prediction'] == output.text
    assert row['log_prob'] == pytest.approx(output.log_prob, abs=1e-4)
    assert row['score'] == pytest.approx(output.score, abs=1e-4)
    assert (row['tokens'], row['finished']) == (output.tokens, output.finished)
  unfinished = sum(not row['finished'] for row in rows)
  assert unfinished and f'{unfinished} outputs cut' in shown


def test_several_outputs_and_plain_text(run, folder):
  several = (*SHORT, '--temperature', '1.5', '--outputs', '3')
  run(*several)
  rows = _rows(folder / 'made.jsonl')
  assert all(len(row['predictions']) == 3 for row in rows)
  run(*several, '--format', 'text', output='made.txt')
  assert (folder / 'made.txt').read_text('utf-8').splitlines() == [
    one['prediction'] for row in rows for one in row['predictions']
  ]
  run(*_score('--format', 'text'), output='scores.txt')
  assert len(np.loadtxt(folder / 'scores.txt')) == len(INPUTS)


def test_standard_output_is_written_shard_by_shard(run, folder):
  printed = run(*_score(*SHARDS, '--quiet'), output='-')
  assert printed.err == ''
  run(*_score(*SHARDS))
  assert printed.out == (folder / 'made.jsonl').read_text('utf-8')
  assert sorted(p.name for p in folder.iterdir()) == [
    *('in.txt', 'made.jsonl', 'out.txt'),
  ]


@pytest.mark.parametrize(
  'mode', [pytest.param('predict', marks=pytest.mark.slow), 'score']
)
def test_a_run_that_broke_off_goes_on(run, folder, monkeypatch, mode):
  arguments = _score(*SHARDS) if mode == 'score' else (*SHORT, *SHARDS)
  run(*arguments, output='whole.jsonl')
  kind = bulk.Score if mode == 'score' else bulk.Predict
  rows, calls = kind.rows, []

  def breaks(self, examples):
    calls.append(len(examples))
    if len(calls) == 2:
      raise placement.ScoringError('broken off')
    return rows(self, examples)

  monkeypatch.setattr(kind, 'rows', breaks)
  assert 'broken off' in run(*arguments, code=1).err
  assert calls == [4, 4]
  assert not (folder / 'made.jsonl').exists()
  assert (folder / 'made.jsonl.parts' / '000000.jsonl').exists()
  run(*arguments)
  # The first shard was kept; the second is done again, and the third.
  assert calls == [4, 4, 4, 2]
  whole = (folder / 'whole.jsonl').read_bytes()
  assert (folder / 'made.jsonl').read_bytes() == whole
  assert not (folder / 'made.jsonl.parts').exists()


@pytest.fixture
def broken_off(run, folder, monkeypatch):
  """A run of one shard in three."""
  with monkeypatch.context() as patch:
    rows, calls = bulk.Score.rows, []

    def breaks(self, examples):
      calls.append(1)
      if len(calls) == 2:
        raise placement.ScoringError('broken off')
      return rows(self, examples)

    patch.setattr(bulk.Score, 'rows', breaks)
    run(*_score(*SHARDS), code=1)
  return folder / 'made.jsonl.parts'


def test_another_run_does_not_go_on(run, folder, broken_off):
  shown = run(*_score('--shard-size', '5'), code=1).err
  assert 'shard_size: ' in shown and '--restart' in shown
  shown = run(*_score(*SHARDS, '--max-length', '9'), code=1).err
  assert 'max_length: ' in shown and shown.count('\n') == 1
  shown = run(*SHARDS, *SHORT, code=1).err
  assert 'mode' in shown
  run(*_score('--shard-size', '5', '--restart'))
  assert len(_rows(folder / 'made.jsonl')) == len(INPUTS)
  assert not broken_off.exists()


def test_changed_inputs_are_noticed(run, folder, broken_off):
  lines = ['something else', *INPUTS[1:]]
  (folder / 'in.txt').write_text('\n'.join(lines) + '\n', 'utf-8')
  assert 'inputs 1 to 4' in run(*_score(*SHARDS), code=1).err
  for name in ('in.txt', 'out.txt'):
    (folder / name).write_text('')
  assert 'only 0 inputs' in run(*_score(*SHARDS), code=1).err


def test_a_folder_of_something_else_is_left_alone(run, folder):
  parts = folder / 'made.jsonl.parts'
  parts.mkdir()
  (parts / 'mine.txt').write_text('precious')
  for more in ([], ['--restart']):
    assert 'has no run.json' in run(*_score(*more), code=1).err
  assert (parts / 'mine.txt').read_text() == 'precious'


def test_nothing_gives_nothing(run, folder):
  (folder / 'in.txt').write_text('')
  run(*SHORT)
  assert (folder / 'made.jsonl').read_text() == ''


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    (['--mode', 'score'], 2, '--mode score needs --targets'),
    (['--targets', 'out.txt'], 2, '--targets is for --mode score'),
    (_score('--beams', '2'), 2, '--beams is for --mode predict'),
    (['--beams', '2', '--temperature', '1'], 2, 'not both'),
    (['--max-tokens', '0'], 2, 'max_tokens 0: at least 1'),
    (['--num-partitions', '3'], 2, 'does not divide the'),
    (['--gin_file', 'x.gin'], 2, '--model is for files'),
    (_score('--targets', 'short.txt'), 1, 'short.txt, line 2: the file ends'),
    (_score('--targets', 'short.txt', '-o', 'short.txt'), 2, 'is an input too'),
    (['--process_count', '2'], 2, '--coordinator_address'),
  ],
)
def test_errors_say_what(run, folder, arguments, code, message):
  (folder / 'short.txt').write_text('one\n')
  shown = run(*arguments, code=code).err
  assert message in shown
  assert shown.startswith('t5score infer: ') and shown.count('\n') == 1
  assert not (folder / 'made.jsonl').exists()


def test_what_is_missing(folder, capsys):
  assert cli.main(['infer', '--inputs', 'in.txt', '-o', 'x.jsonl']) == 2
  assert 'give --model' in capsys.readouterr().err
  command = ['infer', '-m', 'nowhere', '--inputs', 'in.txt', '-o', 'x.jsonl']
  assert cli.main(command) == 1
  assert "no model 'nowhere'" in capsys.readouterr().err


_TASK = """
from __gin__ import dynamic_registration
include 'runs/infer.gin'
MIXTURE_OR_TASK_NAME = 'infer_bytes'
TASK_FEATURE_LENGTHS = {'inputs': 20, 'targets': 12}
SPLIT = 'validation'
"""
_REGISTER = """
import functools
import seqio
import tensorflow as tf
from t5score_jax.inputs import preprocessors
def rows(split, shuffle_files=False, seed=None):
  texts = ['one', 'and another one', 'a text that is longer than the limit']
  return tf.data.Dataset.from_tensor_slices(
    {'inputs': texts, 'targets': ['eins', 'und noch eins', '']})

seqio.TaskRegistry.add(
  'infer_bytes',
  source=seqio.FunctionDataSource(rows, splits=['validation']),
  preprocessors=[
    seqio.preprocessors.tokenize,
    seqio.preprocessors.append_eos_after_trim,
  ],
  output_features=preprocessors.text_features(seqio.ByteVocabulary()),
)
"""


def test_a_task_by_gin(folder, bytes_bundle, monkeypatch, capsys):
  (folder / 'infer_tasks.py').write_text(_REGISTER)
  (folder / 'task.gin').write_text(_TASK)
  monkeypatch.syspath_prepend(str(folder))

  def call(*arguments, code=0):
    module = "--gin.MIXTURE_OR_TASK_MODULE='infer_tasks'"
    command = ['infer', '--gin_file=task.gin', module, *arguments]
    assert cli.main(command) == code
    return capsys.readouterr().err

  where = "--gin.INFER_OUTPUT_DIR='out'"
  assert 'CHECKPOINT_PATH has no value' in call(where, code=2)
  model = f"--gin.CHECKPOINT_PATH='{bytes_bundle}'"
  other = "--gin.MIXTURE_OR_TASK_MODULE='no_tasks.mine'"
  error = call(where, model, other, code=1)
  assert "'no_tasks.mine': no module 'no_tasks'" in error
  shown = call(where, model, "--gin.SPLIT='test'", code=1)
  assert "no split 'test', only ['validation']" in shown
  assert shown.count('\n') == 1
  call(where, model, "--gin.MODE='score'")
  rows = _rows(folder / 'out' / 'infer_bytes-score.jsonl')
  assert [r['targets'] for r in rows] == ['eins', 'und noch eins', '']
  # Cut where the task says: 11 bytes and `</s>`, 19 and `</s>`.
  assert [r['tokens'] for r in rows] == [5, 12, 1]
  scorer = scoring.Scorer(load_bundle(bytes_bundle), max_length=20)
  expected = scorer.scores(
    [
      ('one', 'eins'),
      ('and another one', 'und noch ei'),
      ('a text that is longer than the limit', ''),
    ]
  )
  np.testing.assert_allclose([r['score'] for r in rows], expected, atol=1e-5)
  call(where, model, '--gin.search.Method.max_tokens=3')
  rows = _rows(folder / 'out' / 'infer_bytes-predict.jsonl')
  assert [r['tokens'] <= 3 for r in rows] == [True] * 3
  assert rows[0]['inputs'] == 'one'
