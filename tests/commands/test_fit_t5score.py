"""`t5score fit` without gin files: T5Score from rated records."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest

import t5score_jax
from t5score_jax import cli
from t5score_jax.checkpoints import bundle, kinds
from t5score_jax.data import vocab
from t5score_jax.data.records import Segment
from t5score_jax.fitting import t5score

WORDS = 'the cat sees a red kite and some bread in this old town'.split()


def _rows(documents=6, seed=0):
  rng = np.random.default_rng(seed)
  for n in range(documents * 2):
    words = list(rng.choice(WORDS, 5))
    for system, count in (('good', 0), ('fair', 1), ('poor', 3)):
      text = [*words[: 5 - count], *rng.choice(WORDS, count)]
      yield {
        'system': system,
        'document': f'd{n // 2}',
        'segment': str(n),
        'source': ' '.join(reversed(words)),
        'reference': ' '.join(words),
        'hypothesis': ' '.join(text),
        'quality': 90 - 20 * count + float(rng.normal()),
      }


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  place = tmp_path_factory.mktemp('fit')
  lines = [json.dumps(row) for row in _rows()]
  (place / 'rated.jsonl').write_text('\n'.join(lines) + '\n')
  return place


@pytest.fixture
def fit(folder, bytes_bundle, monkeypatch, capsys):
  monkeypatch.chdir(folder)

  def call(work, *arguments, code=0):
    given = ['fit', '--input', 'rated.jsonl', '--ratings', 'quality']
    given += ['--validation-share', '0.3', '-m', bytes_bundle, '--work', work]
    assert cli.main([*map(str, given), *map(str, arguments)]) == code
    return capsys.readouterr()

  return call


@pytest.mark.slow
def test_it_trains_and_the_printed_command_does_the_same(
  fit, folder, bytes_bundle, capsys
):
  shown = fit('one')
  text = (folder / 'one' / 'fit.gin').read_text()
  assert text in shown.err
  command = re.search(r'^  (t5score train .*)$', shown.err, re.MULTILINE)[1]
  assert 'trained on 24 records, validated on 12' in shown.out
  assert 'validation/pearson' in shown.out
  before = bundle.load_bundle(bytes_bundle).params
  after = bundle.load_bundle(folder / 'one' / 'model').params
  changed = [
    np.abs(a - b).max()
    for (_, a), (_, b) in zip(
      bundle.flatten_names(before), bundle.flatten_names(after), strict=True
    )
  ]
  assert max(changed) > 1e-4

  # Prepared here, trained by the printed command, put together here.
  prepared = fit('two', '--prepare').out
  assert command.replace('one', 'two') == prepared.strip()
  assert cli.main([*shlex.split(prepared)[1:], '--quiet']) == 0
  fit('two', '--quiet')
  scores = [
    t5score_jax.load(folder / name / 'model').score(['the cat'], ['a kite'])[0]
    for name in ('one', 'two')
  ]
  assert scores[0] == pytest.approx(scores[1], abs=1e-6)

  again = fit('one')
  assert again.out == shown.out


def test_what_the_gin_file_says(bytes_bundle, tmp_path):
  segments = [
    Segment(
      row['hypothesis'],
      row['source'],
      (row['reference'],),
      segment=row['segment'],
      ratings={'quality': row['quality']},
    )
    for row in _rows()
  ]
  paths = {'train': 'a.jsonl', 'validation': 'b.jsonl'}

  def values(segments, **more):
    choices = t5score.Choices(str(bytes_bundle), **more)
    text = t5score.configuration(choices, 'quality', segments, paths)
    pairs = re.findall(r'^([A-Z_]+) = (.*)$', text, re.MULTILINE)
    return {name: value for name, value in pairs}, text

  found, text = values(segments)
  # 12 groups of 3, 4 a step, 4 epochs: the fewest steps.
  assert found['TRAIN_STEPS'] == '20' and found['EVAL_EVERY'] == '2'
  longest = max(len(s.hypothesis) for s in segments) + 1
  length = 16 * -(-longest // 16)
  assert found['TASK_FEATURE_LENGTHS'] == str(
    {'inputs': length, 'targets': length, 'ratings': 3}
  )
  assert '  emb_dim = 16\n' in text and 'adamw' in text
  found, _ = values(segments, epochs=20.0, batch_size=2, learning_rate=3e-4)
  assert found['TRAIN_STEPS'] == '120' and found['LEARNING_RATE'] == '0.0003'
  bare = [
    Segment(s.hypothesis, s.source, segment=s.segment, ratings=s.ratings)
    for s in segments
  ]
  found, _ = values(bare)
  assert found['SHARED'] == "'source'"
  assert "'direction': 'source'" in found['SETTINGS']
  # Scores of the tuned model do not go by the name of the first one.
  text = t5score.configuration(
    t5score.Choices('t5score-tiny'), 'quality', segments, paths
  )
  assert "'name': 't5score-tiny-tuned'" in text
  # Nor does the name grow when it is tuned again.
  again = shutil.copytree(kinds.folder('t5score-tiny'), tmp_path / 'again')
  for file in again.glob('*.json'):
    content = file.read_text('utf-8')
    file.write_text(content.replace('"t5score-tiny"', '"t5score-tiny-tuned"'))
  text = t5score.configuration(
    t5score.Choices(str(again)), 'quality', segments, paths
  )
  assert "'name': 't5score-tiny-tuned'" in text


def test_long_texts_and_large_groups_have_limits(bytes_bundle):
  segments = [
    Segment('x' * (n + 600), None, ('y' * 2000,), ratings={'q': n})
    for n in range(20)
  ]
  text = t5score.configuration(
    t5score.Choices(str(bytes_bundle)),
    'q',
    segments,
    {'train': 'a', 'validation': 'b'},
  )
  assert "{'inputs': 512, 'targets': 512, 'ratings': 8}" in text
  group = t5score.judgments.Group('abc', ('x' * 15,), (1.0,), (None,))
  assert t5score._length([group], vocab.ByteVocabulary()) == 16
  assert t5score._length([], vocab.ByteVocabulary()) == 64


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    (['--ratings', 'quality,other'], 1, "no column 'other'"),
    (['--epochs', '0'], 2, '--epochs 0: must be above 0'),
    (['--learning-rate=-1'], 2, '--learning-rate -1: must be above 0'),
    (['-m', 'nowhere'], 1, "no model 'nowhere'"),
    (['--gin_file=recipes/comet_minilm.gin'], 2, '-m is for T5Score'),
    (['--gin.NOTHING=1'], 2, 'nothing in the gin files uses NOTHING'),
  ],
)
def test_errors_are_one_line(fit, arguments, code, message):
  shown = fit('wrong', '--quiet', *arguments, code=code)
  assert message in shown.err and shown.err.count('\n') == 1
  assert shown.out == ''


def test_a_folder_of_another_run(fit, folder):
  fit('taken', '--prepare')
  error = fit('taken', '--prepare', '--epochs', 90, code=2).err
  assert 'choose another --work' in error


def test_records_without_pairs(folder, bytes_bundle, monkeypatch, capsys):
  monkeypatch.chdir(folder)
  rows = [row for row in _rows() if row['system'] == 'good']
  (folder / 'single.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')
  given = ['fit', '--input', 'single.jsonl', '--ratings', 'quality']
  given += ['--validation', 'rated.jsonl', '-m', str(bytes_bundle)]
  assert cli.main([*given, '--work', 'single', '--quiet']) == 1
  error = capsys.readouterr().err
  assert 'no two hypotheses form a pair' in error and error.count('\n') == 1
