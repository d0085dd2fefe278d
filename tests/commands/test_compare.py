"""`t5score compare` and the tests of systems, against sacrebleu's own."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from t5score_jax import cli
from t5score_jax.data.records import Segment
from t5score_jax.errors import InputError
from t5score_jax.evaluation import paired_tests
from t5score_jax.metrics import registry
from t5score_jax.metrics import systems as system_values

WORDS = 'the a cat dog sat ran on under mat tree quickly today not'.split()


def run(*arguments):
  return cli.main(['compare', *map(str, arguments)])


def texts(count=80, seed=0):
  """References and three systems that change more and more words."""
  rng = np.random.default_rng(seed)
  references = [
    ' '.join(rng.choice(WORDS, size=rng.integers(5, 15))) for _ in range(count)
  ]
  systems = {}
  for name, noise in (('base', 0.3), ('same', 0.31), ('poor', 0.5)):
    systems[name] = [
      ' '.join(
        str(rng.choice(WORDS)) if rng.random() < noise else word
        for word in text.split()
      )
      for text in references
    ]
  return references, systems


@pytest.fixture
def folder(tmp_path):
  references, systems = texts()
  (tmp_path / 'ref.txt').write_text('\n'.join(references) + '\n')
  for name, lines in systems.items():
    (tmp_path / f'{name}.txt').write_text('\n'.join(lines) + '\n')
  return tmp_path


@pytest.mark.parametrize(
  'name, theirs', [('bleu', BLEU), ('chrf', CHRF), ('ter', TER)]
)
def test_p_values_are_sacrebleus(folder, capsys, monkeypatch, name, theirs):
  monkeypatch.setenv('SACREBLEU_SEED', '77')
  references, systems = texts()
  code = run(
    '-m', name, '-r', folder / 'ref.txt', '--seed', 77, '--table', 'json',
    '--bootstrap', 300, '--randomisations', 400,
    '--bootstrap-p', 'sacrebleu',
    '-t', *(folder / f'{s}.txt' for s in systems),
  )  # fmt: skip
  assert code == 0
  (found,) = json.loads(capsys.readouterr().out)['results']
  sign = -1 if name == 'ter' else 1
  for kind, samples in (('bs', 300), ('ar', 400)):
    _, expected = PairedTest(
      list(systems.items()), {name: theirs()}, [references], kind, samples
    )()
    (column,) = (c for key, c in expected.items() if key != 'System')
    for ours, other in zip(found['systems'], column, strict=True):
      assert sign * ours['value'] == pytest.approx(other.score)
    for ours, other in zip(found['comparisons'], column[1:], strict=True):
      field = 'bootstrap_p' if kind == 'bs' else 'randomisation_p'
      # sacrebleu does not count a draw that equals the seen difference.
      assert ours[field] == pytest.approx(other.p_value, abs=2 / samples)
      if kind == 'bs':
        low, high = found['systems'][1]['interval']
        assert (high - low) / 2 == pytest.approx(column[1].ci, rel=0.15)


def systems_of(*rows):
  return [
    paired_tests.of_means(name, np.array(row, float))
    for name, row in zip('ABCD', rows, strict=False)
  ]


def test_randomisation_is_that_of_all_exchanges():
  a, b = [3.0, 1, 4, 1, 5, 9, 2], [2.0, 7, 1, 0, 2, 8, 1]
  difference = np.array(a) - np.array(b)
  seen = abs(difference.mean())
  exact = np.mean(
    [
      abs(np.dot(signs, difference)) / 7 >= seen - 1e-12
      for signs in itertools.product((-1, 1), repeat=7)
    ]
  )
  found = paired_tests.compare(systems_of(a, b), [(0, 1)]).rows[0]
  assert found.randomisation_p == pytest.approx(exact, abs=1e-12)
  found = paired_tests.compare(
    systems_of(a, b), [(0, 1)], randomisations=127
  ).rows[0]
  assert found.randomisation_p == pytest.approx(exact, abs=0.1)
  assert found.segments == (6, 1, 0)
  assert found.difference == pytest.approx(difference.mean())


def test_systems_that_score_alike_do_not_differ():
  scores = [1, 2, 3, 4, 5, 7]
  for rule in paired_tests.RULES:
    found = paired_tests.compare(
      systems_of(scores, scores), [(0, 1)], rule=rule
    )
    (row,) = found.rows
    assert (row.bootstrap_p, row.randomisation_p) == (1.0, 1.0)
    assert row.wins == (0.0, 0.0, 1.0) and row.segments == (0, 0, 6)


def test_the_bootstrap_rejects_true_null_hypotheses_at_its_level():
  rng = np.random.default_rng(5)
  rejected = dict.fromkeys(paired_tests.RULES, 0)
  for seed in range(400):
    systems = systems_of(*rng.normal(size=(2, 100)))
    for rule in rejected:
      (row,) = paired_tests.compare(
        systems,
        [(0, 1)],
        resamples=300,
        randomisations=0,
        seed=seed,
        rule=rule,
      ).rows
      rejected[rule] += row.bootstrap_p < 0.05
  # Four standard errors of a share of .05 in 400 trials are .044.
  assert rejected['centred'] / 400 < 0.05 + 0.044
  assert rejected['sacrebleu'] > 1.3 * rejected['centred']


def test_a_few_segments_have_no_bootstrap_p_value(tmp_path, capsys):
  for n in (2, 5):
    one, other = np.arange(n) + 3.0, np.zeros(n)
    found = paired_tests.compare(systems_of(one, other), [(0, 1)])
    assert found.rows[0].bootstrap_p is None
    # All exchanges: only none and all of them are as extreme.
    assert found.rows[0].randomisation_p == pytest.approx(2 / 2**n)
    assert f'{n} segments' in found.notes[0]
  path = tmp_path / 'two.tsv'
  path.write_text(
    'system\tsegment\tscore\nA\t1\t1\nB\t1\t2\nA\t2\t1\nB\t2\t3\n'
  )
  assert run(path) == 0
  text = capsys.readouterr().out
  assert ' -  ' in text and '0.5000' in text
  assert text.count('cannot show significance') == 1


def test_one_file_given_twice_is_noted(tmp_path, capsys):
  rows = ''.join(f'{n}\t{n % 7}\n' for n in range(30))
  for name in ('one', 'copy'):
    (tmp_path / f'{name}.tsv').write_text(f'segment\tscore\n{rows}')
    (tmp_path / f'{name}.txt').write_text(rows)
  files = [tmp_path / 'one', tmp_path / 'copy']
  one, copy = (f'{path.name}={path}.tsv' for path in files)
  assert run(one, copy) == 0
  assert 'copy has the scores of one, all of' in capsys.readouterr().out
  texts = [path.with_suffix('.txt') for path in files]
  assert run('-m', 'chrf', '-r', texts[0], '-t', *texts) == 0
  assert 'copy has the texts of one, all of' in capsys.readouterr().out


def test_few_segments_are_noted():
  rng = np.random.default_rng(0)
  for n, noted in ((6, True), (29, True), (30, False)):
    systems = systems_of(*rng.normal(size=(2, n)))
    notes = paired_tests.compare(systems, [(0, 1)], resamples=10).notes
    assert bool(notes) == noted
    assert all(f'{n} segments are few' in note for note in notes)


@given(
  st.integers(3, 12).flatmap(
    lambda n: hnp.arrays(
      np.float64, (2, n), elements=st.floats(-9, 9).map(lambda x: round(x, 2))
    )
  ),
  st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_comparisons_mirror_and_are_whole(scores, random):
  options = {'resamples': 60, 'randomisations': 60}
  systems = systems_of(*scores)
  one, other = paired_tests.compare(systems, [(0, 1), (1, 0)], **options).rows
  assert one.difference == -other.difference
  assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
  assert one.bootstrap_p == other.bootstrap_p
  assert one.wins == (other.wins[1], other.wins[0], other.wins[2])
  assert sum(one.wins) == pytest.approx(1) and sum(one.segments) == len(
    scores[0]
  )
  assert one.bootstrap_p is None or 0 < one.bootstrap_p <= 1
  assert 0 < one.randomisation_p <= 1
  shift = paired_tests.compare(
    systems_of(*(scores + 100)), [(0, 1)], **options
  ).rows[0]
  assert shift.difference == pytest.approx(one.difference, abs=1e-9)


def test_a_clear_difference_is_found_and_a_small_one_is_not():
  rng = np.random.default_rng(0)
  a = rng.normal(size=200)
  found = paired_tests.compare(
    systems_of(a, a + 0.01 * rng.normal(size=200), a - 1), [(1, 0), (2, 0)]
  )
  small, clear = found.rows
  assert small.bootstrap_p > 0.05 and small.randomisation_p > 0.05
  assert clear.bootstrap_p < 0.01 and clear.randomisation_p < 0.01
  assert clear.wins[1] == 1.0 and clear.high < 0


def test_systems_that_cannot_be_compared():
  a, b = systems_of([1, 2, 3], [1, 2])
  with pytest.raises(InputError):
    paired_tests.compare([a], [])
  with pytest.raises(InputError):
    paired_tests.compare([a, b], [(0, 1)])
  with pytest.raises(InputError):
    paired_tests.compare(systems_of([1], [2]), [(0, 1)])
  with pytest.raises(InputError):
    paired_tests.of_means('A', np.array([1, np.nan]))
  with pytest.raises(InputError):
    paired_tests.compare(
      systems_of([1, 2], [2, 3]), [(0, 1)], randomisations=-1
    )


def test_score_files_are_compared_by_mean(folder, capsys):
  for name, values in {'A': [1, 2, 3, 5], 'B': [2, 2, 1, 0]}.items():
    with open(folder / f'{name}.jsonl', 'w') as out:
      for n, value in enumerate(values):
        row = {'segment': str(n), 'score': value}
        out.write(json.dumps(row) + '\n')
  files = [f'old={folder / "A.jsonl"}', f'new={folder / "B.jsonl"}']
  assert run(*files, '--table', 'json', '--seed', 4) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['seed'] == 4
  (result,) = found['results']
  assert [s['value'] for s in result['systems']] == [2.75, 1.25]
  (row,) = result['comparisons']
  assert (row['first'], row['second']) == ('new', 'old')
  assert row['segments'] == [1, 2, 1]
  assert run(*files) == 0
  text = capsys.readouterr().out
  assert '-1.5000' in text and '1000 bootstrap' in text and '4 seed' not in text


def test_a_file_of_several_systems_and_language_pairs(folder, capsys):
  path = folder / 'all.tsv'
  lines = ['lp\tsystem\tsegment\tm']
  for pair, systems in (('de-en', 'ABC'), ('en-de', 'CA')):
    for k, system in enumerate(systems):
      lines += [f'{pair}\t{system}\t{n}\t{k + n % 3}' for n in range(5)]
  path.write_text('\n'.join(lines) + '\n')
  arguments = [path, '--score', 'm', '--table', 'json', '--baseline', 'C']
  assert run(*arguments) == 0
  first, second = json.loads(capsys.readouterr().out)['results']
  assert first['language_pair'] == 'de-en'
  assert [r['first'] for r in first['comparisons']] == ['A', 'B']
  differences = [r['difference'] for r in first['comparisons']]
  assert differences == pytest.approx([-2, -1])
  assert [r['first'] for r in second['comparisons']] == ['A']
  assert run(path, '--score', 'm', '--all-pairs', '--table', 'markdown') == 0
  assert '| A      |     B |' in capsys.readouterr().out


def test_missing_segments_stop_unless_intersected(folder, capsys):
  path = folder / 'all.tsv'
  lines = [f'{s}\t{n}\t{n}' for s in 'AB' for n in range(4)][:-1]
  path.write_text('system\tsegment\tscore\n' + '\n'.join(lines) + '\n')
  assert run(path) == 1
  message = capsys.readouterr()
  assert "'3', which 'B'" in message.err and not message.out
  assert run(path, '--intersect') == 0
  assert '1 of 4 segments left out' in capsys.readouterr().out


@pytest.mark.parametrize(
  'arguments, code, message',
  [
    ([], 2, 'give score files, or texts'),
    (['a.tsv', '-t', 'base.txt'], 2, '-t is for texts without score files'),
    (['one.tsv'], 1, 'needs two'),
    (['bare.tsv'], 1, 'give NAME=FILE'),
    (['one.tsv', '--score', 'x'], 1, "no column 'x'"),
    (['two.tsv', '--baseline', 'Z'], 2, "no system 'Z'"),
    (['two.tsv', '-m', 'chrf'], 2, '-m is for texts'),
    (['two.tsv', '--direction', 'f'], 2, '--direction is for texts'),
    (['two.tsv', '-r', 'ref.txt'], 2, '-r is for texts'),
    (['two.tsv', '--option', 'beta=1'], 2, '--option is for texts'),
    (['two.tsv', '--mqm-weights', 'Major:5'], 2, 'MQM errors, which no file'),
    (['-t', 'base.txt', '--score', 'x'], 2, '--score is for score files'),
    (['-t', 'base.txt', '--where', 'a=b'], 2, '--where is for score files'),
    (['-t', 'base.txt', '--columns', 'a=b'], 2, '--columns is for score files'),
    (['two.tsv', '--baseline', 'A', '--all-pairs'], 2, '--baseline or'),
    (['n=two.tsv'], 1, 'this one has 2'),
    (['two.tsv', 'one.tsv'], 1, 'one.tsv, line 2'),
    (['-t', 'base.txt', '-m', 'chrf'], 1, 'exactly'),
    (['nowhere.tsv'], 1, 'nowhere.tsv'),
    (['n=one.tsv', 'two.tsv', '-o', 'one.tsv'], 2, 'is an input too'),
    (['-t', 'n=base.txt', '-m', 'chrf', '-o', 'base.txt'], 2, 'is an input'),
    (['two.tsv', '-o', 'none/x'], 1, 'no folder'),
  ],
)
def test_contradictions_are_usage_errors(
  folder, capsys, monkeypatch, arguments, code, message
):
  monkeypatch.chdir(folder)
  head = 'system\tsegment\tscore\n'
  (folder / 'one.tsv').write_text(head + 'A\t1\t1\nA\t2\t2\n')
  (folder / 'two.tsv').write_text(head + 'A\t1\t1\nB\t1\t2\nA\t2\t1\nB\t2\t1\n')
  (folder / 'bare.tsv').write_text('segment\tscore\n1\t2\n')
  if '-t' in arguments and message == 'exactly':
    message = 'needs references'
  assert run(*arguments) == code
  captured = capsys.readouterr()
  assert message in captured.err and captured.err.count('\n') == 1
  assert captured.out == ''


@pytest.mark.parametrize(
  'arguments',
  [
    ['--bootstrap', '0'],
    ['--bootstrap', '-1'],
    ['--digits', '-1'],
    ['--randomisations', '-1'],
    ['--seed', '-1'],
    ['--tokens'],
  ],
)
def test_numbers_out_of_range(capsys, arguments):
  with pytest.raises(SystemExit) as done:
    run('two.tsv', *arguments)
  assert done.value.code == 2
  err = capsys.readouterr().err
  assert 'must be' in err or 'unknown flag --tokens' in err


def test_texts_with_ids_are_aligned_by_segment(folder, capsys):
  rows = [
    {'system': s, 'segment': n, 'hypothesis': f'{s} {n}', 'reference': f'A {n}'}
    for s, order in (('A', '123'), ('B', '321'))
    for n in order
  ]
  path = folder / 'in.jsonl'
  path.write_text('\n'.join(json.dumps(row) for row in rows) + '\n')
  arguments = ['-m', 'chrf', '--input', path, '--randomisations', 0]
  assert run(*arguments, '--table', 'json') == 0
  found = json.loads(capsys.readouterr().out)
  (row,) = found['results'][0]['comparisons']
  assert row['segments'] == [0, 3, 0]
  assert any('metric:chrF' in note for note in found['notes'])
  path.write_text('\n'.join(json.dumps(row) for row in rows[:-1]) + '\n')
  assert run(*arguments) == 1
  assert "the first is '1'" in capsys.readouterr().err


def test_corpus_statistics_are_resampled_not_means():
  references, systems = texts(30)
  metric = registry.load_metric('bleu')
  scored = metric.score_segments(
    [
      Segment(h, references=(r,))
      for h, r in zip(systems['base'], references, strict=True)
    ]
  )
  system = system_values.as_system('base', scored, list(range(30)))
  assert system.value == pytest.approx(
    BLEU().corpus_score(systems['base'], [references]).score
  )
  assert system.value != pytest.approx(float(np.mean(scored.values)))


def test_a_language_pair_is_chosen(tmp_path, capsys):
  lines = ['lp\tsystem\tsegment\tscore']
  lines += [
    f'{p}\t{s}\t{n}\t{n}' for p in ('a-b', 'c-d') for s in 'AB' for n in (1, 2)
  ]
  (tmp_path / 's.tsv').write_text('\n'.join(lines) + '\n')
  words = tmp_path / 's.tsv', '--table', 'json', '--language-pair'
  assert run(*words, 'c-d') == 0
  (result,) = json.loads(capsys.readouterr().out)['results']
  assert result['language_pair'] == 'c-d'
  assert run(*words, 'x-y') == 1
  assert "no language pair 'x-y'" in capsys.readouterr().err


def test_one_metric_is_compared(tmp_path, capsys):
  with pytest.raises(SystemExit) as end:
    cli.main(['compare', '-m', 'chrf', '-m', 'bleu', '-r', 'r', '-t', 'a', 'b'])
  assert end.value.code == 2
  assert '-m' in capsys.readouterr().err
