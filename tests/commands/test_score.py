"""`t5score score` on files, as a user would run it."""

import gzip
import io
import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.inference import placement, scoring
from t5score_jax.metrics import registry
from tests.commands.conftest import REFERENCES, SECOND, A, B, lines_of


def test_scores_are_those_of_python(run, metric):
  shown = run('-r', 'ref.txt', '-t', 'A.txt', 'B.txt')
  rows = lines_of(shown.out)
  assert [(r['system'], r['segment']) for r in rows] == [
    (system, str(n)) for system in 'AB' for n in (1, 2, 3)
  ]
  wanted = metric.score(A + B, REFERENCES * 2)
  np.testing.assert_allclose(
    [r['score'] for r in rows], wanted.values, rtol=0, atol=1e-6
  )
  for name, column in wanted.components.items():
    np.testing.assert_allclose([r[name] for r in rows], column, atol=1e-6)
  assert list(rows[0]) == ['system', 'segment', 'score', 'precision', 'recall']


def test_ids_of_records_and_renamed_columns(run, folder, metric):
  (folder / 'in.tsv').write_text(
    'lp\tsystem\tdocument\tsegment\tref_A\thyp\n'
    'de-en\tX\td1\t7\tthe cat\ta cat\n'
    'de-en\tY\td1\t7\tthe cat\tmusic\n'
  )
  columns = 'language_pair=lp,reference=ref_A,hypothesis=hyp'
  shown = run('--input', 'in.tsv', '--columns', columns)
  rows = lines_of(shown.out)
  assert list(rows[0].items())[:4] == [
    ('system', 'X'),
    ('document', 'd1'),
    ('segment', '7'),
    ('language_pair', 'de-en'),
  ]
  wanted = metric.score(['a cat', 'music'], ['the cat'] * 2).values
  np.testing.assert_allclose([r['score'] for r in rows], wanted, atol=1e-6)
  assert 'language pair' in shown.err


def test_order_is_that_of_the_input(run, folder, metric):
  texts = [('a ' * (n * 7 % 30), f'the cat {n}') for n in range(30)]
  with gzip.open(folder / 'in.jsonl.gz', 'wt') as out:
    for n, (hypothesis, reference) in enumerate(texts):
      row = {'segment': n, 'hypothesis': hypothesis, 'reference': reference}
      out.write(json.dumps(row) + '\n')
  rows = lines_of(run('--input', 'in.jsonl.gz').out)
  assert [row['segment'] for row in rows] == [str(n) for n in range(30)]
  alone = [metric.score([h], [r]).values[0] for h, r in texts[::6]]
  np.testing.assert_allclose(
    [row['score'] for row in rows[::6]], alone, rtol=0, atol=1e-5
  )


def test_gzip_in_and_out(run, folder):
  plain = run('-m', 'chrf', '-r', 'ref.txt', '-t', 'A=A.txt', '--quiet').out
  for name in ('A.txt', 'ref.txt'):
    data = gzip.compress((folder / name).read_bytes())
    (folder / f'{name}.gz').write_bytes(data)
  run('-m', 'chrf', '-r', 'ref.txt.gz', '-t', 'A.txt.gz', '-o', 'out.jsonl.gz')
  with gzip.open(folder / 'out.jsonl.gz', 'rt') as lines:
    assert lines.read() == plain


def test_standard_input(run, monkeypatch):
  def give(text):
    stream = types.SimpleNamespace(buffer=io.BytesIO(text.encode()))
    stream.buffer = io.BufferedReader(stream.buffer)
    monkeypatch.setattr(sys, 'stdin', stream)

  give('{"hypothesis": "a cat", "reference": ["the cat", "music"]}\n')
  (row,) = lines_of(run('--input', '-').out)
  assert row['score'] < 0
  give('a cat\n\nthis town\n')
  rows = lines_of(run('-r', 'ref.txt', '-t', '-').out)
  assert [row['system'] for row in rows] == ['stdin'] * 3


def test_several_references_and_sources(run, metric):
  shown = run('-r', 'ref.txt', 'ref2.txt', '-t', 'A.txt', '--several', 'mean')
  each = [metric.score(A, texts).values for texts in (REFERENCES, SECOND)]
  np.testing.assert_allclose(
    [row['score'] for row in lines_of(shown.out)], np.mean(each, 0), atol=1e-5
  )
  assert 'nrefs:2|refs:mean' in shown.err
  # Flags that are repeated add files, and none is dropped.
  again = run(
    *('-r', 'ref.txt', '-t', 'A.txt', '-r', 'ref2.txt', '--several', 'mean')
  )
  assert again.out == shown.out
  both = run('-r', 'ref.txt', '-t', 'A.txt', '-t', 'B.txt')
  assert {row['system'] for row in lines_of(both.out)} == {'A', 'B'}
  shown = run('-s', 'src.txt', '-t', 'A.txt', '--direction', 'source')
  assert 'conditioning:source' in shown.err


@pytest.mark.parametrize('flag', ['-s', '--input'])
def test_files_of_which_there_is_one_are_not_given_twice(run, capsys, flag):
  with pytest.raises(SystemExit) as end:
    run(flag, 'src.txt', flag, 'ref.txt', '-t', 'A.txt')
  error = capsys.readouterr().err
  assert end.value.code == 2 and flag in error and 'given twice' in error


def test_options_reach_the_model(run):
  shown = run(
    *('-r', 'ref.txt', '-t', 'A.txt', '--direction', 'recall'),
    *('--max-length', 4, '--dtype', 'bfloat16', '--batch-tokens', 64),
  )
  assert 'direction:recall|' in shown.err
  assert '|length:4|' in shown.err
  assert 'dtype:bfloat16' in shown.err
  assert 'longer than the model reads' in shown.err


def test_batch_tokens_do_not_change_scores(run):
  first, other = (
    [r['score'] for r in lines_of(run('-r', 'ref.txt', '-t', 'A.txt', *o).out)]
    for o in ((), ('--batch-tokens', 1))
  )
  np.testing.assert_allclose(first, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
  'name', ['bleu', 'chrf', 'chrf++', 'ter', 'rouge1', 'rouge-2', 'rougeL']
)
def test_metrics_without_a_model(run, name):
  shown = run('-m', name, '-r', 'ref.txt', 'ref2.txt', '-t', 'A.txt')
  wanted = registry.load_metric(name).score(
    A, list(zip(REFERENCES, SECOND, strict=True))
  )
  np.testing.assert_allclose(
    [row['score'] for row in lines_of(shown.out)], wanted.values, atol=1e-6
  )
  assert wanted.signature in shown.err
  assert f'{wanted.system:.4f}' in shown.err


def test_nothing_to_score_is_an_error(fails, folder):
  (folder / 'empty').touch()
  (folder / 'head.tsv').write_text('hypothesis\treference\n')
  for words in (['-r', 'empty', '-t', 'empty'], ['--input', 'head.tsv']):
    error = fails(*words, '-o', 'out.jsonl')
    assert words[-1] in error and not (folder / 'out.jsonl').exists()


def _break(folder, name, data):
  (folder / name).write_bytes(data)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ('-r short.txt -t A.txt', 'short.txt, line 3: the file ends after 2'),
    ('-r ref.txt -t bad.txt', 'bad.txt, line 2'),
    ('-r absent.txt -t A.txt', 'absent.txt'),
    ('-r cut.gz -t A.txt', 'cut.gz, line 4: the gzip data is damaged'),
    ('--input fields.tsv', "fields.tsv, line 1, field 'hypothesis'"),
    ('--input ragged.tsv', "ragged.tsv, line 3, field 'reference'"),
    ('--input torn.jsonl', 'torn.jsonl, line 2: not JSON'),
    ('--input good.tsv --columns reference=ref_Z', "no column 'ref_Z'"),
    ('-t A.txt', 'T5Score needs references'),
    ('-r ref.txt -t A.txt --direction source', 'T5Score needs sources'),
    ('-r ref.txt -t A.txt -m absent', "no model 'absent'"),
    ('-r ref.txt -t A.txt -m blue', "did you mean 'bleu'? There are: "),
    ('-r ref.txt -t A.txt -m t5score-tinny', "mean 't5score-tiny'? Metrics: "),
    ('-r ref.txt -t A.txt -o no/out.jsonl', 'there is no folder'),
    ('-r ref.txt -t A.txt -o .', 'it is a folder'),
  ],
)
def test_errors_say_what_and_leave_nothing(fails, folder, arguments, message):
  _break(folder, 'short.txt', b'a\nb\n')
  _break(folder, 'bad.txt', b'a\n\xff\xfe\nc\n')
  _break(folder, 'cut.gz', gzip.compress(b'a\n' * 3)[:-9])
  _break(folder, 'fields.tsv', b'text\treference\na\tb\n')
  _break(folder, 'ragged.tsv', b'hypothesis\treference\na\tb\nc\n')
  _break(folder, 'torn.jsonl', b'{"hypothesis": "a"}\n{"hypo\n')
  _break(folder, 'good.tsv', b'hypothesis\treference\na\tb\n')
  before = sorted(folder.iterdir())
  if '-o' not in arguments:
    arguments += ' -o out.jsonl'
  assert message in fails(*arguments.split())
  assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ('-r ref.txt', 'no hypotheses: give -t HYP, or --input FILE'),
    ('--input x.tsv -t A.txt', 'give either --input'),
    ('-t A.txt -r ref.txt --columns a=b', '--columns is for --input'),
    ('--input x.tsv --columns reference', '--columns takes FIELD=COLUMN'),
    ('-t - -r -', 'standard input (-) can be only one'),
    ('-t A.txt A=B.txt -r ref.txt', "two systems are called 'A'"),
    ('-m bleu --dtype float32 -t A.txt -r ref.txt', '--dtype is not for bleu'),
    ('--tokens --format tsv -t A.txt -r ref.txt', '--tokens is for --format'),
    ('-t A.txt --option tokenize', '--option takes NAME=VALUE'),
    ('-t A.txt --option dtype=x', '--option dtype: give --dtype'),
    ('-m chrf -t A.txt -r ref.txt --option worder=2', "no option 'worder'"),
    ('-t A.txt --source-based --direction ref_src', '--source-based'),
    ('-t A.txt -m chrff', "did you mean 'chrf"),
    ('-t A.txt -m frugalscore-tinny', "did you mean 'frugalscore-tiny'? The"),
    ('-t A.txt -r ref.txt -m bleu --option tokenize=x', "tokenize 'x'"),
    ('-t A.txt -r ref.txt --max-length 1', 'max_length 1: at least 2'),
    ('-t A.txt -r ref.txt -o A.txt', '-o A.txt: is an input too'),
    ('-t x=A.txt -r ref.txt -o ./A.txt', '-o ./A.txt: is an input too (A.txt)'),
    ('-t A.txt -r B.txt ref.txt -o ref.txt', '-o ref.txt: is an input too'),
    ('-t A.txt -s src.txt -o src.txt', '-o src.txt: is an input too'),
    ('--input ref.txt -o ref.txt', '-o ref.txt: is an input too'),
    ('-m bertscore --option idf=B.txt -t A.txt -r ref.txt -o B.txt', 'B.txt'),
  ],
)
def test_contradictions_are_usage_errors(fails, folder, arguments, message):
  before = {path: path.read_bytes() for path in folder.iterdir()}
  assert message in fails(*arguments.split(), code=2)
  assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
  'arguments',
  ['--direction g', '--batch-tokens 0', '--bootstrap -1', '--format csv'],
)
def test_values_out_of_range_are_usage_errors(folder, capsys, arguments):
  with pytest.raises(SystemExit) as caught:
    cli.main(['score', '-t', 'A.txt', '-r', 'ref.txt', *arguments.split()])
  assert caught.value.code == 2
  assert arguments.split()[0] in capsys.readouterr().err


@pytest.mark.parametrize(
  ('error', 'message'),
  [
    (placement.ScoringError('not finite'), 'not finite'),
    (RuntimeError('RESOURCE_EXHAUSTED: Out of memory'), '--batch-tokens'),
  ],
)
def test_failures_of_the_model(fails, monkeypatch, error, message):
  def fail(*arguments, **options):
    raise error

  monkeypatch.setattr(scoring.Scorer, 'score_pairs', fail)
  assert message in fails('-r', 'ref.txt', '-t', 'A.txt')


def test_scoring_loads_no_tensorflow_no_seqio_and_no_orbax(
  folder, random_bundle
):
  arguments = [
    'score',
    '-m',
    str(random_bundle),
    '-r',
    'ref.txt',
    '-t',
    'A.txt',
  ]
  program = (
    'import sys\n'
    'from t5score_jax import cli\n'
    f'code = cli.main({arguments + ["-o", "out"]!r})\n'
    "heavy = {'tensorflow', 'seqio', 'orbax', 'torch'} & set(sys.modules)\n"
    "sys.exit(f'{code} {heavy}' if code or heavy else 0)\n"
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr


def test_names_are_utf_8_in_any_locale(tmp_path):
  (tmp_path / 'prüfung.txt').write_text('a b\n')
  (tmp_path / 'r.txt').write_text('a c\n')
  for more in (['prüfung2=r.txt'], ['-o', 'scores.jsonl']):
    done = subprocess.run(
      [
        *(sys.executable, '-m', 't5score_jax.cli', 'score', '-m', 'chrf'),
        *('-r', 'r.txt', '-t', 'prüfung.txt', *more),
      ],
      cwd=tmp_path,
      env={
        **os.environ,
        **{'LC_ALL': 'POSIX', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'},
      },
      capture_output=True,
      timeout=120,
    )
    assert done.returncode == 0, done.stderr
  row = json.loads((tmp_path / 'scores.jsonl').read_text('utf-8'))
  assert row['system'] == 'prüfung'
  assert rb'pr\xfcfung' in done.stdout


def test_equal_systems_and_few_segments_are_noted(run):
  shown = run('-m', 'chrf', '-r', 'ref.txt', '-t', 'A.txt', 'again=A.txt')
  assert 'note: again has the texts of A, all of them' in shown.err
  few = 'note: 3 segments cannot show significance'
  assert few in shown.err
  words = '-m', 'chrf', '-m', 'bleu', '-r', 'ref.txt', '-t', 'A.txt'
  for more, twice in ((['B.txt'], 0), (['A.txt'], 1)):
    shown = run(*words, *more)
    assert shown.out.count('has the texts of A') == twice
    assert shown.out.count(few) == 1
  shown = run(*words[:2], *words[4:], 'B.txt', '--bootstrap', 0)
  assert 'note' not in shown.err


def test_repeated_ids_are_noted(run, folder):
  row = {'system': 'A', 'hypothesis': 'a', 'reference': 'a'}
  path = folder / 'in.jsonl'
  rows = [{**row, 'segment': s, 'document': d} for s, d in ('1x', '1y', '1x')]
  path.write_text('\n'.join(map(json.dumps, rows)) + '\n')
  shown = run('-m', 'chrf', '--input', path)
  assert (
    "1 segments have the ids of earlier ones, the first ('A', 'x', '1')"
    in (shown.err)
  )
  path.write_text('\n'.join(map(json.dumps, [row, row, *rows[:2]])) + '\n')
  assert 'have the ids' not in run('-m', 'chrf', '--input', path).err


@pytest.mark.parametrize(
  'arguments',
  [
    ['--bootstrap', '1_0'],
    ['--bootstrap', '1'],
    ['--seed', ' 7'],
    ['--seed', '٣'],
    ['--max-length', '1_0'],
  ],
)
def test_numbers_of_flags_are_read_strictly(folder, capsys, arguments):
  with pytest.raises(SystemExit):
    cli.main(['score', '-t', 'A.txt', '-r', 'ref.txt', *arguments])
  assert arguments[0] in capsys.readouterr().err
