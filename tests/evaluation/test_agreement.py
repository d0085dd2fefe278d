"""Which entries count: exclusion, completeness, pairs, averages."""

import dataclasses

import numpy as np
import pytest
from wmt_data import DATA, needs_data

from t5score_jax.data import files
from t5score_jax.errors import InputError
from t5score_jax.evaluation import (
  agreement,
  correlation,
  darr,
  scores,
)
from t5score_jax.evaluation.config import LEVELS, AgreementConfig
from t5score_jax.evaluation.readers import wmt
from t5score_jax.evaluation.reports import tables


def grid(language_pair='zh-en', systems=('A', 'B', 'C', 'D'), segments=30):
  rng = np.random.default_rng(len(language_pair) + len(systems))
  human = np.round(
    70
    + 20 * rng.normal(size=(len(systems), segments))
    + 5 * np.arange(len(systems))[:, None]
  )
  return scores.ScoreGrid(
    language_pair,
    tuple(systems),
    tuple(f'doc::{n}' for n in range(segments)),
    human,
    {
      'good': human + 5 * rng.normal(size=human.shape),
      'poor': human + 90 * rng.normal(size=human.shape),
    },
  )


def named_pairs(rows, path='pairs.tsv'):
  columns = [np.array(column) for column in zip(*rows, strict=True)]
  return darr.NamedPairs(*columns, path)


def value(report, metric='good', column='zh-en'):
  return report.cells[metric, column].value


def test_pooled_pearson_and_darr_from_raw_ratings():
  g = grid()
  report = agreement.measure([g], AgreementConfig())
  assert value(report) == pytest.approx(
    np.corrcoef(g.human.ravel(), g.metrics['good'].ravel())[0, 1]
  )
  report = agreement.measure([g], AgreementConfig(statistic='darr'))
  wins = pairs = 0
  for n in range(30):
    for i in range(4):
      for j in range(4):
        if g.human[i, n] - g.human[j, n] >= 25:
          pairs += 1
          wins += g.metrics['good'][i, n] > g.metrics['good'][j, n]
  assert value(report) == pytest.approx((2 * wins - pairs) / pairs)
  assert report.cells['good', 'zh-en'].count == pairs


def test_human_systems_are_left_out_by_rule_and_said():
  everyone = grid(systems=('A', 'B', 'Human-A.0', 'HUMAN.0', 'refB', 'C'))
  machines = everyone.with_systems(['A', 'B', 'C'])
  for level in LEVELS:
    config = AgreementConfig(level=level)
    report = agreement.measure([everyone], config)
    assert value(report) == value(agreement.measure([machines], config))
    assert 'Human-A.0, HUMAN.0, refB' in report.notes[0]
    with_all = agreement.measure(
      [everyone], dataclasses.replace(config, exclude='')
    )
    assert value(with_all) != value(report)
    assert not with_all.notes


def test_system_level_means_over_rated_and_over_all_segments():
  g = grid()
  human = g.human.copy()
  human[:, 10:] = np.nan
  g = dataclasses.replace(g, human=human)
  report = agreement.measure([g], AgreementConfig(level='system'))
  assert value(report) == pytest.approx(
    np.corrcoef(human[:, :10].mean(axis=1), g.metrics['good'].mean(axis=1))[
      0, 1
    ]
  )
  assert report.cells['good', 'zh-en'].count == 4


def test_systems_without_ratings_are_left_out_and_said():
  g = grid()
  human = g.human.copy()
  human[2] = np.nan
  report = agreement.measure(
    [dataclasses.replace(g, human=human)], AgreementConfig(level='system')
  )
  assert report.cells['good', 'zh-en'].count == 3
  assert 'no human rating: C' in report.notes[0]


def test_top_k_keeps_the_systems_people_like_best():
  g = grid()
  means = g.human.mean(axis=1)
  best = [g.systems[i] for i in np.argsort(means)[-2:]]
  report = agreement.measure([g], AgreementConfig(level='system', top_k=2))
  assert value(report) == value(
    agreement.measure([g.with_systems(best)], AgreementConfig(level='system'))
  )
  with pytest.raises(InputError):
    AgreementConfig(level='system', top_k=1)


@pytest.mark.parametrize('level', LEVELS)
def test_missing_scores_stop_unless_the_intersection_is_asked_for(level):
  g = grid()
  g.metrics['poor'][1, 3] = np.nan
  config = AgreementConfig(level=level)
  with pytest.raises(files.RecordError, match=r"'B', 'doc::3' under poor"):
    agreement.measure([g], config)
  report = agreement.measure([g], dataclasses.replace(config, intersect=True))
  assert '1 (system, segment) entries left out' in report.notes[0]
  keep = np.ones(g.human.shape, bool)
  if level == 'segment':
    keep[1, 3] = False
    expected = np.corrcoef(g.human[keep], g.metrics['good'][keep])[0, 1]
  else:  # the segment goes for every system, so that they stay comparable
    others = np.delete(np.arange(30), 3)
    expected = np.corrcoef(
      g.human[:, others].mean(axis=1),
      g.metrics['good'][:, others].mean(axis=1),
    )[0, 1]
  assert value(report) == pytest.approx(expected)


def test_unrated_entries_need_no_metric_score_at_the_segment_level():
  g = grid()
  human = g.human.copy()
  human[0, 0] = np.nan
  g.metrics['poor'][0, 0] = np.nan
  report = agreement.measure(
    [dataclasses.replace(g, human=human)], AgreementConfig()
  )
  assert not report.notes
  assert report.cells['good', 'zh-en'].count == 4 * 30 - 1


def test_published_pairs_are_found_by_name():
  g = grid()
  rows = [
    ('zh-en', 'doc::0', 'A', 'B'),
    ('zh-en', 'doc::7', 'D', 'C'),
    ('zh-en', 'doc::7', 'D', 'B'),
    ('cs-en', 'doc::7', 'X', 'Y'),
  ]
  config = AgreementConfig(statistic='darr', pairs=named_pairs(rows))
  report = agreement.measure([g], config)
  m = g.metrics['good']
  expected = np.sign(
    [m[0, 0] - m[1, 0], m[3, 7] - m[2, 7], m[3, 7] - m[1, 7]]
  ).mean()
  assert value(report) == pytest.approx(expected)
  assert report.cells['good', 'zh-en'].count == 3


def test_published_pairs_without_scores_stop_unless_told_otherwise():
  g = grid()
  rows = [('zh-en', 'doc::0', 'A', 'B'), ('zh-en', 'doc::99', 'D', 'C')]
  config = AgreementConfig(statistic='darr', pairs=named_pairs(rows))
  with pytest.raises(files.RecordError, match="1 pairs .*'doc::99', 'D'"):
    agreement.measure([g], config)
  report = agreement.measure([g], dataclasses.replace(config, intersect=True))
  assert report.cells['good', 'zh-en'].count == 1
  assert '1 of 2 ranked pairs left out' in report.notes[0]
  with pytest.raises(files.RecordError, match='--language-pair'):
    agreement.measure([g.with_language_pair('')], config)


def test_pairs_of_systems_left_out_on_purpose_are_not_missed():
  g = grid()
  rows = [('zh-en', 'doc::0', 'A', 'B'), ('zh-en', 'doc::1', 'D', 'C')]
  config = AgreementConfig(
    statistic='darr', pairs=named_pairs(rows), exclude='^D$'
  )
  report = agreement.measure([g], config)
  assert report.cells['good', 'zh-en'].count == 1


def test_averages_are_those_of_the_papers():
  grids = [grid(p) for p in ('cs-en', 'pls-en', 'en-cs')]
  report = agreement.measure(grids, AgreementConfig(resamples=50))
  assert report.columns == (
    'cs-en',
    'pls-en',
    'en-cs',
    'Avg-en',
    'Avg-x',
    'Avg',
  )
  each = [value(report, column=c) for c in report.columns[:3]]
  assert value(report, column='Avg-en') == pytest.approx(np.mean(each[:2]))
  assert value(report, column='Avg-x') == each[2]
  assert value(report, column='Avg') == pytest.approx(np.mean(each))
  mean = report.cells['good', 'Avg']
  assert mean.low < mean.value < mean.high
  assert mean.high - mean.low < max(
    report.cells['good', c].high - report.cells['good', c].low
    for c in report.columns[:3]
  )


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'statistic': 'darr'},
    {'statistic': 'spearman'},
    {'statistic': 'kendall', 'group': 'item'},
    {'group': 'system'},
    {'level': 'system'},
    {'level': 'system', 'statistic': 'accuracy'},
  ],
)
def test_a_better_metric_is_found_better(options):
  config = AgreementConfig(resamples=60, baseline='poor', **options)
  report = agreement.measure([grid(segments=60)], config)
  cell = report.cells['good', 'zh-en']
  assert cell.comparison.difference == pytest.approx(
    cell.value - value(report, 'poor')
  )
  assert cell.low <= cell.value <= cell.high + 1e-9
  if options.get('level') != 'system':
    assert cell.comparison.p_value < 0.05
  assert report.cells['poor', 'zh-en'].comparison is None


def test_invalid_configurations_raise():
  for options, named in [
    ({'level': 'document'}, "'document'"),
    ({'statistic': 'tau'}, "'tau'"),
    ({'level': 'system', 'statistic': 'darr'}, 'darr'),
    ({'baseline': 'x'}, 'baseline'),
    ({'exclude': '('}, r"'\('"),
    ({'resamples': -1}, 'resamples'),
  ]:
    with pytest.raises(InputError, match=named):
      AgreementConfig(**options)
  with pytest.raises(ValueError, match="'x' is not among"):
    agreement.measure([grid()], AgreementConfig(resamples=9, baseline='x'))
  with pytest.raises(InputError):
    agreement.measure([grid(systems=('A',))], AgreementConfig(level='system'))


def test_tables_carry_the_numbers_and_the_marks():
  report = agreement.measure(
    [grid()], AgreementConfig(resamples=100, baseline='poor')
  )
  cell = report.cells['good', 'zh-en']
  shown = f'{cell.value:.3f}+'
  for style in ('text', 'markdown', 'latex'):
    text = tables.render(report, style, 3)
    assert shown in text
    assert f'{cell.comparison.difference:+.3f}' in text
    assert 'seed 12345' in text
  plain = tables.render(report, 'text', 3).splitlines()
  assert plain[1].split() == ['good', shown]
  result = tables.as_json(report)
  first = result['results'][0]
  assert first['value'] == cell.value
  assert first['versus']['p_value'] == cell.comparison.p_value
  with pytest.raises(InputError):
    tables.render(report, 'html')


def test_latex_and_markdown_escape_what_they_must():
  rows = [['a_b', 'c%'], ['x|y', '\\']]
  assert r'a\_b & c\%' in tables.lay_out(rows, 'latex')
  assert r'\textbackslash{}' in tables.lay_out(rows, 'latex')
  assert r'x\|y' in tables.lay_out(rows, 'markdown')


@pytest.fixture(scope='module')
def official_pairs():
  return darr.read_pairs(DATA / 'wmt20_darr.tsv.gz')


@pytest.fixture(scope='module')
def recorded_taus():
  """By metric and language pair: WMT20's own tau and its number of pairs."""
  taus = {}
  with files.open_text(DATA / 'wmt20_metrics/darr_agreement.tsv.gz') as lines:
    header = next(lines).split('\t')
    columns = list(zip(*(line.split('\t') for line in lines), strict=True))
  pairs = np.array(columns[0])
  for metric, column in zip(header[4:], columns[4:], strict=True):
    agreed = np.array(column)
    for pair in np.unique(pairs):
      ours = agreed[(pairs == pair) & (agreed != '')].astype(float)
      if len(ours):
        taus[metric, str(pair)] = (2 * ours.mean() - 1, len(ours))
  return taus


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize('metric', ['YiSi-2', 'chrF', 'TER', 'parbleu'])
def test_wmt20_tau_from_segment_scores(metric, official_pairs, recorded_taus):
  table = wmt.read_wmt_scores(
    DATA / 'wmt20_metrics/scores' / f'{metric}.seg.score.gz',
    test_set='newstest2020',
  )
  recorded = {p: t for (m, p), t in recorded_taus.items() if m == metric}
  grids = [
    g
    for g in scores.join([table], None, [metric])
    if g.language_pair in recorded
  ]
  report = agreement.measure(
    grids, AgreementConfig(statistic='darr', pairs=official_pairs)
  )
  result = {
    p: (report.cells[metric, p].value, report.cells[metric, p].count)
    for p in recorded
  }
  for pair, (tau, count) in recorded.items():
    assert result[pair][1] == count
    assert result[pair][0] == pytest.approx(tau, abs=5e-4), pair


@needs_data
def test_wmt20_pairs_follow_from_the_raw_ratings(official_pairs):
  table = scores.read_table(
    DATA / 'wmt20_mqm_da.zh-en.tsv.gz', ['da_raw', 'mqm']
  )
  (g,) = scores.join([table], 'da_raw', ['mqm'])
  g = g.with_systems(
    [s for s in g.systems if not s.startswith(('Human', 'HUMAN', 'ref'))]
  )
  official, lost = darr.place_pairs(g, official_pairs)
  ours = darr.pairs_from_ratings(g.human, 25)
  assert lost == 0

  def as_set(pairs):
    return set(
      zip(
        pairs.segments.tolist(),
        pairs.better.tolist(),
        pairs.worse.tolist(),
        strict=True,
      )
    )

  assert as_set(ours) == as_set(official)
  assert len(official) == 62586


@needs_data
def test_spearman_and_kendall_at_scale_are_finite():
  table = scores.read_table(
    DATA / 'billboard_wmt20-en-de.tsv.gz', ['human', 'chrF']
  )
  (g,) = scores.join([table], 'human', ['chrF'])
  rated = ~np.isnan(g.human)
  spearman = correlation.spearman(g.human[rated], g.metrics['chrF'][rated])
  kendall = correlation.kendall(g.human[rated], g.metrics['chrF'][rated])
  assert 0 < kendall < spearman < 1


def test_pooled_accuracy_counts_the_pairs_of_systems():
  grids = [grid(systems='ABC'), grid('en-cs', systems='ABCDEF')]
  config = AgreementConfig(level='system', statistic='accuracy', resamples=20)
  report = agreement.measure(grids, config)
  three, six = (value(report, 'poor', p) for p in ('zh-en', 'en-cs'))
  assert value(report, 'poor', 'Avg') == pytest.approx((three + six) / 2)
  assert value(report, 'poor', 'Pooled') == pytest.approx(
    (3 * three + 15 * six) / 18
  )
  cell = report.cells['poor', 'Pooled']
  assert cell.low <= cell.high


def test_system_scores_that_are_missing_leave_systems_out():
  g = grid(segments=1, systems='ABCDE')
  g.metrics['poor'][1, 0] = np.nan
  config = AgreementConfig(level='system')
  with pytest.raises(files.RecordError, match="'B'.* under poor"):
    agreement.measure([g], config)
  report = agreement.measure([g], dataclasses.replace(config, intersect=True))
  assert report.cells['good', 'zh-en'].count == 4
  rest = g.with_systems('ACDE')
  assert value(report) == value(agreement.measure([rest], config))


def test_items_without_variation_follow_the_rule_and_are_counted():
  g = grid(segments=6)
  g.human[:, 0] = 50
  g.metrics['poor'][:, 1:4] = 0.5
  g.human[1:, 5] = np.nan
  values = {}
  for rule in correlation.CONSTANT_RULES:
    config = AgreementConfig(group='item', constant=rule)
    report = agreement.measure([g], config)
    values[rule] = [value(report, name) for name in g.metrics]
    assert 'zh-en: 1 item groups left out: fewer than two rated entries' in (
      report.notes
    )
    what = {'skip': 'do not count', 'zero': 'count 0'}[rule]
    assert any(
      what in note and note.endswith('good 1, poor 4 of 6')
      for note in report.notes
    )
  # Four items vary for `good`, one for `poor`; five have ratings of two.
  np.testing.assert_allclose(
    np.multiply(values['zero'], 5), np.multiply(values['skip'], [4, 1])
  )


@pytest.mark.parametrize('level', LEVELS)
def test_unrated_entries_and_constant_scores_are_notes(level, recwarn):
  g = grid()
  g.human[:, :3] = np.nan
  g.human[0, 5] = np.nan
  g.metrics['flat'] = np.ones_like(g.human)
  report = agreement.measure(
    [g], AgreementConfig(level=level, resamples=9, statistic='kendall')
  )
  assert any('13 of 120 (system, segment) entries' in n for n in report.notes)
  (constant,) = (n for n in report.notes if 'do not vary' in n)
  assert constant.startswith('zh-en: scores of flat')
  assert value(report, 'flat') == 0.0
  assert not recwarn.list


def test_constant_scores_in_groups_are_noted_and_not_warned_about(recwarn):
  g = grid()
  g.metrics['flat'] = np.full(g.human.shape, 3.0)
  for options in ({'group': 'item'}, {'statistic': 'calibrated-accuracy'}):
    report = agreement.measure([g], AgreementConfig(**options))
    assert not recwarn.list
  report = agreement.measure([g], AgreementConfig(group='item'))
  assert report.cells['flat', 'zh-en'].value == 0.0
  assert any('scores of flat do not vary' in note for note in report.notes)
