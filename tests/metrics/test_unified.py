"""UnifiedMetric and XCOMET: scores beside NumPy's, spans, what is refused."""

import json

import numpy as np
import pytest
import tiny_encoder
import tiny_unified

from t5score_jax import cli
from t5score_jax.checkpoints import kinds, regressors
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError, OptionError
from t5score_jax.metrics import _spans, registry
from tests.inference import test_embedding as separate

SEGMENTS = [
  Segment('the cat sat .', source='a mat', references=('a cat', 'the dogs')),
  Segment('', source='dog ' * 30, references=('the', 'cat ' * 30)),
  Segment('a dog ran on !', source='a mat', references=('a cat', 'a hill')),
  Segment('green bird ' * 15, source='', references=('', 'a green bird')),
]


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp('unified')
  encoder = encoders.load_encoder(tiny_encoder.make(folder / 'encoder'))
  made = {
    'kiwi': tiny_unified.make(encoder, reference=False),
    'unite': tiny_unified.make(encoder),
    'xcomet': tiny_unified.make(encoder, xcomet=True),
  }
  for name, model in made.items():
    regressors.save(model, folder / name)
  regressors.save(separate.make(encoder), folder / 'estimator')
  return folder, made


def _expected(model, segment, reference):
  """Each input's score, and the mixed tags, by NumPy."""
  h, s = segment.hypothesis, segment.source
  readings = [
    tiny_unified.numpy_reading(model, texts)
    for texts in ((h, s), (h, reference), (h, s, reference))
  ]
  scores, tags = zip(*readings, strict=True)
  if tags[0] is not None:
    tags = sum(w * t for w, t in zip((0.1667, 0.3333, 0.5), tags, strict=True))
  return scores, tags


@pytest.mark.parametrize('rule', ['max', 'mean'])
def test_the_score_is_the_mean_of_three_readings(models, rule):
  folder, made = models
  metric = registry.load(folder / 'unite', reference_rule=rule)
  scores = metric.score_segments(SEGMENTS)
  for n, segment in enumerate(SEGMENTS):
    parts = [
      _expected(made['unite'], segment, r)[0] for r in segment.references
    ]
    means = np.mean(parts, 1)
    want = means.max() if rule == 'max' else means.mean()
    assert scores[n] == pytest.approx(want, abs=1e-5)
    best = np.mean(parts, 0) if rule == 'mean' else parts[int(means.argmax())]
    for name, value in zip(
      ('source', 'reference', 'unified'), best, strict=True
    ):
      assert scores.components[f'{name}_score'][n] == pytest.approx(
        value, abs=1e-5
      )
  assert (
    scores.spans is None
    and '|inputs:source+reference+unified|nrefs:2|' in (scores.signature)
  )
  # Of 20 sequences two are the same; those of long texts are cut.
  assert (scores.texts, scores.truncated) == (19, 8)


def test_xcomet_mixes_in_the_errors(models):
  folder, made = models
  metric = registry.load(folder / 'xcomet')
  assert metric.name == 'XCOMET'
  scores = metric.score_segments(SEGMENTS)
  found = 0
  for n, segment in enumerate(SEGMENTS):
    rows = []
    for reference in segment.references:
      parts, tags = _expected(made['xcomet'], segment, reference)
      offsets = metric._scorer.tokenizer.offsets([segment.hypothesis], 18)[0]
      spans = _spans.decode(tags, offsets, tiny_unified.LABELS)
      parts = (*np.minimum(parts, 1), _spans.mqm(spans))
      rows.append((np.dot((0.12, 0.33, 0.33, 0.22), parts), spans))
    value, spans = max(rows, key=lambda row: row[0])
    assert scores[n] == pytest.approx(value, abs=1e-5)
    assert [(s.start, s.end, s.severity) for s in scores.spans[n]] == [
      (s.start, s.end, s.severity) for s in spans
    ]
    found += len(spans)
  assert found > 2 and np.ptp(scores.components['mqm_score']) > 0


def test_a_single_reading_has_all_weight(models):
  folder, made = models
  bare = [Segment(s.hypothesis, source=s.source) for s in SEGMENTS]
  scores = registry.load(folder / 'xcomet').score_segments(bare)
  assert list(scores.components) == ['source_score', 'mqm_score']
  assert 'only a source' in scores.notes[0] and '|inputs:source|' in (
    scores.signature
  )
  want = 0.78 * np.minimum(scores.components['source_score'], 1)
  want = want + 0.22 * scores.components['mqm_score']
  np.testing.assert_allclose(scores.values, want, atol=1e-6)
  chosen = registry.load(folder / 'xcomet', output='source')
  assert not chosen.reads_references
  assert registry.load(folder / 'xcomet', output='unified').reads_references
  np.testing.assert_allclose(
    chosen.score_segments(SEGMENTS).values,
    scores.components['source_score'],
    atol=1e-6,
  )
  metric = registry.load(folder / 'kiwi')
  assert not metric.reads_references
  (kiwi,) = metric.score_segments(SEGMENTS[:1])
  texts = SEGMENTS[0].hypothesis, SEGMENTS[0].source
  want = tiny_unified.numpy_reading(made['kiwi'], texts)[0]
  assert kiwi == pytest.approx(want, abs=1e-5)


def test_a_network_with_tags_scores_as_either_metric(models):
  folder, _ = models
  as_unified = registry.load_metric('unified', model=folder / 'xcomet')
  scores = as_unified.score_segments(SEGMENTS)
  np.testing.assert_allclose(
    scores.values, np.mean(list(scores.components.values()), 0), atol=1e-6
  )
  assert any(scores.spans)
  bold = registry.load_metric('xcomet', model=folder / 'xcomet', threshold=0.1)
  more = bold.score_segments(SEGMENTS)
  assert more.spans != scores.spans
  assert '|threshold:0.1|' in more.signature
  assert len(bold.score_segments([]).spans) == 0


def test_what_is_missing_or_wrong_is_named(models):
  folder, _ = models
  bare = Segment('a cat', references=('the cat',))
  with pytest.raises(InputError, match='UnifiedMetric needs sources'):
    registry.load(folder / 'kiwi').score_segments([bare])
  with pytest.raises(InputError, match='segment number 2'):
    registry.load(folder / 'unite').score_segments(
      [SEGMENTS[0], Segment('a cat', source='the cat')]
    )
  for options, words in (
    ({'output': 'mqm'}, 'output'),
    ({'threshold': 0.5}, 'threshold 0.5'),
    ({'max_length': 5}, 'max_length 5'),
    ({'metric': 'xcomet'}, 'tags words'),
    ({'metric': 'comes'}, 'comes does not read'),
  ):
    with pytest.raises(OptionError, match=words):
      registry.load(folder / 'unite', **options)
  with pytest.raises(OptionError, match='unified does not read'):
    registry.load(folder / 'estimator', 'unified')


def test_spans_are_decoded_as_comet_does():
  offsets = [(0, 0), (0, 3), (4, 7), (7, 8), (9, 12), (0, 0)]

  def spans(tags, **options):
    table = np.full((6, 4), 0.1)
    table[np.arange(6), tags] = [0.7, 0.9, 0.5, 0.7, 0.7, 0.7]
    found = _spans.decode(table, offsets, tiny_unified.LABELS, **options)
    return [(s.start, s.end, s.severity, round(s.confidence, 6)) for s in found]

  assert spans([0, 0, 0, 0, 0, 0]) == []
  # The severity is that of the first token.
  assert spans([0, 1, 3, 0, 2, 0]) == [
    (0, 7, 'minor', 0.7),
    (9, 12, 'major', 0.7),
  ]
  # The first special token counts; a span that never ends does not.
  assert spans([3, 0, 0, 0, 1, 1]) == [(0, 0, 'critical', 0.7)]
  # By the sum of severities: .3 where no error is most probable.
  assert len(spans([0, 1, 0, 0, 0, 0], threshold=0.5)) == 1
  assert spans([0, 1, 0, 0, 0, 0], threshold=0.2) == []
  span = _spans.ErrorSpan(0, 1, 'major', 1.0)
  assert [_spans.mqm([span] * n) for n in (0, 1, 3, 9)] == [1.0, 0.8, 0.4, 0.0]


def test_spans_are_written(models, tmp_path, capsys):
  folder, _ = models
  rows = [
    {'hypothesis': s.hypothesis, 'source': s.source, 'segment': str(n)}
    for n, s in enumerate(SEGMENTS)
  ]
  (tmp_path / 'in.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  read = [
    '--input',
    str(tmp_path / 'in.jsonl'),
    '-o',
    str(tmp_path / 'out.tsv'),
  ]
  out = tmp_path / 'spans.jsonl'
  score = ['score', *read, '--spans', str(out), '-m']
  assert cli.main([*score, str(folder / 'xcomet')]) == 0
  assert 'note: the segments have only a source' in capsys.readouterr().out
  lines = [json.loads(line) for line in out.read_text().splitlines()]
  assert [line['segment'] for line in lines] == ['0', '1', '2', '3']
  errors = [(n, e) for n, line in enumerate(lines) for e in line['errors']]
  for n, error in errors:
    text = SEGMENTS[n].hypothesis[error['start'] : error['end']]
    assert error['text'] == text and error['severity'] in tiny_unified.LABELS
    assert 0 <= error['confidence'] <= 1
  assert errors and all(error['text'] for _, error in errors)
  assert cli.main([*score, str(folder / 'unite')]) == 2
  assert 'finds no errors' in capsys.readouterr().err
  same = ['score', *read, '--spans', str(tmp_path / 'out.tsv')]
  assert cli.main([*same, '-m', str(folder / 'xcomet')]) == 2


def test_folders_say_which_metric_they_mean(models):
  folder, _ = models
  for name, kind in (('unite', kinds.UNIFIED), ('xcomet', kinds.XCOMET)):
    assert kinds.of(folder / name) == kind
    assert registry.choose(folder / name).metric == kind
