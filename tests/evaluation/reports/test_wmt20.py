"""`t5score correlate --report wmt20`: the paper's tables."""

import json

import numpy as np
import pytest

from t5score_jax.evaluation import darr
from t5score_jax.evaluation import scores as score_files
from t5score_jax.evaluation.reports import (
  wmt20,
  wmt20_data,
)
from tests.commands.test_correlate import run


# A small WMT20: two language pairs, three machine systems and a human one.
@pytest.fixture
def wmt(tmp_path):
  rng = np.random.default_rng(0)
  folder = tmp_path / 'data'
  for name in ('human', 'scores'):
    (folder / 'wmt20_metrics' / name).mkdir(parents=True)
  pairs, scored = [], {'chrF': [], 'BLEURT': []}
  systems = ('A.1', 'B.2', 'C.3', 'Human-A.0')
  for pair in (*wmt20._into(), *wmt20._out_of()):
    lines = ['RAW.SCR Z.SCR N SYS N.ALL ']
    lines += [f'{70 + k} {k / 2} 10 {s} 12 ' for k, s in enumerate(systems)]
    (folder / f'wmt20_metrics/human/ad-sys-scores-{pair}.csv').write_text(
      '\n'.join(lines) + '\n'
    )
    for n in range(1, 21):
      pairs.append(f'{pair}\td::{n}\tB.2\tA.1')
      pairs.append(f'{pair}\td::{n}\tC.3\tA.1')
      for k, system in enumerate(systems):
        for metric, noise in (('chrF', 2.0), ('BLEURT', 0.1)):
          scored[metric].append((pair, system, n, k + noise * rng.normal()))
  (folder / 'wmt20_darr.tsv').write_text(
    'lp\tsid\tbetter\tworse\n' + '\n'.join(pairs) + '\n'
  )
  for metric, rows in scored.items():
    means = {}
    for pair, system, _, value in rows:
      means.setdefault((pair, system), []).append(value)
    for level, lines in {
      'seg': [
        f'{p} newstest2020 newstest2020 {s} d {n} {v}' for p, s, n, v in rows
      ],
      'sys': [
        f'{p} newstest2020 newstest2020 {s} {np.mean(v)}'
        for (p, s), v in means.items()
      ],
    }.items():
      path = folder / f'wmt20_metrics/scores/{metric}.{level}.score'
      path.write_text(''.join(f'{metric} {line}\n' for line in lines))
  with open(tmp_path / 'ours.jsonl', 'w') as out:
    for pair, system, n, value in scored['chrF']:
      if pair == 'cs-en':
        row = {
          'language_pair': pair,
          'system': system,
          'segment': f'd::{n}',
          'score': -value,
        }
        out.write(json.dumps(row) + '\n')
  return folder, tmp_path / 'ours.jsonl'


def test_wmt20_report_has_the_papers_tables(wmt, capsys):
  folder, ours = wmt
  arguments = ['--report', 'wmt20', '--data', folder, f'ours={ours}']
  arguments += ['--metrics', 'chrF,BLEURT,ours', '--bootstrap', 100]
  assert run(*arguments, '--table', 'json') == 0
  result = json.loads(capsys.readouterr().out)
  assert result['unsupervised'] == ['chrF'] and result['seed'] == 12345
  by_title = {t['title']: t['results'] for t in result['tables']}
  tau = {
    (r['metric'], r['column']): r
    for r in by_title['Segment-level Kendall tau on DARR, to English']
  }
  # Scores with the sign turned agree where the others do not.
  assert tau['ours', 'cs-en']['value'] == -tau['chrF', 'cs-en']['value']
  assert tau['BLEURT', 'cs-en']['mark'] == '‡'
  assert tau['chrF', 'cs-en']['mark'] == '†'
  assert ('ours', 'Avg-en') not in tau and ('chrF', 'Avg') in tau
  members = [tau['chrF', f'{x}-en']['value'] for x in wmt20.INTO]
  assert tau['chrF', 'Avg-en']['value'] == pytest.approx(np.mean(members))
  assert len(by_title) == 6
  assert run(*arguments) == 0
  text = capsys.readouterr().out
  assert 'Times 100.' in text and 'no table of MQM' in text
  assert run(*arguments, '--table', 'latex') == 0
  text = capsys.readouterr().out
  assert '\\textbf{' in text and '\\underline{' in text
  assert '$^\\ddagger$' in text and '% Times 100.' in text
  assert text.count('\n\\begin{tabular}') == 6
  assert run(*arguments, '--table', 'markdown') == 0
  assert '**' in capsys.readouterr().out


def test_wmt20_report_says_what_is_missing(wmt, capsys):
  folder, ours = wmt
  lines = ours.read_text().splitlines()
  ours.write_text('\n'.join(x for x in lines if '"A.1"' not in x) + '\n')
  arguments = ['--report', 'wmt20', '--data', folder, f'ours={ours}']
  arguments += ['--metrics', 'chrF,ours', '--bootstrap', 0]
  assert run(*arguments) == 0
  text = capsys.readouterr().out
  assert 'cs-en: ours has no score of A.1: not measured' in text
  # Each cell without a value has a reason.
  assert 'ours has no segment scores of ranked pairs in cs-en, de-en' in text
  assert 'an average without a value of all its language pairs is -' in text
  assert run(*arguments, '--intersect') == 0
  text = capsys.readouterr().out
  assert 'cs-en: ours has no score of A.1: measured without them' in text
  data = ['--data', folder]
  for arguments, code, message in [
    ([], 2, 'needs --data'),
    (['--data', folder.parent], 1, 'no wmt20_darr.tsv'),
    ([*data, ours], 2, 'takes NAME=FILE'),
    ([*data, '--metrics', 'X'], 1, "no scores of 'X'"),
    (['--plot', 'x.png'], 2, 'not for --report'),
    ([*data, '--unsupervised', 'chrf'], 2, "did you mean 'chrF'"),
    ([*data, f'o={ours}', f'o={ours}'], 1, 'a second score of o'),
  ]:
    assert run('--report', 'wmt20', *arguments) == code
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out


def test_agreement_known_only_by_pair_is_read(wmt):
  folder, _ = wmt
  pairs = darr.read_pairs(folder / 'wmt20_darr.tsv')
  lines = ['lp\tsid\tbetter\tworse\tprism']
  for k, row in enumerate(
    zip(
      pairs.language_pair, pairs.segment, pairs.better, pairs.worse, strict=True
    )
  ):
    if row[0] != 'zh-en':
      lines.append('\t'.join([*row, '' if k == 3 else str(k % 2)]))
  path = folder / 'wmt20_metrics/darr_agreement.tsv'
  path.write_text('\n'.join(lines) + '\n')
  agreed = wmt20_data.Data(folder, {}).agreement('prism')
  ours = pairs.language_pair != 'zh-en'
  assert np.isnan(agreed[~ours]).all() and np.isnan(agreed[3])
  assert agreed[:3].tolist() == [-1, 1, -1]
  path.write_text('\n'.join([*lines, 'zh-en\tx\ty\tz\t1']) + '\n')
  with pytest.raises(score_files.files.RecordError):
    wmt20_data.Data(folder, {}).agreement('prism')
