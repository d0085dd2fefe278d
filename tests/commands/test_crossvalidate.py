"""`t5score crossvalidate`, whole, on a made-up corpus and a tiny encoder."""

import json
import pathlib

import jax
import numpy as np
import pytest
import rated_corpus
import scipy.stats
import tiny_encoder
import tiny_regressor

from t5score_jax import cli
from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import regressors
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data import files, instances, records
from t5score_jax.evaluation import dimensions
from t5score_jax.fitting import crossvalidation, text_cache
from t5score_jax.inference import prediction
from t5score_jax.metrics import comes
from t5score_jax.training import stopping

NOT_RATED = {'coherence': None, 'fluency': None}


class Place:
  """Files of a corpus, an encoder and configurations, and the command."""

  def __init__(self, folder):
    self.folder = folder
    self.encoder = tiny_encoder.make(folder / 'encoder')
    records.write_records(folder / 'rated.jsonl', rated_corpus.segments())
    records.write_records(
      folder / 'other.jsonl', rated_corpus.segments('xyz', seed=5)
    )
    rated_corpus.write_gin(folder, self.encoder)

  def run(self, name, *arguments, run='comes_head'):
    given = [
      *(f'--gin_file={self.folder}/{run}.gin', '--quiet', '--folds', 3),
      *('--input', self.folder / 'rated.jsonl'),
      *('--ratings', 'coherence,fluency', '--work', self.folder / name),
      *('-o', self.folder / f'{name}.jsonl', *arguments),
    ]
    return cli.main(['crossvalidate', *map(str, given)])

  def rows(self, name):
    lines = (self.folder / f'{name}.jsonl').read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  return Place(tmp_path_factory.mktemp('place'))


@pytest.fixture(scope='module')
def base(place):
  """A run of heads with other data, as the tests share it."""
  import contextlib
  import io

  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    code = place.run(
      'base',
      *('--also', 'coherence', place.folder / 'other.jsonl'),
      '--gin.STANDARDIZED=True',
    )
  assert code == 0
  return printed.getvalue()


def _by_metric(place, name, fold, segments):
  """What `t5score score -m comes` says with a fold's model."""
  metric = comes.Metric(place.folder / name / f'fold_{fold}' / 'model')
  found = metric.score_segments(segments).components
  return np.stack([found['coherence'], found['fluency']], axis=1)


def _check_predictions(place, name):
  rows = place.rows(name)
  judged = instances.averaged(rated_corpus.segments())
  assert len(rows) == len(judged) == 18
  documents = {}
  for fold in (1, 2, 3):
    found = _by_metric(place, name, fold, judged)
    for row, segment, values in zip(rows, judged, found, strict=True):
      assert row['document'] == segment.document
      assert row['system'] == segment.system and 'hypothesis' not in row
      assert row['coherence'] == pytest.approx(segment.ratings['coherence'])
      if row['fold'] == fold:
        documents.setdefault(fold, set()).add(row['document'])
        shown = [row['predicted_coherence'], row['predicted_fluency']]
        np.testing.assert_allclose(shown, values, atol=1e-4)
  expected = instances.folds('abcdef', 3)
  assert [documents[n] for n in (1, 2, 3)] == [set(f.test) for f in expected]
  for number, fold in enumerate(expected, 1):
    where = place.folder / name / f'fold_{number}'
    for part in ('train', 'validation'):
      info = json.loads((where / part / 'info.json').read_text())
      assert info['documents'] == list(getattr(fold, part))


def test_each_document_is_judged_by_the_model_that_has_not_seen_it(place, base):
  _check_predictions(place, 'base')


def test_ratings_are_learned_standardized_and_said_as_they_are(place, base):
  work = place.folder / 'base'
  judged = [s for s in rated_corpus.segments() for _ in s.references]
  keys = np.array([s.document for s in judged])
  fold = instances.folds('abcdef', 3)[1]
  raw = np.array(
    [
      [s.ratings.get(n, np.nan) for n in ('coherence', 'fluency')]
      for s in judged
    ]
  )[np.isin(keys, fold.train)]
  stored = np.load(work / 'fold_2' / 'train' / 'ratings.npy')
  expected = (raw - np.nanmean(raw, 0)) / np.nanstd(raw, 0)
  np.testing.assert_allclose(stored, expected, atol=1e-5)
  shown = np.array(
    [
      [r['predicted_coherence'], r['predicted_fluency']]
      for r in place.rows('base')
    ]
  )
  assert np.abs(shown - 3.4).max() < 3 and np.abs(shown.mean() - 3.4) < 1


def test_the_table_is_kendall_of_systems_means(place, base):
  rows = place.rows('base')
  expected = []
  for name in ('coherence', 'fluency'):
    means = [
      [
        np.mean([r[c] for r in rows if r['system'] == s and c in r])
        for s in rated_corpus.SYSTEMS
      ]
      for c in (name, f'predicted_{name}')
    ]
    expected.append(scipy.stats.kendalltau(*means).statistic)
  line = next(x for x in base.splitlines() if x.startswith('toy'))
  found = [float(x) for x in line.split()[1:]]
  np.testing.assert_allclose(found, [*expected, np.mean(expected)], atol=1e-4)
  assert (
    "Kendall's tau of 3 systems' means, 3 folds by document (seed 0)" in base
  )
  # Two articles of 40 words.
  assert '36 distinct texts, 2 (5.6%) cut' in base, base


def test_other_data_are_judged_by_every_model(place, base):
  rows = place.rows('base/also_other')
  judged = instances.averaged(rated_corpus.segments('xyz', seed=5))
  values = np.stack(
    [_by_metric(place, 'base', fold, judged) for fold in (1, 2, 3)]
  )
  taus = []
  for fold in (1, 2, 3):
    for n, name in enumerate(('coherence', 'fluency')):
      shown = [row[f'predicted_{name}@{fold}'] for row in rows]
      np.testing.assert_allclose(shown, values[fold - 1, :, n], atol=1e-4)
    # Both outputs against the one rating that is known there.
    found, systems = dimensions.system_kendall(
      judged, ['coherence'], values[fold - 1]
    )
    assert systems == 3
    taus.append(found)
  table = base.partition('other: Kendall')[2].splitlines()
  mean = next(x for x in table if x.startswith('mean')).split()[1:]
  spread = next(x for x in table if x.startswith('deviation'))
  np.testing.assert_allclose(
    [float(x) for x in mean], np.mean(taus, 0), atol=1e-4
  )
  np.testing.assert_allclose(
    [float(x) for x in spread.split()[-2:]], np.std(taus, 0, ddof=1), atol=1e-4
  )


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on(place, base, monkeypatch, capsys):
  arguments = ['--gin.STANDARDIZED=True']
  checks = []

  def check(self):
    checks.append(1)
    # Two calls an epoch: in the second epoch of the second fold.
    if len(checks) == 7:
      self.reason = 'interrupted'
    return self.reason

  with monkeypatch.context() as patch:
    patch.setattr(stopping.Stopping, 'check', check)
    assert place.run('again', *arguments) == 130
  assert 'the same command' in capsys.readouterr().err
  work = place.folder / 'again'
  assert (work / 'fold_1' / 'model').is_dir()
  assert not (work / 'fold_2' / 'model').exists()
  assert not (place.folder / 'again.jsonl').exists()
  # As a kill while a model is being written leaves it.
  (work / 'fold_2' / '.model').mkdir()
  (work / 'fold_2' / '.model' / 'config.json').write_text('{')
  before = (work / 'fold_1' / 'model' / 'model.safetensors').stat().st_mtime_ns
  assert place.run('again', *arguments) == 0
  after = (work / 'fold_1' / 'model' / 'model.safetensors').stat().st_mtime_ns
  assert before == after
  assert place.rows('again') == place.rows('base')


def test_validation_documents_are_judged_by_the_model_they_stopped(place, base):
  # The same folder: nothing is trained anew.
  stamp = (place.folder / 'base/fold_1/model').stat().st_mtime_ns
  code = place.run(
    'base',
    *('--gin.STANDARDIZED=True', '--part', 'validation'),
    *('-o', place.folder / 'validation.jsonl'),
  )
  assert code == 0
  assert (place.folder / 'base/fold_1/model').stat().st_mtime_ns == stamp
  folds = instances.folds('abcdef', 3)
  for row in place.rows('validation'):
    assert row['document'] in folds[int(row['fold']) - 1].validation


@pytest.mark.slow
def test_the_whole_network_is_tuned_after_its_head(place, capsys):
  code = place.run(
    *('tuned', '--gin.FINE_TUNE_EPOCHS=1', '--gin.BATCH_SIZE=8'),
    # Enough for the head; the network has two steps, each a whole document.
    *('--gin.EPOCHS=40', '--gin.SELECTION=None'),
  )
  assert code == 0
  assert 'too few to learn' not in capsys.readouterr().out
  _check_predictions(place, 'tuned')
  start = encoders.load_encoder(place.encoder).params
  for fold in (1, 2, 3):
    folder = place.folder / 'tuned' / f'fold_{fold}' / 'model'
    found = regressors.load(folder).params['encoder']
    jax.tree.map(
      np.testing.assert_array_equal, found['embeddings'], start['embeddings']
    )
    name = 'layers_0/mlp_norm/scale'
    one, two = (dict(bundles.flatten_names(p))[name] for p in (found, start))
    assert np.abs(one - two).max() > 0


@pytest.mark.slow
def test_the_papers_way_reads_tokens_throughout(place):
  code = place.run('whole', '--gin.MICROBATCHES=2', run='comes')
  assert code == 0
  _check_predictions(place, 'whole')
  lines = (place.folder / 'whole/fold_1/run/metrics.jsonl').read_text()
  steps = [json.loads(x)['step'] for x in lines.splitlines() if 'evalu' in x]
  # 2 documents x 3 systems x 2 experts x 2 references in batches of 8.
  assert steps == [3, 6]


@pytest.mark.slow
def test_long_articles_in_windows(place, base, capsys):
  code = place.run('windows', '--gin.WINDOWS=True', '--gin.STRIDE=2')
  assert code == 0
  assert '0 (0.0%) cut, 2 read in several windows' in capsys.readouterr().out
  # The models know that they read windows.
  _check_predictions(place, 'windows')
  one, two = (
    np.load(place.folder / 'windows/texts/vectors.npy'),
    np.load(place.folder / 'base/texts/vectors.npy'),
  )
  assert int(np.any(np.abs(one - two) > 1e-4, axis=(1, 2)).sum()) == 2


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    (['--gin.RANDOM_SEED=3', '--work', 'base'], 2, 'RANDOM_SEED = 3'),
    (['--seed', '1', '--work', 'base'], 2, 'seed: 0 before, 1 now'),
    (['--ratings', 'coherence', '--work', 'e1'], 2, '2 outputs .*1 ratings'),
    (['--folds', '9', '--work', 'e2'], 2, '9 folds of 6 documents'),
    (['--by', 'hypothesis', '--work', 'e3'], 2, 'by .hypothesis.'),
    (['--ratings', 'a,b', '--work', 'e4'], 1, "no column 'a'"),
    (['--gin.WINDOWS=True', '--gin.FINE_TUNE_EPOCHS=1', '--work', 'e5'], 2,
     'FINE_TUNE_EPOCHS'),
    (['--gin.WINDOWS=True', '--texts', 'base/texts', '--work', 'e6'], 1,
     'windows: false before, true now'),
    (['--gin.NUM_LAYERS=2', '--work', 'e7'], 1, 'num_layers 3 there, 2 in'),
    (['--gin.ENCODER_PATH="nowhere"', '--work', 'e8'], 1, 'nowhere'),
    (['--also', 'coherence', '--work', 'e9'], 2, 'a rating and a file'),
    (['--gin.EPOCH=3', '--work', 'e10'], 2, 'did you mean EPOCHS'),
    (['-o', 'nowhere/o.jsonl', '--work', 'e11'], 1, 'no folder .*nowhere'),
    (['-o', 'o.xml', '--work', 'e12'], 2, '-o o.xml: the name ends neither'),
    (['-o', 'rated.jsonl', '--work', 'e13'], 2, 'is an input too'),
    (['--also', 'fluency', 'other.jsonl', '-o', 'other.jsonl', '--work', 'e14'],
     2, 'other.jsonl: is an input too'),
    (['--work', '.'], 2, 'has no plan.json'),
    (['--work', 'damaged'], 2, 'damaged/plan.json: damaged .*choose another'),
    (['--input', 'half.jsonl', '--work', 'e15'], 1,
     "half.jsonl, field 'fluency': no record has a rating"),
    (['--also', 'fluency', 'half.jsonl', '--work', 'e16'], 1,
     "half.jsonl, field 'fluency': no record has a rating"),
    (['--input', 'few.jsonl', '--work', 'e17'], 2,
     'fold .: no rated record for'),
  ],
)  # fmt: skip
def test_errors_are_one_line(
  place, base, arguments, code, message, capsys, monkeypatch
):
  import re

  monkeypatch.chdir(place.folder)
  pathlib.Path('damaged').mkdir(exist_ok=True)
  pathlib.Path('damaged/plan.json').write_text('[1]')
  _write_unrated(place.folder)
  given = arguments
  if arguments[-1] != 'base':
    given = [*arguments, '--gin.STANDARDIZED=False']
  else:
    given = [*arguments, '--gin.STANDARDIZED=True']
  assert place.run('unused', *given) == code
  error = capsys.readouterr().err
  assert error.count('\n') == 1 and re.search(message, error), error
  assert error.startswith('t5score crossvalidate: ')


def _write_unrated(folder):
  """A file without fluency (but with its column), and one of one document."""
  rows = [json.loads(x) for x in (folder / 'rated.jsonl').open()]
  for name, change in (
    ('half', lambda row: {'fluency': None}),
    ('few', lambda row: {} if row['document'] == 'a' else NOT_RATED),
  ):
    text = ''.join(json.dumps(row | change(row)) + '\n' for row in rows)
    (folder / f'{name}.jsonl').write_text(text)


def test_best_reference():
  values = np.array([[1, 5], [3, 2], [0, 0], [-1, -4], [-2, -3]], float)
  found = prediction.over_references(values, np.array([0, 0, 4, 7, 7]))
  assert found.tolist() == [[3, 5], [0, 0], [-1, -3]]


def test_kendall_needs_systems_and_ratings():
  segments = [
    records.Segment('h', system=s, ratings={'x': n})
    for n, s in enumerate('abcb')
  ]
  values = np.array([[0.0], [5.0], [2.0], [-3.0]])
  found, count = dimensions.system_kendall(segments, ['x'], values)
  # People: 0, 2, 2; predictions 0, 1, 2.
  assert count == 3
  expected = scipy.stats.kendalltau([0, 2, 2], [0, 1, 2]).statistic
  assert found == pytest.approx([expected])
  unrated = [records.Segment('h', system='d'), *segments]
  with pytest.raises(ValueError, match="'x' of the system d"):
    dimensions.system_kendall(unrated, ['x'], np.zeros((5, 1)))
  # With notes it is left out of the dimension alone.
  notes = []
  wide = np.concatenate([[[9.0]], values])
  found, count = dimensions.system_kendall(unrated, ['x'], wide, notes.append)
  assert found == pytest.approx([expected]) and count == 4
  assert notes == ['x: left out, because they have no rating: d']


@pytest.mark.filterwarnings('error')
def test_what_does_not_vary_is_noted():
  def shown(ratings, predictions):
    notes = []
    segments = [
      records.Segment('h', system=s, ratings={'x': r} if r is not None else {})
      for s, r in zip('abc', ratings, strict=False)
    ]
    values = np.array(predictions)[:, None]
    found, _ = dimensions.system_kendall(segments, ['x'], values, notes.append)
    assert found.tolist() == [0]
    return notes

  assert shown([1, 1, 1], [1.0, 2.0, 3.0]) == [
    "x: systems' mean ratings do not vary, so that tau is given as 0"
  ]
  assert 'mean predictions do not' in shown([1, 2, 3], [1.0, 1.0, 1.0])[0]
  assert shown([1], [1.0]) == ['x: 1 rated system, so that tau is given as 0']
  assert '1 rated system,' in shown([1, None, None], [1.0, 2.0, 3.0])[1]
  assert shown([None], [1.0])[1][:18] == 'x: 0 rated systems'


def test_a_segment_needs_its_system():
  with pytest.raises(files.RecordError, match='system'):
    dimensions.system_kendall([records.Segment('h')], ['x'], np.zeros((1, 1)))


def test_a_model_to_start_from_may_be_an_estimator(tmp_path):
  encoder = encoders.load_encoder(tiny_encoder.make(tmp_path / 'encoder'))
  from t5score_jax.nn import heads

  config = heads.RegressorConfig(encoder.config, hidden_sizes=(4,))
  params = tiny_regressor.params(config) | {'encoder': encoder.params}
  regressors.save(
    regressors.Regressor(config, params, encoder.tokenizer), tmp_path / 'comet'
  )
  wanted = heads.RegressorConfig(
    encoder.config, ('a', 'b'), hidden_sizes=(4,), layer=1
  )
  tables = []
  for name in ('encoder', 'comet'):
    how = text_cache.Encoding(wanted, str(tmp_path / name), 'vectors')
    start = text_cache.load_start(how)
    texts = instances.Texts(['the cat', 'a dog sat on the mat'])
    tables.append(
      text_cache.table(tmp_path / f'{name}_texts', texts, how, start)
    )
  one, two = (np.load(t.folder / 'vectors.npy') for t in tables)
  assert one.shape == (2, 1, 16)
  np.testing.assert_array_equal(one, two)
  with pytest.raises(ValueError, match='WINDOWS'):
    text_cache.Encoding(wanted, 'x', windows=True)
  with pytest.raises(ValueError, match='words'):
    text_cache.Encoding(wanted, 'x', 'words')


def test_questions_are_checked():
  with pytest.raises(ValueError, match='train.*validation'):
    crossvalidation.Config(('a',), part='train')
