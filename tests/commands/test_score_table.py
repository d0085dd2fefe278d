"""Several metrics at once: `t5score score`'s table, `correlate` from texts."""

import io
import json
import random
import types

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from scipy import stats

from t5score_jax import cli
from t5score_jax.metrics import registry

WORDS = 'the cat dog sees moon old ship this town bread music a'.split()
ERRORS = {'base': 0.3, 'good': 0.1, 'same': 0.31}
FILES = '-r', 'ref.txt', '-t', 'base.txt', 'good.txt', 'same.txt'


@pytest.fixture(scope='module')
def texts():
  """References and the outputs of three systems, 40 segments."""
  rng = random.Random(1)
  references = [' '.join(rng.choices(WORDS, k=9)) for _ in range(40)]

  def noisy(text, share):
    return ' '.join(
      rng.choice(WORDS) if rng.random() < share else word
      for word in text.split()
    )

  return references, {
    name: [noisy(text, share) for text in references]
    for name, share in ERRORS.items()
  }


@pytest.fixture
def run(texts, tmp_path, monkeypatch, capsys):
  """Runs the command line in a folder with these texts."""
  references, systems = texts
  for name, lines in {'ref': references, **systems}.items():
    (tmp_path / f'{name}.txt').write_text('\n'.join(lines) + '\n')
  monkeypatch.chdir(tmp_path)

  def run(*arguments, code=0):
    capsys.readouterr()
    assert cli.main([str(a) for a in arguments]) == code
    return capsys.readouterr()

  return run


def test_values_are_the_metrics_and_tests_those_of_compare(run, texts):
  references, systems = texts
  shown = run('score', '-m', 'chrf', '-m', 'bleu', *FILES, '--table', 'jsonl')
  rows = [json.loads(line) for line in shown.out.splitlines()]
  assert [row['system'] for row in rows] == list(systems)
  for name, scorer in {'chrf': CHRF(), 'bleu': BLEU()}.items():
    shown = run('compare', '-m', name, *FILES, '--table', 'json')
    result = json.loads(shown.out)['results'][0]
    for row, system in zip(rows, result['systems'], strict=True):
      texts_of = systems[row['system']]
      assert row[name] == pytest.approx(
        scorer.corpus_score(texts_of, [references]).score
      )
      np.testing.assert_allclose(
        [row[f'{name}.low'], row[f'{name}.high']], system['interval']
      )
    assert f'{name}.p' not in rows[0]
    assert [row[f'{name}.p'] for row in rows[1:]] == [
      row['bootstrap_p'] for row in result['comparisons']
    ]


def test_marks_follow_the_p_values(run):
  words = 'score', '-m', 'bleu', '-m', 'chrf', *FILES, '--digits', 1
  head, *rows = run(*words).out.splitlines()[:4]
  assert head.split() == ['system', 'segments', 'bleu', 'chrf']
  cells = [row.split()[2::3] for row in rows]
  assert [[c[-1] == '+' for c in row] for row in cells] == [
    [False, False],
    [True, True],
    [False, False],
  ]
  against = run(*words, '--baseline', 'good').out.splitlines()[1:4]
  assert [row.split()[2][-1] == '-' for row in against] == [True, False, True]


@pytest.mark.parametrize(
  ('format', 'first', 'count'),
  [
    ('tsv', 'system\tsegments\tchrf\tchrf.low\tchrf.high\tchrf.p\tbleu', 4),
    ('latex', '\\begin{tabular}{lrrr}', 9),
    ('markdown', '| system | segments |', 5),
  ],
)
def test_only_the_table_is_printed_in_other_formats(run, format, first, count):
  shown = run('score', '-m', 'chrf', '-m', 'bleu', *FILES, '--table', format)
  lines = shown.out.splitlines()
  assert len(lines) == count
  assert lines[0].startswith(first)
  assert 'signature (bleu): metric:BLEU|' in shown.err


def test_texts_are_read_once_and_scores_written_beside_ids(
  run, texts, random_bundle, monkeypatch
):
  # Standard input can only be read once.
  data = '\n'.join(texts[0]).encode() + b'\n'
  monkeypatch.setattr(
    'sys.stdin', types.SimpleNamespace(buffer=io.BytesIO(data))
  )
  names = 'chrf', random_bundle, 't5score=' + str(random_bundle)
  words = [word for name in names for word in ('-m', name)]
  words += ['-r', '-', '-t', 'base.txt', '-o', 'out.jsonl', '--bootstrap', 0]
  run('score', *words, '--direction', 'precision')
  with open('out.jsonl') as lines:
    rows = [json.loads(line) for line in lines]
  assert list(rows[0])[:3] == ['system', 'segment', 'chrf']
  for name, options in {
    'chrf': {'metric': 'chrf'},
    'random': {'model': random_bundle, 'direction': 'precision'},
  }.items():
    metric = registry.load(**options)
    wanted = metric.score(texts[1]['base'], texts[0]).values
    np.testing.assert_allclose([r[name] for r in rows], wanted, atol=1e-5)
  assert [r['t5score'] for r in rows] == [r['random'] for r in rows]


def test_systems_with_other_segments_are_not_compared(run, texts):
  references, systems = texts
  with open('in.jsonl', 'w') as out:
    for name, lines in systems.items():
      for n, text in enumerate(lines[: 39 if name == 'same' else 40]):
        row = {'system': name, 'segment': n, 'hypothesis': text}
        print(json.dumps({**row, 'reference': references[n]}), file=out)
  shown = run(
    *('score', '-m', 'chrf', '-m', 'ter', '--input', 'in.jsonl'),
    *('--bootstrap', 100),
  )
  assert '+' not in shown.out
  assert 'note: not compared with base' in shown.out


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (('-m', 'chrf', '-m', 'chrf'), 'chrf: is given twice'),
    (('-m', 'chrf', '-m', 'bleu', '--direction', 'f'), '--direction is for'),
    (('-m', 'chrf', '-m', 'bleu', '--option', 'layer=1'), '--option layer'),
    (('-m', 'chrf', '-m', 'bleu', '--metric', 'ter'), '--metric is for one'),
    (('-m', 'chrf', '-m', 'bleu', '--format', 'tsv'), '--format is for -o'),
    (('-m', 'chrf', '-m', 'bleu', '--baseline', 'X'), "no system 'X'"),
    (('-m', 'chrf', '--baseline', 'base'), '--baseline is for a table'),
    (('-m', 'bleu', '-m', 't5score-tiny', '--tokens'), '--tokens is for one'),
  ],
)
def test_what_has_no_effect_is_refused(run, words, message):
  shown = run('score', *words, *FILES, code=2)
  assert message in shown.err
  assert not shown.out


def test_correlate_scores_texts_itself(run, texts):
  references, systems = texts
  rng = np.random.default_rng(0)
  ratings = rng.normal(size=(3, 40)).round(3)
  with open('rated.jsonl', 'w') as out, open('human.tsv', 'w') as human:
    human.write('system\tsegment\tda\n')
    for (name, lines), values in zip(systems.items(), ratings, strict=True):
      for n, (text, value) in enumerate(zip(lines, values, strict=True), 1):
        row = {'system': name, 'segment': n, 'da': value, 'hypothesis': text}
        print(json.dumps({**row, 'reference': references[n - 1]}), file=out)
        human.write(f'{name}\t{n}\t{value}\n')
  words = '-m', 'chrf', '-m', 'bleu', '--human', 'da', '--table', 'json'
  inside = run('correlate', '--input', 'rated.jsonl', *words)
  beside = run('correlate', 'human.tsv', *FILES, *words)
  for shown in (inside, beside):
    found = json.loads(shown.out)
    assert any('metric:BLEU' in note for note in found['notes'])
    for row in found['results']:
      metric = registry.load_metric(row['metric'])
      scores = [metric.score(s, references).values for s in systems.values()]
      wanted = stats.pearsonr(np.ravel(scores), ratings.ravel()).statistic
      assert row['value'] == pytest.approx(wanted)
      assert row['count'] == 120


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (('--human', 'da', '-m', 'chrf'), '-m scores texts'),
    (('--human', 'da', '-m', 'chrf', '--where', 'a=b'), '--where is for'),
    (('--human', 'da', 'human.tsv', '-t', 'base.txt'), '-t is for texts'),
    (('--report', 'wmt20', '-m', 'chrf'), '--model is not for --report'),
  ],
)
def test_correlate_refuses_half_of_the_texts(run, words, message):
  shown = run('correlate', *words, code=2)
  assert message in shown.err
