"""The numbers of Kasai et al. (2022), from the original boards' tables."""

import json

import numpy as np
import pytest
from board_data import BOARDS, board_file, needs_boards

pytest.importorskip('sklearn')
pytest.importorskip('pandas')

from t5score_jax.leaderboard import (  # noqa: E402
  analysis,
  ensemble,
  layouts,
  ranking,
  renewal,
  score_table,
  store,
)

pytestmark = needs_boards

QE, DA = 'wmt20-comet-qe-da', 'wmt20-comet-da'
# Table 1: top metric and its correlation; members; leave-one-out as measured
# from these tables.
TABLE_1 = {
  'wmt20-zh-en': (DA, 0.55, {QE, DA, 'BLEURT'}, 0.60),
  'wmt20-en-de': (DA, 0.49, {DA, QE, 'Prism-ref'}, 0.55),
  'cnndm': (DA, 0.41, {DA, QE, 'BERTScore'}, 0.30),
  'mscoco': ('RefCLIPS', 0.45, {'RefCLIPS', 'RefOnlyCLIPS', 'CIDEr'}, 0.46),
}
# The published ensembles: weights and intercept.
GOLDEN = {
  'wmt20-zh-en': ({DA: 4.3076, QE: 7.1427, 'BLEURT': 3.9444}, 71.7538),
  'wmt20-en-de': ({DA: 4.3204, QE: 1.6631, 'Prism-ref': 0.0449}, 87.1936),
  'cnndm': ({DA: 8.0319, QE: 2.1204, 'BERTScore': 0.8371}, 82.8094),
  'mscoco': (
    {'RefCLIPS': 34.7431, 'RefOnlyCLIPS': 22.7778, 'CIDEr': 0.0103},
    31.4807,
  ),
}
# Table 12, CNNDM, the paper's names replaced by the tables'.
TABLE_12 = {
  'TER': '-0.58 0.14',
  DA: '-0.17 0.12',
  'ensemble': '-0.16 0.12',
  'BERTScore': '-0.04 0.12',
  'MoverScore': '-0.03 0.11',
  QE: '0.02 0.11',
  'CharacTER': '0.14 0.15',
  'BLEURT': '0.25 0.12',
  'SummaQA': '0.27 0.10',
  'ROUGE-L': '0.33 0.13',
  'SentBLEU': '0.37 0.11',
  'Prism-ref': '0.38 0.12',
  'chrF': '0.43 0.13',
  'chrFpp': '0.45 0.13',
  'ROUGE-3': '0.49 0.11',
  'METEOR': '0.53 0.12',
}
# Tables 6 and 8: the first and the last generator.
TOP = {
  'wmt20-zh-en': ('Huoshan_Translate.919', 'WMTBiomedBaseline.183'),
  'wmt20-en-de': ('Tohoku-AIP-NTT.890', 'WMTBiomedBaseline.388'),
  'cnndm': ('Lead-3', 'SENECA'),
  'mscoco': ('VinVL-large', 'Up-Down'),
}


@pytest.fixture(scope='module')
def boards(tmp_path_factory):
  """Name -> the file of the board made from its table."""
  folder = tmp_path_factory.mktemp('boards')
  found = {}
  for name in BOARDS:
    found[name] = folder / f'{name}.db'
    layouts.read_and_import(found[name], board_file(name), 'human')
  return found


@pytest.fixture(scope='module')
def values(boards):
  found = {}
  for name, path in boards.items():
    with store.Store(path) as board:
      found[name] = renewal.current(board)
  return found


@pytest.mark.parametrize('name', BOARDS)
def test_table_1(values, name):
  top, pearson, members, leave_one_out = TABLE_1[name]
  document = json.loads(json.dumps(renewal.rank_document(values[name])))
  assert set(document) == {'metrics', 'generators', 'ensemble', 'overrating'}
  assert all(set(m) == {'name', 'pearson'} for m in document['metrics'])
  assert document['metrics'][0]['name'] == top
  assert round(document['metrics'][0]['pearson'], 2) == pearson
  assert set(document['ensemble']) == {'weights', 'leave_one_out', 'signature'}
  assert set(document['ensemble']['weights']) == members
  assert document['ensemble']['leave_one_out'] == pytest.approx(
    leave_one_out, abs=0.005
  )
  ranked = [g['name'] for g in document['generators']]
  assert (ranked[0], ranked[-1]) == TOP[name]


def test_table_8(values):
  """CNNDM's generators have COMET's mean scores, in the paper's order."""
  scores = [g['score'] for g in values['cnndm']['generators']]
  printed = (
    '-0.011 -0.030 -0.032 -0.044 -0.049 -0.056 -0.056 -0.067 -0.073 -0.075'
    ' -0.083 -0.083 -0.099 -0.112 -0.117 -0.144 -0.151 -0.160 -0.167 -0.189'
    ' -0.215 -0.329 -0.341 -0.405 -0.441 -0.735'
  )
  # GPT-2 and others are printed with the last digit cut, not rounded.
  assert np.abs(scores - np.array(printed.split(), float)).max() < 0.001


@pytest.mark.parametrize('name', BOARDS)
def test_golden_ensembles(boards, name):
  """The published column follows from the stored coefficients."""
  weights, intercept = GOLDEN[name]
  with store.Store(boards[name]) as board:
    first = board.versions()[0]
  kept = ensemble.Ensemble.from_json(first.ensemble)
  assert {n: round(w, 4) for n, w in kept.weights.items()} == weights
  assert round(kept.intercept, 4) == intercept
  table = score_table.read(board_file(name))
  for found in (kept, ensemble.parse_signature(first.signature)):
    error = np.abs(found.apply(table.columns) - table.columns['ensemble'])
    assert error.max() < 1e-11


def test_table_12(values):
  found = values['cnndm']['overrating']['default']
  assert len(TABLE_12) == 16
  for name, printed in TABLE_12.items():
    fit = found[name]
    assert f'{fit["beta"]:.2f} {fit["ci90"]:.2f}' == printed, name
    significant = abs(fit['beta']) > fit['ci90']
    assert fit['significance'] == (np.sign(fit['beta']) if significant else 0)


def test_footnote_10(values, boards):
  """On CNNDM the ensemble loses to COMET; humans outrank it there."""
  ranks = {m['name']: m['rank'] for m in values['cnndm']['metrics']}
  assert ranks[DA] == 1 and ranks['ensemble v2'] > 1
  with store.Store(boards['cnndm']) as board:
    request = analysis.Request(ranking.Rule(outliers=False), resamples=0)
    found = analysis.analyse(board, request)
  assert found['board']['rated'] < values['cnndm']['board']['rated']


def test_table_11_only_the_referenceless_metric_matters(values):
  """ZH-EN: only without COMET-QE does the correlation drop."""
  fitted = values['wmt20-zh-en']['ensemble']
  assert round(fitted['ablation'][QE], 2) == 0.57
  assert round(fitted['ablation'][DA], 2) == 0.61
  assert round(fitted['ablation']['BLEURT'], 2) == 0.61


@pytest.mark.parametrize('name', BOARDS)
def test_alternatives(boards, name):
  """M.1 and M.2: other statistics, against SciPy on the table's rows."""
  import scipy.stats

  table = score_table.read(board_file(name))
  rated = ~np.isnan(table.columns['human'])
  rows = rated.any(axis=1)
  with store.Store(boards[name]) as board:
    found = analysis.analyse(
      board,
      analysis.Request(ranking.Rule('kendall', 'system'), resamples=0),
    )
    either = analysis.analyse(
      board,
      analysis.Request(ranking.Rule(direction='either'), resamples=0),
    )
  entry = next(
    m
    for m in found['metrics']
    if m['name'] == DA or name == 'mscoco' and m['name'] == 'RefCLIPS'
  )
  wanted = scipy.stats.kendalltau(
    table.columns[entry['name']][rows].mean(axis=1),
    table.columns['human'][rows].mean(axis=1),
  ).statistic
  assert entry['correlation'] == pytest.approx(wanted)
  strengths = [
    abs(m['correlation']) for m in either['metrics'] if m['rank'] is not None
  ]
  assert strengths == sorted(strengths, reverse=True)


@pytest.mark.slow
def test_swapped_roles_from_text(tmp_path):
  """Tables 12 and 13, ZH-EN, BLEU, from the texts; both human roles.

  The board is made as a user would: inputs with two references, outputs,
  ratings, a metric of this library.
  """
  import csv
  import gzip

  from board_data import DATA

  from t5score_jax.leaderboard import changes, submissions
  from t5score_jax.leaderboard.entries import Generator

  with gzip.open(DATA / 'wmt20_mqm_da.zh-en.tsv.gz', 'rt') as lines:
    rows = list(csv.DictReader(lines, delimiter='\t', quoting=csv.QUOTE_NONE))
  systems = {}
  for row in rows:
    systems.setdefault(row['system'], []).append(row)
  first = next(iter(systems.values()))
  with layouts.new_board(tmp_path / 'b.db') as board:
    changes.initialise(
      board,
      'zh-en',
      '',
      [row['seg_id'] for row in first],
      [row['src'] for row in first],
      {label: [row[f'ref_{label}'] for row in first] for label in 'AB'},
    )
    for name, found in systems.items():
      key = changes.add_generator(
        board,
        Generator(name, human=name.startswith('Human')),
        [row['hyp'] for row in found],
      )
      ratings = np.array([float(row['mqm'] or 'nan') for row in found])
      if not np.isnan(ratings).all():
        changes.add_ratings(board, 'mqm', [(key, ratings)])
    changes.set_role(board, 'default', ['Human-B.0'], 'A')
    changes.set_role(board, 'swapped', ['Human-A.0'], 'B')
    value = submissions.add_metric(board, submissions.library_metric('bleu'))
  fits = {role: x['bleu'] for role, x in value['overrating'].items()}
  assert round(fits['default']['beta'], 2) == 0.62
  assert round(fits['default']['ci90'], 2) == 0.02
  # The paper has 0.30, with a preprocessing of its own.
  assert fits['swapped']['beta'] == pytest.approx(0.30, abs=0.015)
  assert round(fits['swapped']['ci90'], 2) == 0.02
  curve = value['references']['bleu']
  assert curve['2'] > curve['1'] > 0.2
