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

import t5score_jax
from t5score_jax import cli
from t5score_jax.commands import _metric_arguments, _score_output
from t5score_jax.data import records
from t5score_jax.inference import scoring
from t5score_jax.metrics import base, registry

REFERENCES = ['the cat sees the moon.', 'a dog follows music.', 'this town']
SECOND = ['her bicycle', 'a dog', 'this town repairs music.']
SOURCES = ['die Katze', 'ein Hund', 'diese Stadt']
A = ['a cat sees music.', '', 'this town']
B = ['the moon', 'a dog follows the old ship.', 'some bread']


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Parallel files; the test runs in their folder."""
  for name, texts in {
    'ref.txt': REFERENCES,
    'ref2.txt': SECOND,
    'src.txt': SOURCES,
    'A.txt': A,
    'B.txt': B,
  }.items():
    (tmp_path / name).write_text(''.join(f'{text}\n' for text in texts))
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.fixture
def run(folder, random_bundle, capsys):
  """Runs the verb with the random model, unless -m is given."""

  def call(*arguments, code=0):
    arguments = [str(a) for a in arguments]
    if '-m' not in arguments:
      arguments = ['-m', str(random_bundle), *arguments]
    assert cli.main(['score', *arguments]) == code
    return capsys.readouterr()

  return call


@pytest.fixture(scope='module')
def metric(random_bundle):
  return t5score_jax.load(str(random_bundle))


def _lines(text):
  return [json.loads(line) for line in text.splitlines()]


def _fails(run, *arguments, code=1):
  """The one line that the run says, and no output."""
  shown = run(*arguments, code=code)
  assert shown.out == ''
  assert shown.err.count('\n') == 1
  assert shown.err.startswith('t5score score: ')
  return shown.err


def test_choices_are_those_of_the_metric():
  assert _metric_arguments.DTYPES == scoring.DTYPES


def test_scores_are_those_of_python(run, metric):
  shown = run('-r', 'ref.txt', '-t', 'A.txt', 'B.txt')
  rows = _lines(shown.out)
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


def test_summary(run, metric):
  shown = run('-r', 'ref.txt', '-t', 'one=A.txt', 'B.txt')
  segments = records.read_parallel({'one': 'A.txt', 'B': 'B.txt'}, ['ref.txt'])
  scores = metric.score_segments(segments)
  one, two = base.system_scores(segments, scores)
  header, first, second, signature = shown.err.splitlines()
  assert header.split() == ['system', 'segments', 'score', '95%', 'interval']
  for line, entry in ((first, one), (second, two)):
    assert line.split() == [
      entry.system,
      '3',
      f'{entry.value:.4f}',
      f'[{entry.low:.4f},',
      f'{entry.high:.4f}]',
    ]
  assert signature == f'signature: {scores.signature}'
  assert '|direction:f|conditioning:reference|nrefs:1|' in signature


def test_summary_goes_where_the_scores_do_not(run, folder):
  on_screen = run('-r', 'ref.txt', '-t', 'A.txt')
  to_file = run('-r', 'ref.txt', '-t', 'A.txt', '-o', 'out.jsonl')
  assert to_file.out == on_screen.err
  assert to_file.err == ''
  assert (folder / 'out.jsonl').read_text() == on_screen.out


def test_quiet_and_no_intervals(run):
  quiet = run('-r', 'ref.txt', '-t', 'A.txt', '--quiet')
  assert quiet.err == ''
  assert len(_lines(quiet.out)) == 3
  shown = run('-r', 'ref.txt', '-t', 'A.txt', '--bootstrap', 0)
  assert 'interval' not in shown.err


def test_seed_moves_the_interval(run):
  first, other = (
    run('-r', 'ref.txt', '-t', 'A.txt', '--bootstrap', 7, '--seed', s).err
    for s in (1, 2)
  )
  assert first != other


def test_text_and_tsv(run, folder):
  arguments = ('-r', 'ref.txt', '-t', 'A.txt')
  rows = _lines(run(*arguments).out)
  text = run(*arguments, '--format', 'text').out
  assert [float(line) for line in text.splitlines()] == [
    row['score'] for row in rows
  ]
  run(*arguments, '-o', 'out.tsv')  # the name says the format
  header, *lines = (folder / 'out.tsv').read_text().splitlines()
  assert header.split('\t') == [
    *('system', 'segment', 'score', 'precision', 'recall')
  ]
  for line, row in zip(lines, rows, strict=True):
    assert [float(cell) for cell in line.split('\t')[2:]] == [
      row[name] for name in ('score', 'precision', 'recall')
    ]


def test_ids_of_records_and_renamed_columns(run, folder, metric):
  (folder / 'in.tsv').write_text(
    'lp\tsystem\tdocument\tsegment\tref_A\thyp\n'
    'de-en\tX\td1\t7\tthe cat\ta cat\n'
    'de-en\tY\td1\t7\tthe cat\tmusic\n'
  )
  columns = 'language_pair=lp,reference=ref_A,hypothesis=hyp'
  shown = run('--input', 'in.tsv', '--columns', columns)
  rows = _lines(shown.out)
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
  rows = _lines(run('--input', 'in.jsonl.gz').out)
  assert [row['segment'] for row in rows] == [str(n) for n in range(30)]
  alone = [metric.score([h], [r]).values[0] for h, r in texts[::6]]
  np.testing.assert_allclose(
    [row['score'] for row in rows[::6]], alone, rtol=0, atol=1e-5
  )


def test_gzip_in_and_out(run, folder):
  plain = run('-r', 'ref.txt', '-t', 'A=A.txt', '--quiet').out
  for name in ('A.txt', 'ref.txt'):
    data = gzip.compress((folder / name).read_bytes())
    (folder / f'{name}.gz').write_bytes(data)
  run('-r', 'ref.txt.gz', '-t', 'A.txt.gz', '-o', 'out.jsonl.gz')
  with gzip.open(folder / 'out.jsonl.gz', 'rt') as lines:
    assert lines.read() == plain


def test_standard_input(run, monkeypatch):
  def give(text):
    stream = types.SimpleNamespace(buffer=io.BytesIO(text.encode()))
    stream.buffer = io.BufferedReader(stream.buffer)
    monkeypatch.setattr(sys, 'stdin', stream)

  give('{"hypothesis": "a cat", "reference": ["the cat", "music"]}\n')
  (row,) = _lines(run('--input', '-').out)
  assert row['score'] < 0
  give('a cat\n\nthis town\n')
  rows = _lines(run('-r', 'ref.txt', '-t', '-').out)
  assert [row['system'] for row in rows] == ['stdin'] * 3


def test_several_references_and_sources(run, metric):
  shown = run('-r', 'ref.txt', 'ref2.txt', '-t', 'A.txt', '--several', 'mean')
  each = [metric.score(A, texts).values for texts in (REFERENCES, SECOND)]
  np.testing.assert_allclose(
    [row['score'] for row in _lines(shown.out)], np.mean(each, 0), atol=1e-5
  )
  assert 'nrefs:2|refs:mean' in shown.err
  shown = run('-s', 'src.txt', '-t', 'A.txt', '--direction', 'source')
  assert 'conditioning:source' in shown.err


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
    [r['score'] for r in _lines(run('-r', 'ref.txt', '-t', 'A.txt', *o).out)]
    for o in ((), ('--batch-tokens', 1))
  )
  np.testing.assert_allclose(first, other, rtol=0, atol=1e-5)


def test_tokens(run):
  rows = _lines(run('-r', 'ref.txt', '-t', 'A.txt', '--tokens').out)
  for row in rows:
    means = [np.mean(v) for v in row['token_log_probs'].values()]
    assert row['score'] == pytest.approx(np.mean(means), abs=1e-5)
  assert len(rows[1]['token_log_probs']['precision']) == 1


@pytest.mark.parametrize(
  'name', ['bleu', 'chrf', 'chrf++', 'ter', 'rouge1', 'rouge-2', 'rougeL']
)
def test_metrics_without_a_model(run, name):
  shown = run('-m', name, '-r', 'ref.txt', 'ref2.txt', '-t', 'A.txt')
  wanted = registry.load_metric(name).score(
    A, list(zip(REFERENCES, SECOND, strict=True))
  )
  np.testing.assert_allclose(
    [row['score'] for row in _lines(shown.out)], wanted.values, atol=1e-6
  )
  assert wanted.signature in shown.err
  assert f'{wanted.system:.4f}' in shown.err


def test_options_of_other_metrics(run):
  shown = run(
    *('-m', 'chrf', '-r', 'ref.txt', '-t', 'A.txt'),
    *('--option', 'word_order=2', '--option', 'lowercase=True'),
  )
  assert 'metric:chrF++' in shown.err
  assert 'case:lc' in shown.err


def test_a_model_folder_called_like_a_metric(run, folder, random_bundle):
  (folder / 'bleu').symlink_to(random_bundle)
  (folder / 'bleurt').symlink_to(random_bundle)
  (folder / 'chrf').mkdir()
  files = ('-r', 'ref.txt', '-t', 'A.txt')
  error = _fails(run, '-m', 'bleu', *files, code=2)
  assert 'give ./bleu for the folder, or --metric bleu' in error
  shown = run('-m', 'chrf', *files, '--format', 'text')
  assert 'metric:chrF' in shown.err
  for name in ('./bleu', 'bleurt'):
    assert 'metric:T5Score' in run('-m', name, *files).err


def test_nothing_gives_nothing(run, folder):
  (folder / 'empty').touch()
  shown = run('-r', 'empty', '-t', 'empty')
  assert shown.out == ''
  assert shown.err.startswith('no segments\nsignature: ')


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
    ('-r ref.txt -t A.txt -m blue', 'Other metrics: '),
    ('-r ref.txt -t A.txt -m t5score-tinny', "mean 't5score-tiny'? Other me"),
    ('-r ref.txt -t A.txt -o no/out.jsonl', 'there is no folder'),
    ('-r ref.txt -t A.txt -o .', 'it is a folder'),
  ],
)
def test_errors_say_what_and_leave_nothing(run, folder, arguments, message):
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
  assert message in _fails(run, *arguments.split())
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
def test_contradictions_are_usage_errors(run, folder, arguments, message):
  before = {path: path.read_bytes() for path in folder.iterdir()}
  assert message in _fails(run, *arguments.split(), code=2)
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


def test_a_failed_write_keeps_the_old_file(run, folder, monkeypatch):
  (folder / 'out.jsonl').write_text('old\n')

  def full(*arguments):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(records.tables.files.os, 'fsync', full)
  before = sorted(folder.iterdir())
  err = _fails(run, '-r', 'ref.txt', '-t', 'A.txt', '-o', 'out.jsonl')
  assert 'No space left' in err
  assert (folder / 'out.jsonl').read_text() == 'old\n'
  assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
  ('error', 'message'),
  [
    (scoring.ScoringError('not finite'), 'not finite'),
    (RuntimeError('RESOURCE_EXHAUSTED: Out of memory'), '--batch-tokens'),
  ],
)
def test_failures_of_the_model(run, monkeypatch, error, message):
  def fail(*arguments, **options):
    raise error

  monkeypatch.setattr(scoring.Scorer, 'score_pairs', fail)
  assert message in _fails(run, '-r', 'ref.txt', '-t', 'A.txt')


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def test_progress_on_a_terminal_only(run, random_bundle, monkeypatch):
  files = ['-r', 'ref.txt', '-t', 'A.txt', '-o', 'out.jsonl']
  monkeypatch.setattr(_score_output, '_LONG_WORK', 0.0)
  monkeypatch.setattr(scoring, '_WINDOW', 1)
  monkeypatch.setenv('TERM', 'xterm')
  for stream, quiet, wanted in (
    (_Terminal(), [], True),
    (_Terminal(), ['--quiet'], False),
    (io.StringIO(), [], False),
  ):
    monkeypatch.setattr(sys, 'stderr', stream)
    cli.main(['score', '-m', str(random_bundle), *files, *quiet])
    assert ('scoring' in stream.getvalue()) == wanted


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


@pytest.mark.parametrize('name', ['x.csv', 'x.CSV.gz', 'x.parquet', 'x.json'])
def test_names_of_other_formats_are_refused(run, folder, name):
  shown = _fails(run, '-t', 'A.txt', '-r', 'ref.txt', '-o', name, code=2)
  assert f'-o {name}: ' in shown and '--format jsonl, tsv, text' in shown
  assert not (folder / name).exists()
  # Whoever says what is wanted gets it; a name may have no ending, or its own.
  run('-t', 'A.txt', '-r', 'ref.txt', '-o', name, '--format', 'tsv')
  run('-t', 'A.txt', '-r', 'ref.txt', '-o', 'out')
  run('-t', 'A.txt', '-r', 'ref.txt', '-o', 'A.scores')
  assert (folder / name).exists() and (folder / 'A.scores').exists()


def test_names_of_files_are_utf_8_in_any_locale(tmp_path):
  (tmp_path / 'prüfung.txt').write_text('a b\n')
  (tmp_path / 'r.txt').write_text('a c\n')
  for more in ([], ['-o', 'scores.jsonl']):
    done = subprocess.run(
      [
        *(sys.executable, '-m', 't5score_jax.cli', 'score', '-m', 'chrf'),
        *('-t', 'prüfung.txt', '-r', 'r.txt', *more),
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
