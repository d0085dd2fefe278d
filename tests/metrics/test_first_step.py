"""MetricX and UniEval: inputs, signs, errors; scores by recomputation."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.checkpoints import kinds, loading
from t5score_jax.checkpoints.bundle import load_bundle, save_bundle
from t5score_jax.checkpoints.weights import CheckpointError
from t5score_jax.data import prompts
from t5score_jax.data.records import Segment
from t5score_jax.data.vocab import ByteVocabulary
from t5score_jax.errors import InputError, OptionError
from t5score_jax.metrics import registry
from t5score_jax.nn import first_step, t5
from tests.conftest import make_bundle

TEXTS = ['the cat', '', 'a dog. A ship!']
FORMS = {
  (24, False): 'source: S candidate: {} reference: R',
  (24, True): 'source: S candidate: {}',
  (23, False): 'candidate: {} reference: R',
  (23, True): 'candidate: {} source: S',
}


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  folder = tmp_path_factory.mktemp('models')
  bundle = make_bundle(ByteVocabulary(), max_length=160)
  kernel = bundle.params['decoder']['logits_dense']['kernel']
  inputs = [_bytes(form.format(t)) for form in FORMS.values() for t in TEXTS]
  # The piece whose logits lie within MetricX's range.
  lowest = np.min([_logits(bundle, ids) for ids in inputs], axis=0)
  best = int(lowest.argmax())
  assert lowest[best] > 0
  kernel[:, best] *= 5
  for name, settings in (
    ('metricx', {'metric': 'metricx', 'output_id': best, 'version': 24}),
    ('unieval', {'metric': 'unieval', 'name': 'asks'}),
  ):
    given = {**bundle.settings, **settings}
    made = dataclasses.replace(bundle, settings=given)
    save_bundle(folder / name, made, dtype='float32')
  return folder


def _logits(bundle, ids):
  """Logits of all pieces after id 0, by the whole network: float64 [384]."""
  tokens = np.zeros((1, 160), np.int32)
  tokens[0, : len(ids)] = ids
  hidden = _hidden(bundle.config, bundle.params, tokens)
  kernel = t5.output_kernel(bundle.params, bundle.config)
  return np.asarray(hidden[0, 0], np.float64) @ np.asarray(kernel, np.float64)


@functools.partial(jax.jit, static_argnums=0)
def _hidden(config, params, tokens):
  start = np.zeros((1, 1), np.int32)
  return t5.Transformer(config).apply({'params': params}, tokens, start)


def _predicted(folder, ids):
  """MetricX's prediction."""
  bundle = load_bundle(folder)
  return np.clip(_logits(bundle, ids)[bundle.settings['output_id']], 0, 25)


def _bytes(text):
  return ByteVocabulary().encode(text)


@pytest.mark.parametrize(('version', 'source_based'), FORMS)
def test_metricx_is_minus_one_clamped_logit(folders, version, source_based):
  folder = folders / 'metricx'
  metric = registry.load(folder, version=version, source_based=source_based)
  segments = [Segment(t, source='S', references=('R',)) for t in TEXTS]
  scores = metric.score_segments(segments)
  form = FORMS[version, source_based]
  # Without </s>.
  expected = [-_predicted(folder, _bytes(form.format(t))) for t in TEXTS]
  np.testing.assert_allclose(scores.values, expected, atol=1e-4)
  assert len(set(np.round(expected, 3))) > 1
  assert '|sign:negated|' in scores.signature


def test_the_best_reference_has_the_least_error(folders):
  metric = registry.load(folders / 'metricx', version=23)
  one, other = (
    metric.score(TEXTS, [[r]] * 3).values for r in ('the cat', 'some bread')
  )
  both = metric.score(TEXTS, [['the cat', 'some bread']] * 3)
  np.testing.assert_allclose(both.values, np.maximum(one, other), atol=1e-5)
  mean = registry.load(folders / 'metricx', version=23, reference_rule='mean')
  np.testing.assert_allclose(
    mean.score(TEXTS, [['the cat', 'some bread']] * 3).values,
    (one + other) / 2,
    atol=1e-5,
  )


def test_inputs_are_cut_before_the_end_is_removed(folders):
  metric = registry.load(folders / 'metricx', version=23, max_length=30)
  scores = metric.score(['x' * 40, 'y'], ['r' * 40, 'r'])
  assert scores.truncated == 1 and scores.texts == 2
  ids = _bytes('candidate: ' + 'x' * 40)[:29]
  expected = -_predicted(folders / 'metricx', ids)
  np.testing.assert_allclose(scores.values[0], expected, atol=1e-4)


def test_unieval_is_the_share_of_yes(folders):
  metric = registry.load(folders / 'unieval', sentences='whole')
  segments = [Segment(t, source='S', references=('R',)) for t in TEXTS]
  scores = metric.score_segments(segments)
  yes, no = (_bytes(answer)[0] for answer in ('Yes', 'No'))
  bundle = load_bundle(folders / 'unieval')
  questions = {
    'coherence': 'Is this a coherent summary to the document? |summary: {} |'
    'document: S',
    'consistency': 'Is this claim consistent with the document? |claim: {} |'
    'document: S',
    'fluency': 'Is this a fluent paragraph? |paragraph: {}',
    'relevance': 'Is this summary relevant to the reference? |summary: {} |'
    'reference: R',
  }
  for name, question in questions.items():
    expected = []
    for text in TEXTS:
      ids = []
      for n, part in enumerate(question.format(text).split('|')):
        ids += [*_bytes(f'{" " if n else "question: "}{part}'), 1]
      logits = _logits(bundle, ids)
      probs = np.exp(logits - logits.max())
      expected.append(probs[yes] / (probs[yes] + probs[no]))
    np.testing.assert_allclose(scores.components[name], expected, atol=1e-5)
    assert np.ptp(expected) > 1e-3
  mean = np.mean(list(scores.components.values()), axis=0)
  np.testing.assert_allclose(scores.values, mean, atol=1e-6)


def test_sentences_are_averaged_or_summed(folders):
  def answers(text, dimension, task='dialogue', **options):
    metric = registry.load(
      folders / 'unieval', task=task, dimensions=dimension, **options
    )
    return metric.score([text], ['a fact'], ['some history']).values[0]

  parts = ['It is fine.', 'Mr. Smith agrees, e.g. today!']
  single = [answers(p, 'engagingness', sentences='whole') for p in parts]
  both = answers(' '.join(parts), 'engagingness')
  assert both == pytest.approx(sum(single), abs=1e-5)
  lines = answers('\n\n'.join(parts), 'engagingness', sentences='lines')
  assert lines == pytest.approx(sum(single), abs=1e-5)
  single = [answers(p, 'consistency', 'fact') for p in parts]
  both = answers(' '.join(parts), 'consistency', 'fact')
  assert both == pytest.approx(np.mean(single), abs=1e-5)


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ('', ['']),
    ('no end', ['no end']),
    ('One. Two!  Three?', ['One.', 'Two!', 'Three?']),
    ('He said "Go." Then left.', ['He said "Go."', 'Then left.']),
    ('J. R. Smith of the U.S. Army met Dr. No.', None),
    ('It cost 3.5 euros. and so on', ['It cost 3.5 euros. and so on']),
    ('\u732b\u3002\u72ac\uff1f', ['\u732b\u3002', '\u72ac\uff1f']),
  ],
)
def test_sentences(text, expected):
  assert prompts.sentences(text) == (expected or [text])


def test_files_say_which_metric_a_folder_is_of(folders, tmp_path):
  assert registry.choose(folders / 'metricx').metric == 'metricx'
  assert registry.choose(folders / 'unieval').metric == 'unieval'
  (tmp_path / 'config.json').write_text(
    json.dumps({'model_type': 'mt5', 'architectures': ['MT5ForRegression']})
  )
  assert kinds.of(tmp_path) == kinds.METRICX
  with pytest.raises(OptionError, match='metricx can'):
    registry.load(tmp_path, metric='t5score')


def test_only_the_columns_that_are_needed_are_loaded(folders):
  bundle, ids = loading.load_first_step(folders / 'metricx', lambda b: (7, 5))
  assert ids == (7, 5)
  whole = load_bundle(folders / 'metricx')
  kernel = whole.params['decoder']['logits_dense']['kernel']
  assert 'logits_dense' not in bundle.params['decoder']
  np.testing.assert_array_equal(
    bundle.params[first_step.COLUMNS]['kernel'], kernel[:, [7, 5]]
  )


def test_exports_are_metricx_only_where_the_published_class_reads_them(
  folders, tmp_path, capsys
):
  arguments = ['convert', '--to', 'hf', '--quiet']
  source = str(folders / 'metricx')
  assert cli.main([*arguments, source, str(tmp_path / 'hf')]) == 0
  config = json.loads((tmp_path / 'hf' / 'config.json').read_text())
  # Its logit is another one.
  assert config['architectures'] == ['T5ForConditionalGeneration']
  before = registry.load(folders / 'metricx').score(TEXTS, TEXTS, TEXTS)
  after = registry.load(tmp_path / 'hf').score(TEXTS, TEXTS, TEXTS)
  np.testing.assert_array_equal(before.values, after.values)
  assert before.signature == after.signature.replace('model:hf', 'model:random')
  assert 'MetricX' in (tmp_path / 'hf' / 'README.md').read_text()


def _published(folder, tmp_path):
  """A folder with the weights of a bundle, as published: no vocabulary."""
  assert (
    cli.main(['convert', '--to', 'hf', '--quiet', str(folder), str(tmp_path)])
    == 0
  )
  config = json.loads((tmp_path / 'config.json').read_text())
  del config['t5score']
  config |= {'architectures': ['MT5ForRegression'], 'model_type': 'mt5'}
  (tmp_path / 'config.json').write_text(json.dumps(config))
  for path in tmp_path.iterdir():
    if path.name not in ('config.json', 'model.safetensors'):
      path.unlink()


def test_published_folders_have_no_vocabulary(folders, tmp_path):
  bundle = load_bundle(folders / 'metricx')
  wide = dataclasses.replace(bundle.config, vocab_size=392)
  params = dict(bundle.params)
  table = params['token_embedder']['embedding']
  kernel = params['decoder']['logits_dense']['kernel']
  params['token_embedder'] = {'embedding': np.pad(table, ((0, 8), (0, 0)))}
  params['decoder'] = {
    **params['decoder'],
    'logits_dense': {'kernel': np.pad(kernel, ((0, 0), (0, 8)))},
  }
  save_bundle(
    tmp_path / 'wide', dataclasses.replace(bundle, config=wide, params=params)
  )
  folder = tmp_path / 'metricx-23-qe-tiny-v2p0'
  _published(tmp_path / 'wide', folder)
  with pytest.raises(CheckpointError, match='option vocabulary=PATH'):
    registry.load(folder)
  # The piece of the published models is not one of a network so small.
  with pytest.raises(OptionError, match='not 250089'):
    registry.load(folder, vocabulary='bytes')


def test_errors(folders):
  for options, problem in (
    ({'metric': 'metricx'}, 'needs a model'),
    ({'metric': 'unieval'}, 'needs a model'),
    ({'model': folders / 'metricx', 'version': 25}, '23 or 24'),
    ({'model': folders / 'unieval', 'task': 'poetry'}, 'task'),
    ({'model': folders / 'unieval', 'dimensions': 'wit'}, 'dimension'),
    ({'model': folders / 'unieval', 'sentences': 'all'}, 'sentences'),
    ({'model': folders / 'metricx', 'max_length': 1}, 'max_length'),
  ):
    with pytest.raises(OptionError, match=problem):
      registry.load(**options)
  with pytest.raises(InputError, match='needs sources'):
    registry.load(folders / 'metricx').score(['a'], ['b'])
  with pytest.raises(InputError, match='needs references'):
    registry.load(folders / 'unieval').score(['a'], None, ['b'])


def test_command_line(folders, tmp_path, capsys):
  for name, text in (('h', 'the cat\n'), ('r', 'a cat\n'), ('s', 'Katze\n')):
    (tmp_path / name).write_text(text)
  paths = [str(tmp_path / name) for name in 'hrs']
  files = ['-t', paths[0], '-r', paths[1], '-s', paths[2]]
  for name, words in (('metricx', '|sign:negated|'), ('unieval', '|task:')):
    assert cli.main(['score', '-m', str(folders / name), *files]) == 0
    assert words in capsys.readouterr().err
  source_based = ['score', '-m', str(folders / 'metricx'), '--source-based']
  assert cli.main([*source_based, *files[:2], *files[4:]]) == 0
  assert 'conditioning:source|' in capsys.readouterr().err
