"""Which metric a folder means, and its flags, for every verb that scores."""

import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoder

import t5score_jax
from t5score_jax import cli
from t5score_jax.checkpoints import cross_encoders, kinds, native, regressors
from t5score_jax.checkpoints.formats.comet import checkpoint as comet
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.metrics import base, registry
from tests.checkpoints import test_cross_encoders as test_miniatures
from tests.inference import test_embedding as test_embedding

TEXTS = {
  'h': ['the cat sat', 'a dog ran over the hill', '', 'green birds'],
  'r': ['a cat sat', 'the dogs ran over', 'the mat', 'the bird , green'],
  'r2': ['the mat', 'a dog', 'a cat', 'a small bird'],
  's': ['the mat', 'a small hill', 'cat', 'dog dog'],
}


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp('models')
  tiny_encoder.make(folder / 'encoder')
  encoder = encoders.load_encoder(folder / 'encoder')
  model = test_embedding.make(encoder, outputs=('coherence', 'fluency'))
  regressors.save(model, folder / 'estimator')
  (folder / 'comet').mkdir()
  comet.save_comet(test_embedding.make(encoder), folder / 'comet')
  test_miniatures.make(folder)
  (folder / 'm').rename(folder / 'miniature')
  return folder


@pytest.fixture
def run(models, tmp_path, monkeypatch, capsys):
  """Runs a verb in a folder with files of texts and the models."""
  for name, texts in TEXTS.items():
    (tmp_path / name).write_text(''.join(f'{text}\n' for text in texts))
  for path in models.iterdir():
    if path.is_dir():
      (tmp_path / path.name).symlink_to(path)
  monkeypatch.chdir(tmp_path)

  def call(words, code=0):
    assert cli.main(words.split()) == code
    return capsys.readouterr()

  return call


def _scores(shown):
  return [json.loads(line)['score'] for line in shown.out.splitlines()]


def test_kinds(models, random_bundle, tmp_path):
  want = {
    'encoder': kinds.ENCODER,
    'estimator': kinds.REGRESSOR,
    'comet': kinds.COMET,
    'comet/model.ckpt': kinds.COMET,
    'miniature': kinds.CROSS_ENCODER,
    'absent': '',
  }
  weights = next((models / 'comet').rglob('*.ckpt'))
  assert kinds.of(weights) == kinds.COMET
  want.pop('comet/model.ckpt')
  assert {name: kinds.of(models / name) for name in want} == want
  assert kinds.of(random_bundle) == kinds.BUNDLE
  # A run's checkpoint is of the kind that its MODEL_DIR says.
  (tmp_path / 'checkpoint_5').mkdir()
  assert kinds.of(tmp_path / 'checkpoint_5') == ''
  for name, kind in (('estimator', kinds.REGRESSOR), ('encoder', 'encoder')):
    text = (models / name / 'config.json').read_text()
    (tmp_path / 'config.json').write_text(text)
    assert kinds.of(tmp_path / 'checkpoint_5') == kind
    assert kinds.described(tmp_path / 'checkpoint_5') == ''
  for text in ('{', '[]', '{}', '{"model_type": "opt"}', '{"kind": "other"}'):
    (tmp_path / 'config.json').write_text(text)
    assert kinds.of(tmp_path) == ''


def test_a_folder_says_which_metric(models, random_bundle):
  for name, metric in (
    (models / 'estimator', 'comes'),
    (models / 'comet', 'comes'),
    (models / 'miniature', 'frugalscore'),
    (random_bundle, 't5score'),
    ('absent', 't5score'),
  ):
    assert registry.choose(name) == registry.Choice(metric, str(name))
  assert registry.choose() == registry.Choice('t5score', 't5score-tiny')
  assert registry.choose('T5Score') == registry.choose()
  assert registry.choose('chrf++') == registry.Choice('chrf++')
  assert registry.choose('x', 'comes') == registry.Choice('comes', 'x')
  with pytest.raises(registry.ChoiceError, match='--metric bertscore or'):
    registry.choose(models / 'encoder')
  with pytest.raises(registry.ChoiceError, match="did you mean 'comes'"):
    registry.choose('x', 'commes')


def test_a_path_is_never_a_name(models, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name, kind in (('frugalscore', 'miniature'), ('comes', 'estimator')):
    path = pathlib.Path(name)
    path.symlink_to(models / kind)
    choice = registry.choose(path)
    assert choice == registry.Choice(name, f'./{name}')
    with pytest.raises(registry.ChoiceError, match=f'give ./{name} for the'):
      registry.choose(name)
    # Both are given: nothing is left to guess.
    assert registry.choose(None, name) == registry.Choice(name)
    assert registry.choose(name, name) == registry.Choice(name, name)
    assert registry.choose(name, has_model=True) == registry.Choice(name)
  loaded = t5score_jax.load(pathlib.Path('frugalscore'))
  assert '|model:toy|' in loaded.signature()
  with pytest.raises(FileNotFoundError, match='./frugalscore-tiny'):
    t5score_jax.load(pathlib.Path('frugalscore-tiny'))
  assert kinds.folder('frugalscore-tiny').is_dir()


def test_finding_out_imports_no_jax(models):
  program = (
    'import sys\n'
    'from t5score_jax.metrics import registry\n'
    "for name in ('estimator', 'comet', 'miniature'):\n"
    f'  print(registry.choose({str(models)!r} + "/" + name).metric)\n'
    "sys.exit('jax' in sys.modules)"
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.split() == ['comes', 'comes', 'frugalscore']


@pytest.mark.parametrize(
  ('given', 'metric', 'model'),
  [
    ('-m estimator', 'comes', 'estimator'),
    ('--metric FrugalScore -m miniature', 'frugalscore', 'miniature'),
    ('--metric moverscore -m miniature', 'moverscore', 'miniature'),
    *(
      pytest.param(*row, marks=pytest.mark.slow)
      for row in (
        ('--metric comes -m estimator', 'comes', 'estimator'),
        ('-m comes --option model=estimator', 'comes', 'estimator'),
        ('-m miniature', 'frugalscore', 'miniature'),
        ('--metric bertscore -m encoder', 'bertscore', 'encoder'),
      )
    ),
  ],
)
def test_scores_are_those_of_python(run, models, given, metric, model):
  shown = run(f'score {given} -t h -r r -s s')
  found = registry.load_metric(metric, model=models / model)
  want = found.score(TEXTS['h'], TEXTS['r'], TEXTS['s'])
  np.testing.assert_allclose(_scores(shown), want.values, atol=1e-6)
  assert shown.err.endswith(f'signature: {want.signature}\n')
  if '--option' not in given:
    named = metric if '--metric' in given else None
    assert t5score_jax.load(model, named).signature() == found.signature()


@pytest.mark.parametrize(
  'name', ['estimator', pytest.param('miniature', marks=pytest.mark.slow)]
)
def test_runs_of_training_and_their_checkpoints(models, tmp_path, name):
  """What a run leaves: a description, and weights in a checkpoint."""
  module = {'estimator': regressors, 'miniature': cross_encoders}[name]
  model = module.load(models / name)
  run = tmp_path / 'run'
  run.mkdir()
  settings = {k: v for k, v in model.settings.items() if k != 'name'}
  module.write_description(run, model.config, model.tokenizer, settings)
  with native.Checkpoints(run) as checkpoints:
    checkpoints.save(7, {'params': jax.tree.map(jnp.asarray, model.params)})
  whole = t5score_jax.load(models / name)
  want = whole.score(TEXTS['h'], TEXTS['r'], TEXTS['s'])
  for place in (run, run / 'checkpoint_7'):
    metric = t5score_jax.load(place)
    assert metric.name == whole.name
    found = metric.score(TEXTS['h'], TEXTS['r'], TEXTS['s'])
    np.testing.assert_allclose(found.values, want.values, atol=1e-6)
  assert '|model:run|' in t5score_jax.load(run).signature()


@pytest.mark.parametrize(
  'given',
  [
    '-m estimator',
    '--metric moverscore -m encoder',
    pytest.param('-m miniature', marks=pytest.mark.slow),
    pytest.param('--metric bertscore -m encoder', marks=pytest.mark.slow),
  ],
)
def test_flags_reach_every_metric(run, given):
  flags = '--several mean --max-length 7 --dtype bfloat16 --batch-tokens 20'
  shown = run(f'score {given} -t h -r r r2 -s s {flags} --num-partitions 1')
  assert 'nrefs:2|refs:mean' in shown.err
  assert '|length:7|dtype:bfloat16|' in shown.err
  assert 'longer than the model reads' in shown.err
  assert '%)' in shown.err


def test_options_without_a_flag(run):
  shown = run(
    'score -m estimator -t h -r r -s s --max-length 5 --option windows=True'
    ' --option stride=1 --option output=fluency'
  )
  assert '|output:fluency|' in shown.err
  assert '|length:5|windows:stride1|' in shown.err
  assert 'were read in several windows' in shown.err
  rows = [json.loads(line) for line in shown.out.splitlines()]
  assert all(row['score'] == row['fluency'] for row in rows)


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    ('-m encoder', '--metric bertscore or --metric cosine or'),
    ('--metric bert -m encoder', "no metric 'bert'; did you mean"),
    ('--metric bleu -m encoder', '-m is not for bleu, which has no model'),
    (
      '-m estimator --direction f',
      '--direction is not for comes, which has --several, --max-length',
    ),
    ('-m miniature --tokens', '--tokens is not for frugalscore'),
    ('-m estimator --option model=x', '--option model: give -m'),
    ('--metric comes --option model=x', '--option model: give -m'),
    ('-m estimator --option max_length=9', 'give --max-length'),
    ('-m estimator --option layer=9', "metric 'comes' has no option 'layer'"),
    ('-m bleu --num-partitions 2', '--num-partitions is not for bleu'),
    ('--metric comes', 'COMES needs a model'),
    *(
      (f'--metric {metric} -m {model}', f'which {metric} does not read; {able}')
      for metric, model, able in (
        ('t5score', 'estimator', 'comes can'),
        ('comes', 'encoder', 'bertscore and '),
        ('frugalscore', 'comet', 'comes can'),
        ('comes', 'miniature', 'bertscore and cosine and frugalscore and '),
      )
    ),
    ('--metric bertscore', 'BERTScore needs an encoder'),
    ('-m estimator --num-partitions 7', 'num_partitions = 7 does not divide'),
    ('-m miniature --max-length 99', 'the encoder takes 3 to 24 tokens'),
    ('-m estimator --option output=x', "output 'x': the model has coherence"),
    ('-m estimator --option stride=1', 'stride 1'),
    ('-m chrf --option beta=0', 'must be at least 1'),
    *(
      (f'--metric {metric} -m {model} --option {option}', message)
      for metric, model, option, message in (
        (
          'bertscore',
          'encoder',
          'layer=x',
          "layer='x' of bertscore: must be",
        ),
        (
          'bertscore',
          'encoder',
          'layer=1.5',
          'layer=1.5 of bertscore: must be',
        ),
        ('bertscore', 'encoder', 'layer=', "layer='' of bertscore: must be"),
        ('cosine', 'encoder', 'layer=None', 'layer=None of cosine: must be'),
        (
          'bertscore',
          'encoder',
          'layer=True',
          'layer=True of bertscore: must be',
        ),
        ('bertscore', 'encoder', 'layer=9', 'layer 9: the encoder has'),
        ('bertscore', 'encoder', 'baseline=1', "baseline '1': there is no"),
        (
          'bertscore',
          'encoder',
          'spread=x',
          "spread='x' of bertscore: must be",
        ),
        (
          'moverscore',
          'encoder',
          'ngram=1.5',
          'ngram=1.5 of moverscore: must be',
        ),
        (
          'moverscore',
          'encoder',
          'ngram=x',
          "ngram='x' of moverscore: must be",
        ),
        ('moverscore', 'encoder', 'ngram=True', 'ngram=True of moverscore'),
        ('moverscore', 'encoder', 'ngram=0', 'ngram 0: at least 1'),
        (
          'comes',
          'estimator',
          'stride=x',
          "stride='x' of comes: must be",
        ),
        (
          'comes',
          'estimator',
          'stride=1.5',
          'stride=1.5 of comes: must be',
        ),
        ('comes', 'estimator', 'windows=2', 'windows=2 of comes: must be'),
      )
    ),
  ],
)
def test_contradictions_are_usage_errors(run, words, message):
  shown = run(f'score {words} -t h -r r -s s', code=2)
  assert message in shown.err and shown.out == ''
  assert shown.err.count('\n') == 1


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    ('--metric comes -m absent', "no model 'absent': there is no such folder"),
    ('--metric comes -m empty', 'empty: there is no .ckpt file'),
    ('--metric t5score -m empty', 'empty: not a checkpoint of a known format'),
  ],
)
def test_errors_are_one_line(run, tmp_path, words, message):
  (tmp_path / 'empty').mkdir()
  shown = run(f'score {words} -t h -r r -s s', code=1)
  assert message in shown.err and shown.out == ''
  assert shown.err.count('\n') == 1


def test_kinds_of_options_from_python(models):
  for metric, options, message in (
    (
      'bertscore',
      {'max_length': 8.5},
      'max_length=8.5 of bertscore: must be',
    ),
    ('bertscore', {'layer': '1'}, "layer='1' of bertscore: must be"),
    ('bertscore', {'dtype': 'int8'}, "dtype 'int8': use one of float32"),
    ('comes', {'dtype': 'int8'}, "dtype 'int8': use one of float32"),
    ('chrf', {'lowercase': 'yes'}, "lowercase='yes' of chrf: must be"),
  ):
    folder = {'bertscore': 'encoder', 'comes': 'estimator'}.get(metric)
    chosen = {'model': models / folder} if folder else {}
    with pytest.raises(base.OptionError, match=message):
      registry.load_metric(metric, **chosen, **options)
  assert registry.load_metric('bleu', smooth_value=np.float32(1)).signature()
  # A command line makes a number of it.
  assert registry.load_metric('rouge', variant=2).signature() == (
    registry.load_metric('rouge', variant='2').signature()
  )


def test_retention_finds_wrong_options_before_the_work(run, tmp_path):
  (tmp_path / 'judged.jsonl').write_text('not read')
  shown = run(
    'retention --input judged.jsonl --human z --teacher chrf --students'
    ' bertscore:model=encoder,layer=1.5',
    code=2,
  )
  assert 'layer=1.5 of bertscore: must be' in shown.err


def test_compare(run):
  shown = run(
    'compare --metric frugalscore -m miniature -t h r2 -r r --several max'
  )
  assert 'metric:FrugalScore|model:toy' in shown.out
  shown = run('compare -m miniature -t h r2 -r r --direction f', code=2)
  assert '--direction is not for frugalscore' in shown.err


def test_calibrate_and_apply(run, models, tmp_path):
  hypotheses = [
    f'{text}{" a dog" * n}' for text in TEXTS['h'] for n in range(8)
  ]
  references = [f'the cat {n}' for n in range(32)]
  metric = registry.load_metric('frugalscore', model=models / 'miniature')
  ratings = metric.score(hypotheses, references).values.argsort().argsort()
  rows = zip(hypotheses, references, map(str, ratings), strict=True)
  lines = ['hypothesis\treference\tz', *map('\t'.join, rows)]
  (tmp_path / 'judged.tsv').write_text('\n'.join(lines) + '\n')
  fit = 'calibrate --input judged.tsv --human z --folds 2'
  shown = run(f'{fit} -m miniature -o fitted.json')
  assert 'metric:FrugalScore' in shown.out
  shown = run('score -m miniature -t h -r r --calibration fitted.json')
  assert '|calibration:' in shown.err
  assert 'give -o OUT' in run(f'{fit} -m chrf', code=2).err
  shown = run('score -m chrf -t h -r r --calibration model', code=2)
  assert 'for metrics with a model' in shown.err
  shown = run('score -m miniature -t h -r r --calibration model', code=1)
  assert 'miniature' in shown.err


def test_options_called_like_their_flag_are_explained():
  with pytest.raises(TypeError) as caught:
    t5score_jax.load('t5score-tiny', several='mean')
  assert "no option 'several'. Did you mean 'reference_rule'? It has" in str(
    caught.value
  )
  with pytest.raises(TypeError, match="'tokens'. Did you mean 'token_log_pr"):
    t5score_jax.load('t5score-tiny', tokens=True)
  with pytest.raises(TypeError, match="no option 'several'. It has "):
    t5score_jax.load('chrf', several='mean')
