"""Errors of MQM annotations, as tags of words are learned from."""

import importlib.util
import json
import pathlib

from t5score_jax.data import error_spans

SCRIPT = pathlib.Path(__file__).parents[2] / 'scripts/prepare/mqm_errors.py'


def _main(*arguments):
  spec = importlib.util.spec_from_file_location('mqm_errors', SCRIPT)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.main([str(a) for a in arguments])


HEADER = 'system\tdoc\tseg_id\trater\tsource\ttarget\tcategory\tseverity'
ROWS = [
  'A\td\t1\tr1\tein Haus\ta <v>hose</v> .\tAccuracy\tMajor',
  'A\td\t1\tr2\tein Haus\ta <v>hose</v> .\tAccuracy\tMajor',
  'A\td\t1\tr2\tein Haus\ta hose<v> .</v>\tFluency\tMinor',
  'A\td\t2\tr1\tgut\t"good\tNo-error\tNo-error',
  'B\td\t2\tr1\t<v>gut</v>\tbad\tSource error\tMajor',
  'B\td\t3\tr1\tx\t<v>y</v>\tStyle\tNeutral',
]


def test_marks_become_errors(tmp_path, capsys):
  (tmp_path / 'mqm.tsv').write_text('\n'.join([HEADER, *ROWS]) + '\n')
  out = tmp_path / 'errors.jsonl'
  assert _main(tmp_path / 'mqm.tsv', out) == 0
  assert '4 hypotheses, 2 errors' in capsys.readouterr().out
  assert error_spans.read(out, ('minor', 'major')) == {
    'a hose .': [(2, 6, 'major'), (6, 8, 'minor')],
    '"good': [],
    'bad': [],
    'y': [],
  }
  first = json.loads(out.read_text().splitlines()[0])
  assert (first['system'], first['document']) == ('A', 'd')


def test_one_line_says_what_is_wrong(tmp_path, capsys):
  path = tmp_path / 'mqm.tsv'
  for text, words in (
    (HEADER.replace('severity', 'x'), "no column 'severity'"),
    (f'{HEADER}\nA\tb', '2 columns'),
  ):
    path.write_text(text + '\n')
    assert _main(path, tmp_path / 'out.jsonl') == 1
    error = capsys.readouterr().err
    assert words in error and error.count('\n') == 1
  assert not (tmp_path / 'out.jsonl').exists()
