"""Score files in other people's layouts: read, and refused with the line."""

import gzip
import json

import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.data import files
from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation, scores
from t5score_jax.evaluation.readers import layouts, mqm, mtme, wmt

SEGMENT_SCORES = """\
chrF de-en set1 set1 A doc 1 0.5
chrF de-en set1 set1 A doc 2 0.25
chrF de-en set1 set1 B doc 1 0.75
chrF de-en set1 set1 B doc 2 1
chrF de-en set1 other A doc 1 9
chrF en-de set1 set1 A doc 1 0.125
"""


def rows(table):
  return dict(zip(table.rows, next(iter(table.values.values())), strict=True))


def test_wmt_segment_scores(tmp_path):
  path = tmp_path / 'chrF.seg.score.gz'
  with gzip.open(path, 'wt') as out:
    out.write(SEGMENT_SCORES)
  (table,) = layouts.read(path, ['chrF'])
  assert rows(table) == {
    ('de-en', 'A', 'doc::1'): 0.5,
    ('de-en', 'A', 'doc::2'): 0.25,
    ('de-en', 'B', 'doc::1'): 0.75,
    ('de-en', 'B', 'doc::2'): 1.0,
    ('en-de', 'A', 'doc::1'): 0.125,
  }
  assert table.notes == (
    f'{path}: 1 rows of other test sets or references not used',
  )
  (table,) = layouts.read(path, ['ours'], score_name='ours')
  assert set(table.values) == {'ours'}
  (table,) = layouts.read(path, ['chrF'], layouts.Options(by_line=True))
  assert ('de-en', 'B', '2') in rows(table)
  (table,) = layouts.read(path, ['chrF'], layouts.Options(reference='other'))
  assert rows(table) == {('de-en', 'A', 'doc::1'): 9.0}


@pytest.mark.parametrize(
  'text, message',
  [
    ('chrF de-en s s A doc 1\n', 'line 1: 7 fields'),
    ('chrF de-en s s A 1\nchrF de-en s s A d 1 2\n', 'line 2: 8 fields'),
    ('chrF de-en s s A 1\nBLEU de-en s s A 1\n', "line 2: a score of 'BLEU'"),
    ('chrF de-en s s A nan\n', "line 1, field 'SCORE': 'nan' is not a finite"),
    (
      'chrF de-en s s A 1\nchrF de-en t t A 1\n',
      'more than one test set (s, t)',
    ),
    ('chrF de-en s x A 1\nchrF de-en s y A 1\n', 'more than one reference'),
    ('', 'no scores'),
  ],
)
def test_wmt_score_files_are_refused_with_the_line(tmp_path, text, message):
  path = tmp_path / 'chrF.sys.score'
  path.write_text(text)
  with pytest.raises(files.RecordError) as result:
    layouts.read(path, ['chrF'])
  assert message in str(result.value)


def test_another_test_set_is_said(tmp_path):
  path = tmp_path / 'chrF.seg.score'
  path.write_text(SEGMENT_SCORES)
  with pytest.raises(files.RecordError, match="'set2'.*there are .* set1"):
    wmt.read_wmt_scores(path, test_set='set2')


def test_official_direct_assessments(tmp_path):
  path = tmp_path / 'ad-seg-scores-de-en.csv'
  path.write_text('SYS SID RAW.SCR Z.SCR N \nA 3 80 0.5 2 \nB 3 20 -0.5 1 \n')
  (table,) = layouts.read(path, ['z', 'raw'])
  assert table.rows == [('de-en', 'A', '3'), ('de-en', 'B', '3')]
  assert table.values['z'].tolist() == [0.5, -0.5]
  path.write_text('SYS SID RAW.SCR Z.SCR N \nA 3 80 0.5\n')
  with pytest.raises(files.RecordError, match='line 2: 4 fields'):
    layouts.read(path, ['z'])


ERRORS = """\
system\tdoc\tdoc_id\tseg_id\trater\tsource\ttarget\tcategory\tseverity
A\td\t1\t11\tr1\ts\t<v>"t</v>\tAccuracy/Mistranslation\tMajor
A\td\t1\t11\tr1\ts\tt\tFluency/Punctuation\tMinor
A\td\t1\t11\tr2\ts\tt\tNo-error\tNo-error
A\td\t2\t12\tr1\ts\tt\tNo-error\tno-error
B\td\t1\t11\tr1\ts\tt\tNon-translation!\tMajor
B\td\t1\t11\tr2\ts\tt\tStyle/Awkward\tMinor
B\td\t1\t11\tr2\ts\tt\tLocale convention/Currency\tneutral
B\td\t2\t12\tr3\ts\tt\tTerminology/Inconsistent\tMinor
B\td\t2\t12\tr3\ts\tt\tFluency/Grammar\tMinor
"""


def test_mqm_scores_by_the_published_weights(tmp_path):
  path = tmp_path / 'mqm.tsv'
  path.write_text(ERRORS)
  (table,) = layouts.read(
    path,
    ['mqm', 'mqm-accuracy', 'mqm-fluency', 'mqm-non-translation', 'mqm-style'],
    layouts.Options(language_pair='en-de'),
  )
  assert table.rows == [
    ('en-de', 'A', 'd::1'),
    ('en-de', 'A', 'd::2'),
    ('en-de', 'B', 'd::1'),
    ('en-de', 'B', 'd::2'),
  ]
  # Sums by rater, then the mean over the raters who saw the segment.
  expected = {
    'mqm': [-(5 + 0.1) / 2, 0, -(25 + 1) / 2, -2],
    'mqm-accuracy': [-2.5, 0, 0, 0],
    'mqm-fluency': [-0.05, 0, 0, -1],
    'mqm-non-translation': [0, 0, -12.5, 0],
    'mqm-style': [0, 0, -0.5, 0],
  }
  for name, values in expected.items():
    assert table.values[name] == pytest.approx(values), name
  assert not np.signbit(table.values['mqm'][1])
  assert table.lines.tolist() == [2, 5, 6, 9]
  whole = mqm.read_mqm(path)
  assert {f'mqm-{c}' for c in mqm.CATEGORIES} < set(whole.values)
  assert 'mqm-no-error' not in whole.values
  by_line = mqm.read_mqm(path, by_line=True)
  assert by_line.rows[0] == ('', 'A', '11')


def test_mqm_weights_can_be_changed(tmp_path):
  path = tmp_path / 'mqm.tsv'
  path.write_text(ERRORS)
  result = mqm.read_mqm(
    path, weights='Major:10 Minor:1 Neutral:0 No-error:0 Minor/Fluency:3'
  )
  assert result.values['mqm'] == pytest.approx([-6.5, 0, -5.5, -4])
  for text in ('Major', 'Major:x', ':3', 'Major:-1', 'Major:nan'):
    with pytest.raises(InputError):
      mqm.parse_weights(text)


def test_mqm_rows_that_are_wrong_are_named(tmp_path):
  path = tmp_path / 'mqm.tsv'
  path.write_text(ERRORS.replace('\tMinor\nB\td\t2', '\tHuge\nB\td\t2', 1))
  with pytest.raises(files.RecordError, match="line 9, field 'severity'.*Huge"):
    mqm.read_mqm(path)
  path.write_text(ERRORS + 'B\td\n')
  with pytest.raises(files.RecordError, match='line 11: 2 fields'):
    mqm.read_mqm(path)
  path.write_text(ERRORS.replace('rater', 'judge'))
  with pytest.raises(files.RecordError, match="no column 'rater'"):
    mqm.read_mqm(path)


def test_category_error_is_the_rmse_of_normalised_scores():
  rng = np.random.default_rng(0)
  human = rng.normal(size=(3, 20))
  human[0, :5] = np.nan
  metric = 7 + 3 * rng.normal(size=human.shape)
  rated = ~np.isnan(human)
  r = np.corrcoef(human[rated], metric[rated])[0, 1]
  assert mqm.category_error(human, metric) == pytest.approx(np.sqrt(2 - 2 * r))
  x, y = (
    (v - v.min()) / (v.max() - v.min()) for v in (human[rated], metric[rated])
  )
  assert mqm.category_error(human, metric, 'range') == pytest.approx(
    np.sqrt(np.mean((x - y) ** 2))
  )
  with pytest.warns(correlation.ConstantInputWarning):
    assert mqm.category_error(np.zeros((2, 3)), metric[:2, :3]) == (
      pytest.approx(1.0)
    )
  with pytest.raises(InputError):
    mqm.category_error(human, metric, 'log')
  with pytest.raises(InputError):
    mqm.category_error(np.full((2, 2), np.nan), np.zeros((2, 2)))


def test_mlqe_pe(tmp_path):
  path = tmp_path / 'test20.ende.df.short.tsv'
  path.write_text(
    'index\toriginal\ttranslation\tscores\tmean\tz_scores\tz_mean\tmodel_scores\n'
    '0\ta "b\tc\t[1, 2]\t1.5\t[0, 1]\t0.5\t-0.25\n'
  )
  (table,) = layouts.read(path, ['z_mean', 'model_scores'])
  assert table.rows == [('en-de', 'MT', '0')]
  assert table.values['z_mean'].tolist() == [0.5]
  assert table.values['model_scores'].tolist() == [-0.25]
  other = tmp_path / 'unnamed.tsv'
  other.write_text(path.read_text())
  with pytest.raises(files.RecordError):
    layouts.read(other, ['z_mean'])
  (table,) = layouts.read(
    other, ['z_mean'], layouts.Options(language_pair='en-zh')
  )
  assert table.rows[0][0] == 'en-zh'


@pytest.fixture
def folder(tmp_path):
  """A test set of three segments and two systems, and a reference as one."""
  for name, text in {
    'sources/en-de.txt': 'a\nb\nc\n',
    'documents/en-de.docs': 'news d\n' * 3,
    'references/en-de.refA.txt': 'x\ny\nz\n',
    'system-outputs/en-de/A.txt': 'x\ny\nz\n',
    'system-outputs/en-de/B.txt': 'x\ny\nz\n',
    'system-outputs/en-de/refA.txt': 'x\ny\nz\n',
    'human-scores/en-de.mqm.seg.score': 'A\t-1\nA\tNone\nA\t0\nB\t-5\nB\t-6\n'
    'B\t-7\n',
    'human-scores/en-de.mqm.sys.score': 'A\t-0.5\nB\t-6\n',
    'human-scores/en-de.wmt-z.sys.score': 'A\t0.5\nB\t-1\n',
    'metric-scores/en-de/BLEU-refA.seg.score': ''.join(
      f'{s}\t{k / 4}\n' for k, s in enumerate('AAABBB')
    ),
    'metric-scores/en-de/BLEU-refA.sys.score': 'A 30\nB 20\n',
    'metric-scores/en-de/X-src.sys.score': 'A 3\nB 2\n',
    'metric-scores/en-de/X-refA.sys.score': 'A 1\nB 2\n',
  }.items():
    path = tmp_path / 'wmt99' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return tmp_path / 'wmt99'


def test_folder_of_mt_metrics_eval(folder):
  options = layouts.Options(language_pair='en-de')
  human, metric = layouts.read(folder, ['mqm', 'BLEU'], options)
  (grid,) = scores.join([human, metric], 'mqm', ['BLEU'])
  assert grid.systems == ('A', 'B') and grid.segments == ('1', '2', '3')
  np.testing.assert_array_equal(grid.human, [[-1, np.nan, 0], [-5, -6, -7]])
  np.testing.assert_array_equal(
    grid.metrics['BLEU'], [[0, 0.25, 0.5], [0.75, 1, 1.25]]
  )
  options = layouts.Options(language_pair='en-de', level='sys')
  human, metric = layouts.read(folder, ['wmt-z', 'X-src'], options)
  assert rows(human) == {('en-de', 'A', ''): 0.5, ('en-de', 'B', ''): -1}
  assert rows(metric) == {('en-de', 'A', ''): 3, ('en-de', 'B', ''): 2}


def test_folder_says_what_is_wrong(folder, tmp_path):
  options = layouts.Options(language_pair='en-de')
  with pytest.raises(ValueError, match=r'--language-pair\): en-de'):
    layouts.read(folder, ['mqm'])
  with pytest.raises(files.RecordError, match="no language pair 'en-zh'"):
    layouts.read(folder, ['mqm'], layouts.Options(language_pair='en-zh'))
  with pytest.raises(ValueError, match="no scores 'chrF'; there are BLEU-refA"):
    layouts.read(folder, ['chrF'], options)
  with pytest.raises(ValueError, match="'X' may be X-refA, X-src"):
    layouts.read(
      folder, ['X'], layouts.Options(language_pair='en-de', level='sys')
    )
  with pytest.raises(files.RecordError):
    layouts.read(tmp_path, ['x'], options)
  path = folder / 'metric-scores/en-de/BLEU-refA.seg.score'
  good = path.read_text()
  for text, message in [
    (good + 'A\t1\n', "4 scores of 'A', which has 3 segments"),
    (good.replace('B\t1.0', 'B\tNone'), "line 5, field 'SCORE': 'None'"),
    (good.replace('B\t', 'C\t'), "line 4: no output of the system 'C'"),
    ('A\n', 'line 1: 1 fields'),
    ('', 'no scores'),
  ]:
    path.write_text(text)
    with pytest.raises(files.RecordError) as result:
      layouts.read(folder, ['BLEU'], options)
    assert message in str(result.value)
  with pytest.raises(InputError):
    mtme.score_files(folder, 'en-de', 'doc')


def test_rows_are_chosen_and_counted(tmp_path):
  path = tmp_path / 'da.tsv'
  path.write_text('split\tlp\tindex\tz\ntrain\tx\t0\t1\ntest\tx\t0\t2\n')
  (table,) = layouts.read(path, ['z'], layouts.Options(where={'split': 'test'}))
  assert rows(table) == {('x', '', '0'): 2.0}
  assert '1 rows not chosen' in table.notes[0]
  with pytest.raises(files.RecordError, match="no column 'year'"):
    layouts.read(path, ['z'], layouts.Options(where={'year': '2017'}))
  with pytest.raises(files.RecordError, match='none of the 2 rows has split=x'):
    layouts.read(path, ['z'], layouts.Options(where={'split': 'x'}))


def test_columns_of_special_layouts_can_be_renamed(tmp_path):
  path = tmp_path / 'ad-sys-scores-de-en.csv'
  path.write_text('RAW.SCR Z.SCR N SYS N.ALL \n80 0.5 10 A 12 \n')
  (table,) = layouts.read(
    path, ['human'], layouts.Options(columns={'human': 'z'})
  )
  assert table.values['human'].tolist() == [0.5]
  with pytest.raises(files.RecordError):
    layouts.read(path, ['human'], score_name='human')


def test_mqm_sums_do_not_depend_on_the_order_of_errors(tmp_path):
  path = tmp_path / 'mqm.tsv'
  errors = [
    *(('r1', 'Fluency/Punctuation', 'Minor') for _ in range(3)),
    ('r2', 'Accuracy/Omission', 'Major'),
    ('r2', 'Style/Awkward', 'Minor'),
    ('r3', 'Fluency/Punctuation', 'Minor'),
  ]
  rows = ['system\tdoc\tdoc_id\trater\tcategory\tseverity']
  for system, order in (('A', errors), ('B', errors[::-1])):
    for rater, category, severity in order:
      rows.append(f'{system}\td\t1\t{rater}\t{category}\t{severity}')
    rows.append(f'{system}\td\t2\tr1\tNo-error\tNo-error')
  path.write_text('\n'.join(rows) + '\n')
  (table,) = layouts.read(path, ['mqm', 'mqm-fluency'])
  a, _, b, _ = table.values['mqm']
  # Exactly the fraction: 6.4 errors' weight over three raters.
  assert a == b == -64 / 30
  assert (
    table.values['mqm-fluency'][0] == table.values['mqm-fluency'][2] == -4 / 30
  )


def test_system_means_do_not_depend_on_the_order_of_segments():
  rng = np.random.default_rng(0)
  scores = np.round(rng.normal(size=101), 1)
  means = correlation.system_means(
    np.stack([scores, scores[::-1], rng.permutation(scores)])
  )
  assert np.ptp(means) == 0 and means[0] == pytest.approx(scores.mean())


def test_system_scores_of_a_folder_have_one_source(folder, capsys):
  def run(*options):
    code = cli.main(
      ['correlate', str(folder), '--language-pair', 'en-de', '--human', 'mqm',
       '--metrics', 'BLEU', '--level', 'system', '--table', 'json', *options]
    )  # fmt: skip
    captured = capsys.readouterr()
    if code:
      return captured.err
    return json.loads(captured.out)['results'][0]['value']

  # 30 and 20 are the files' BLEU; the means of its segments order B first.
  for options in ([], ['--test', 'permutation']):
    assert run(*options) == pytest.approx(1)
  for options in (
    ['--bootstrap', '100'],
    ['--baseline', 'BLEU'],
    ['--test', 'bootstrap'],
    ['--unsupervised', 'BLEU'],
  ):
    message = run(*options)
    assert '--system-scores means' in message and message.count('\n') == 1
    assert run('--system-scores', 'means', *options) == pytest.approx(-1)
  assert run('--system-scores', 'means') == pytest.approx(-1)
