"""`t5score fit`, whole, on a made-up corpus and a tiny encoder."""

import dataclasses
import io
import json
import re
import shlex
import sys

import numpy as np
import pytest
import rated_corpus
import tiny_encoder

from t5score_jax import cli
from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import regressors
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data import instances, records
from t5score_jax.fitting import fit as fitting
from t5score_jax.metrics import comes
from t5score_jax.training import stopping

RATINGS = ('--ratings', 'coherence,fluency')
STANDARDIZED = '--gin.STANDARDIZED=True'


class Place:
  """Files of a corpus, an encoder and configurations, and the command."""

  def __init__(self, folder):
    self.folder = folder
    self.encoder = tiny_encoder.make(folder / 'encoder')
    rated_corpus.write_gin(folder, self.encoder)
    rated = rated_corpus.segments()
    records.write_records(folder / 'rated.jsonl', rated)
    # What the first of three folds learns from, and is chosen by.
    self.fold = instances.folds('abcdef', 3)[0]
    for part in fitting.PARTS:
      names = getattr(self.fold, part)
      chosen = [s for s in rated if s.document in names]
      records.write_records(folder / f'{part}.jsonl', chosen)

  def run(
    self,
    name,
    *arguments,
    run='comes_head',
    ratings=RATINGS,
    chosen='validation',
  ):
    given = [
      *(f'--gin_file={self.folder}/{run}.gin', '--quiet', *ratings),
      *('--input', self.folder / 'train.jsonl'),
      *('--validation', self.folder / f'{chosen}.jsonl'),
      *('--work', self.folder / name, *arguments),
    ]
    return cli.main(['fit', *map(str, given)])

  def params(self, name):
    loaded = regressors.load(self.folder / name)
    return dict(bundles.flatten_names(loaded.params))


def _same(one, two):
  assert one.keys() == two.keys()
  for name in one:
    np.testing.assert_array_equal(one[name], two[name], err_msg=name)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  return Place(tmp_path_factory.mktemp('fit'))


@pytest.fixture(scope='module')
def fitted(place):
  assert place.run('one', STANDARDIZED) == 0
  return place.params('one/model')


@pytest.mark.slow
def test_it_is_the_model_of_a_fold_of_the_same_documents(place, fitted, capsys):
  arguments = [
    *(f'--gin_file={place.folder}/comes_head.gin', '--quiet', '--folds', 3),
    *('--input', place.folder / 'rated.jsonl', *RATINGS, STANDARDIZED),
    *('--work', place.folder / 'folds', '-o', place.folder / 'joined.jsonl'),
  ]
  assert cli.main(['crossvalidate', *map(str, arguments)]) == 0
  _same(place.params('folds/fold_1/model'), fitted)


def test_it_says_ratings_and_scores_by_itself(place, fitted):
  metric = comes.Metric(place.folder / 'one' / 'model')
  scores = metric.score_segments(rated_corpus.segments('xyz', seed=5))
  found = np.stack([scores.components[n] for n in ('coherence', 'fluency')])
  assert np.abs(found - 3.4).max() < 3 and np.abs(found.mean() - 3.4) < 1


def test_again_it_trains_nothing(place, fitted, capsys):
  file = place.folder / 'one' / 'model' / 'model.safetensors'
  before = file.stat().st_mtime_ns
  capsys.readouterr()
  assert place.run('one', STANDARDIZED) == 0
  assert file.stat().st_mtime_ns == before
  # 2 documents x 3 systems x 2 experts x 2 references.
  shown = capsys.readouterr().out
  assert 'coherence, fluency, trained on 24 instances, validated on 24' in (
    shown
  )


@pytest.mark.slow
def test_batches_by_length(place, capsys):
  text = (place.folder / 'comes.gin').read_text()
  text += "include 'runs/comes_by_length.gin'\nBATCH_TOKENS = 48\n"
  text += 'EPOCHS = 2\nFROZEN_EPOCHS = 0\nSTEPS_PER_CALL = 1\n'
  (place.folder / 'by_length.gin').write_text(text)
  assert place.run('by_length', run='by_length', chosen='train') == 0
  # 24 instances of 24 tokens at most, two in a batch of that length.
  out = capsys.readouterr().out
  assert 'trained on 24 instances' in out and 'note' not in out
  log = (place.folder / 'by_length/run/metrics.jsonl').read_text().splitlines()
  steps = [json.loads(line)['step'] for line in log]
  assert 12 <= max(steps) <= 24
  metric = comes.Metric(place.folder / 'by_length' / 'model')
  scores = metric.score_segments(rated_corpus.segments('xy', seed=5))
  assert np.all(np.isfinite(scores.values))


def test_what_is_said_of_the_choice_is_the_checkpoint_s(place, capsys):
  # Enough steps, so that there is no note.
  more = ('--gin.EPOCHS=7', '--gin.PATIENCE=None')
  assert place.run('chosen_step', STANDARDIZED, *more) == 0
  printed = capsys.readouterr().out
  assert 'note' not in printed
  line = printed.splitlines()[1]
  step, pearson = re.search(
    r'step (\d+): .*validation/pearson (-?[\d.]+)', line
  ).groups()
  log = (
    (place.folder / 'chosen_step/run/metrics.jsonl').read_text().splitlines()
  )
  seen = {
    line['step']: line['validation/pearson']
    for line in map(json.loads, log)
    if line['kind'] == 'evaluation'
  }
  assert max(seen, key=seen.get) == int(step) and len(seen) > 2
  assert float(pearson) == pytest.approx(seen[int(step)], abs=5e-5)


def test_few_steps_are_noted_and_a_path_is_printed_in_any_locale(
  place, monkeypatch
):
  stream = io.TextIOWrapper(io.BytesIO(), encoding='ascii')
  monkeypatch.setattr(sys, 'stdout', stream)
  assert place.run('größe', '--gin.EPOCHS=1') == 0
  stream.flush()
  printed = stream.buffer.getvalue().decode('utf-8')
  assert 'größe/model' in printed
  last = printed.splitlines()[-1]
  # 24 instances in batches of 8.
  assert last.startswith('note: only 3 steps of 8 instances, 1.0 epochs of 24')


def test_a_share_of_the_documents_is_chosen_by(place, capsys):
  arguments = [
    *(f'--gin_file={place.folder}/comes_head.gin', '--quiet', *RATINGS),
    *('--input', place.folder / 'train.jsonl'),
    *('--input', place.folder / 'validation.jsonl'),
    *('--validation-share', '0.3', '--seed', 4, '--prepare'),
    *('--work', place.folder / 'share'),
  ]
  assert cli.main(['fit', *map(str, arguments)]) == 0
  counts = {
    part: json.loads((place.folder / f'share/{part}/info.json').read_text())
    for part in fitting.PARTS
  }
  # One of four documents, whole.
  assert counts['train']['instances'] == 3 * 12
  assert counts['validation']['instances'] == 12
  sources = {
    part: set(np.load(place.folder / f'share/{part}/source.npy').tolist())
    for part in fitting.PARTS
  }
  assert sources['train'].isdisjoint(sources['validation'])


def test_held_out():
  names = [*'abcdefghij', 'a']
  chosen = instances.held_out(names, 0.3)
  assert chosen == instances.held_out(reversed(names), 0.3) and len(chosen) == 3
  assert chosen < instances.held_out(names, 0.6) < set(names)
  assert (
    len({frozenset(instances.held_out(names, 0.3, s)) for s in range(9)}) > 2
  )
  assert len(instances.held_out('ab', 0.01)) == 1
  assert len(instances.held_out('ab', 0.99)) == 1
  for share in (0, 1, -1, float('nan')):
    with pytest.raises(ValueError, match='between 0 and 1'):
      instances.held_out(names, share)
  with pytest.raises(ValueError, match='at least 2'):
    instances.held_out('aa', 0.5)


@pytest.mark.parametrize(
  'run', ['comes_head', pytest.param('comes', marks=pytest.mark.slow)]
)
def test_the_command_that_is_prepared_trains_the_same(
  place, fitted, capsys, run
):
  """As many hosts do it: prepared here, trained there, put together here."""
  more = [STANDARDIZED]
  if run == 'comes':
    assert place.run('direct', *more, run=run) == 0
    fitted = place.params('direct/model')
  capsys.readouterr()
  assert place.run(f'apart_{run}', *more, '--prepare', run=run) == 0
  words = shlex.split(capsys.readouterr().out)
  assert words[0] == 't5score'
  assert not (place.folder / f'apart_{run}' / 'run').exists()
  assert cli.main([*words[1:], '--quiet']) == 0
  assert place.run(f'apart_{run}', *more, run=run) == 0
  _same(fitted, place.params(f'apart_{run}/model'))


def test_an_estimator_with_one_output_is_gone_on_from(place, fitted):
  """COMES_MT (section 3): each output begins as the single one."""
  single = regressors.load(place.folder / 'one/model')
  config = dataclasses.replace(single.config, outputs=('score',))
  last = single.params['estimator']['layers_1']
  last.update({name: array[..., :1] for name, array in last.items()})
  single = dataclasses.replace(single, config=config)
  regressors.save(single, place.folder / 'single/model')
  path = f"--gin.ENCODER_PATH='{place.folder / 'single' / 'model'}'"
  still = '--gin.LEARNING_RATE=0.0'
  assert place.run('widened', path, still, '--gin.EPOCHS=1') == 0
  one = place.params('single/model')
  wide = place.params('widened/model')
  for name, array in one.items():
    wanted = array
    if wide[name].shape != array.shape:
      wanted = np.repeat(array, 2, axis=-1)
    np.testing.assert_allclose(wide[name], wanted, atol=1e-6, err_msg=name)


def test_a_run_that_was_stopped_goes_on(place, fitted, monkeypatch, capsys):
  checks = []

  def check(self):
    checks.append(1)
    if len(checks) == 2:
      self.reason = 'preempted'
    return self.reason

  with monkeypatch.context() as patch:
    patch.setattr(stopping.Stopping, 'check', check)
    assert place.run('stopped', STANDARDIZED) == 75
  assert 'preempted; the same command' in capsys.readouterr().err
  assert not (place.folder / 'stopped' / 'model').exists()
  assert place.run('stopped', STANDARDIZED) == 0
  _same(place.params('stopped/model'), fitted)


@pytest.mark.slow
def test_the_whole_network_is_tuned_after_its_head(place, capsys):
  assert place.run('tuned', '--gin.FINE_TUNE_EPOCHS=1') == 0
  tuned = place.params('tuned/model')
  start = dict(
    bundles.flatten_names(encoders.load_encoder(place.encoder).params)
  )
  name = 'layers_0/mlp_norm/scale'
  assert np.abs(tuned[f'encoder/{name}'] - start[name]).max() > 0


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    (['--gin.RANDOM_SEED=3', '--work', 'one'], 2,
     'configuration: .*RANDOM_SEED = 3'),
    (['--validation', 'rated.jsonl', '--work', 'one'], 2,
     'records: the contents'),
    (['--ratings', 'coherence', '--work', 'e1'], 2,
     r'2 outputs .*1 ratings .*--gin.OUTPUTS="\(.coherence.,\)"'),
    (['--ratings', 'a,b', '--work', 'e2'], 1, "no column 'a'"),
    (['--validation', 'rated.jsonl', 'where:system=none', '--work', 'e4'], 1,
     'no row matches where:system=none'),
    (['--input', 'nowhere.jsonl', '--work', 'e5'], 1, 'nowhere.jsonl'),
    (['--work', '.'], 2, 'has no plan.json'),
    (['--gin.ENCODER_PATH="nowhere"', '--work', 'e6'], 1, 'nowhere'),
    (['--gin.EPOCH=3', '--work', 'e7'], 2, 'did you mean EPOCHS'),
  ],
)  # fmt: skip
def test_errors_are_one_line(
  place, fitted, arguments, code, message, capsys, monkeypatch
):
  monkeypatch.chdir(place.folder)
  _write_unrated(place.folder)
  capsys.readouterr()
  assert place.run('unused', STANDARDIZED, *arguments) == code
  error = capsys.readouterr().err
  assert error.count('\n') == 1 and re.search(message, error), error
  assert error.startswith('t5score fit: ')


def test_ratings_to_choose_by_are_needed(place, capsys):
  _write_unrated(place.folder)
  assert place.run('e3', chosen='unrated') == 1
  shown = "unrated.jsonl, field 'coherence': no record has a rating"
  assert shown in capsys.readouterr().err


def test_a_share_needs_documents(place, capsys, monkeypatch):
  monkeypatch.chdir(place.folder)
  rows = [json.loads(x) for x in open('rated.jsonl')]
  with open('bare.jsonl', 'w') as out:
    for row in rows:
      del row['document']
      out.write(json.dumps(row) + '\n')
  given = ['--gin_file=comes_head.gin', '--input', 'bare.jsonl', *RATINGS]
  given += ['--validation-share', '.2', '--work', 'e8']
  assert cli.main(['fit', *map(str, [*given, '--by', 'document'])]) == 1
  error = capsys.readouterr().err
  assert 'there is no document to divide by' in error
  assert '--by' in error and 'source' in error
  given[-3] = '1.5'
  assert cli.main(['fit', *map(str, [*given, '--by', 'source'])]) == 2
  assert 'share 1.5: must lie between' in capsys.readouterr().err
  with pytest.raises(SystemExit):
    cli.main(['fit', *given, '--validation', 'rated.jsonl'])


def _write_unrated(folder):
  rows = [json.loads(x) for x in (folder / 'rated.jsonl').open()]
  text = ''.join(json.dumps(row | {'coherence': None}) + '\n' for row in rows)
  (folder / 'unrated.jsonl').write_text(text)
