"""Corpora that are not as they must be, and where a user's are."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip('seqio')

from t5score_jax.data.files import RecordError  # noqa: E402
from t5score_jax.tasks import (  # noqa: E402
  columns,
  denoising,
  environment,
  judged,
  monolingual,
  mqm,
  mt_prism,
  multisumm,
  paracotta,
  parallel,
  qe20,
  wmt_da,
)

SAMPLES = pathlib.Path(__file__).parents[1] / 'samples'


@pytest.mark.parametrize(
  ('read', 'name', 'content', 'place', 'message'),
  [
    (
      parallel.read,
      'x.tsv',
      'inputs\ttarget\na\tb\n',
      (1, 'targets'),
      "no column 'targets'",
    ),
    (
      parallel.read,
      'x.tsv',
      'inputs\ttargets\na\tb\nc\t \n',
      (3, 'targets'),
      'an empty text',
    ),
    (paracotta.read, 'en.tsv', 'a\tb\nc\n', (2, None), '1 tab-separated'),
    (paracotta.read, 'en.tsv', 'a\n', (1, None), 'ParaCotta has three'),
    (
      mt_prism.read,
      'W.de-en.tsv',
      '1.1\ta\tb\nhigh\tc\td\n',
      (2, 'score'),
      "'high' is not a finite number",
    ),
    (
      lambda p: wmt_da.read(p),
      '2031.csv',
      'lp,src,mt,ref,score\nde-en,a,b,c,0.1\nde-en,a,b,c,good\n',
      (3, 'score'),
      "'good' is not a finite number",
    ),
    (
      wmt_da.read,
      'x.csv',
      'lp,src,mt,ref,score\nde-en,a,b,c,0.1\n',
      (2, 'year'),
      'is not a year',
    ),
    (
      wmt_da.read,
      '2031.csv',
      'lp,src,mt,score\nde-en,a,b,0.1\n',
      (1, 'ref'),
      "no column 'ref'",
    ),
    (
      mqm.read,
      'mqm_t_ende.tsv',
      'system\tdoc\tseg_id\trater\tsource\ttarget\tcategory\tseverity\n'
      'a\td\t1\tr\ts\tt\tStyle\tAwful\n',
      (2, 'severity'),
      "no weight for the severity 'Awful'",
    ),
    (
      qe20.read,
      'test20.ende.df.short.tsv',
      'index\toriginal\ttranslation\n0\ta\tb\n',
      (1, 'mean'),
      "no column 'mean'",
    ),
    (
      multisumm.read,
      'score.csv',
      'id,model,focus,coverage\n7,BERT,0.1,0.2\n',
      (2, 'id'),
      'there is no text',
    ),
  ],
)
def test_errors_name_file_line_and_field(
  tmp_path, read, name, content, place, message
):
  path = tmp_path / name
  path.write_text(content, encoding='utf-8')
  with pytest.raises(RecordError, match=message) as caught:
    list(read(str(path)))
  error = caught.value
  assert (error.path, error.line, error.field) == (str(path), *place)
  assert str(path) in str(error)


def test_parallel_files_of_unequal_length(tmp_path):
  (tmp_path / 'N.de-en.de').write_text('a\nb\n')
  (tmp_path / 'N.de-en.en').write_text('a\n')
  with pytest.raises(RecordError, match='the file ends, but') as caught:
    list(mt_prism.read(str(tmp_path / 'N.de-en.de')))
  assert caught.value.path.endswith('N.de-en.en')
  assert caught.value.line == 2


@pytest.mark.parametrize(
  'module',
  [denoising, judged, monolingual, mqm, mt_prism, multisumm, paracotta]
  + [parallel, qe20, wmt_da],
)
def test_an_empty_folder_says_what_it_lacks(tmp_path, module):
  with pytest.raises(FileNotFoundError, match=f'{tmp_path}: no '):
    module.register(tmp_path, name='sample_empty')


def test_quoted_and_literal_tsv(tmp_path):
  path = tmp_path / 'x.tsv'
  path.write_text('a\tb\n"say ""x"""\ty\n', encoding='utf-8')
  assert [row for _, row in columns.read_tsv(path, ['a'])] == [
    {'a': 'say "x"', 'b': 'y'}
  ]
  path.write_text('a\tb\n"x" she said\ty\n', encoding='utf-8')
  assert [row for _, row in columns.read_tsv(path, ['a'])] == [
    {'a': '"x" she said', 'b': 'y'}
  ]


def test_environment(monkeypatch, tmp_path):
  monkeypatch.delenv(environment.DATA, raising=False)
  monkeypatch.delenv(environment.VOCABULARY, raising=False)
  assert environment.corpus('mqm') is None
  assert environment.vocabulary() == 'bytes'
  monkeypatch.setenv(environment.DATA, str(SAMPLES))
  assert environment.corpus('mqm') == SAMPLES / 'mqm'
  assert environment.corpus('tfds') is None
  monkeypatch.setenv(environment.DATA, str(tmp_path))
  (tmp_path / 'vocabulary.model').touch()
  assert environment.vocabulary() == str(tmp_path / 'vocabulary.model')
  monkeypatch.setenv(environment.DATA, str(tmp_path / 'none'))
  with pytest.raises(FileNotFoundError, match='T5SCORE_DATA=.*no such folder'):
    environment.corpus('mqm')


@pytest.mark.slow
def test_importing_a_task_module_registers_the_users_corpus():
  program = (
    'import seqio, t5score_jax.tasks.parallel;'
    'print(sorted(seqio.MixtureRegistry.names()))'
  )
  made = subprocess.run(
    [sys.executable, '-c', program],
    env={'PATH': '', environment.DATA: str(SAMPLES)},
    capture_output=True,
    text=True,
    check=True,
  )
  assert made.stdout.strip() == "['parallel', 'parallel_both']"
