"""scripts/prepare/summeval.py on lines made by hand."""

import doctest
import gzip
import importlib.util
import json
import pathlib

import pytest

from t5score_jax.data import instances, records

SCRIPT = (
  pathlib.Path(__file__).parents[2] / 'scripts' / 'prepare' / 'summeval.py'
)
NAMES = ('coherence', 'consistency', 'fluency', 'relevance')


def _module():
  spec = importlib.util.spec_from_file_location('prepare_summeval', SCRIPT)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _write(path, rows):
  with gzip.open(path, 'wt') as out:
    out.writelines(json.dumps(row) + '\n' for row in rows)
  return str(path)


def _expert(number):
  return dict(zip(NAMES, range(number, number + 4), strict=True))


@pytest.fixture
def corpus(tmp_path):
  experts = [
    {
      'SYS': system,
      'seg_id': 'a1',
      'hyp': f'{system} wrote this.',
      'expert_annotations': [_expert(1), _expert(2), _expert(1)],
    }
    for system in ('BART', 'Human-H', 'T5')
  ]
  return [
    _write(tmp_path / 'experts.gz', experts),
    _write(
      tmp_path / 'references.gz',
      [{'seg_id': 'a1', 'refs': [f'r{n}' for n in range(10)]}],
    ),
    _write(
      tmp_path / 'articles.gz',
      [{'doc_id': 'cnn-test-a1', 'src': "( CNN ) It 's ` late '' ."}],
    ),
  ]


def test_summeval_has_a_row_an_expert(tmp_path, corpus, capsys):
  out = tmp_path / 'out.jsonl.gz'
  assert _module().main(['summeval', *corpus, str(out)]) == 0
  assert '6 rows, 1 articles, 2 systems' in capsys.readouterr().out
  found = records.read_records(out, ratings=NAMES)
  assert [s.system for s in found] == ['BART'] * 3 + ['T5'] * 3
  assert found[1].ratings == {n: float(v) for n, v in _expert(2).items()}
  for segment in found:
    assert segment.source == '(CNN) It\'s "late".'
    assert segment.references == (
      'Human-H wrote this.',
      *(f'r{n}' for n in range(10)),
    )
    assert segment.document == segment.segment == 'a1'
  assert len(instances.build(found, NAMES, instances.Texts())) == 66
  assert _module().main(['summeval', *corpus, str(out), '--human']) == 0
  assert '3 systems' in capsys.readouterr().out


def test_realsumm_leaves_known_articles_out(tmp_path, corpus, capsys):
  known = tmp_path / 'known.jsonl'
  assert _module().main(['summeval', *corpus, str(known)]) == 0
  rows = [
    {
      'split': split,
      'doc_id': number,
      'system': 'bart_out.txt',
      'src': source,
      'ref': '<t> one . </t> <t> two </t>',
      'hyp': f'<t> {split} </t>',
      'litepyramid_recall': 0.25,
    }
    # The first is SummEval's article in another case.
    for number, source in ((1, "(cnn) it 's ` LATE ''."), (2, 'It rained .'))
    for split in ('abs', 'ext')
  ]
  path = _write(tmp_path / 'realsumm.gz', rows)
  out = tmp_path / 'out.jsonl'
  code = _module().main(['realsumm', path, str(out), '--leave_out', str(known)])
  assert code == 0
  assert '1 articles of' in capsys.readouterr().out
  found = records.read_records(out, ratings=('litepyramid',))
  assert [s.system for s in found] == ['abs/bart_out', 'ext/bart_out']
  assert found[0].references == ('one. two',) and found[0].hypothesis == 'abs'
  assert found[0].source == 'It rained.'
  assert found[0].ratings == {'litepyramid': 0.25}


@pytest.mark.parametrize('broken', [0, 1, 2])
def test_what_is_missing_is_said(tmp_path, corpus, broken, capsys):
  lines = [
    {'SYS': 'T5'},
    {'seg_id': 'b2', 'refs': []},
    {'doc_id': 'x-b2', 'src': ''},
  ]
  corpus[broken] = _write(tmp_path / 'broken.gz', [lines[broken]])
  out = tmp_path / 'out.jsonl'
  assert _module().main(['summeval', *corpus, str(out)]) == 1
  error = capsys.readouterr().err
  assert error.startswith('error: ') and error.count('\n') == 1
  assert not out.exists()
  (tmp_path / 'broken.gz').write_text('{"seg_id"\n')
  assert _module().main(['summeval', *corpus, str(out)]) == 1
  assert 'broken.gz, line 1' in capsys.readouterr().err


def _damage(path, **changes):
  with gzip.open(path, 'rt') as lines:
    rows = [json.loads(line) for line in lines]
  rows[-1].update(changes)
  _write(path, rows)


@pytest.mark.parametrize(
  ('broken', 'changes', 'place'),
  [
    (0, {'expert_annotations': [{**_expert(1), 'fluency': None}]}, 'fluency'),
    (0, {'expert_annotations': [{'coherence': 1}]}, 'consistency'),
    (0, {'expert_annotations': 'bad'}, 'expert_annotations'),
    (0, {'expert_annotations': ['bad']}, 'expert_annotations'),
    (0, {'expert_annotations': []}, 'expert_annotations'),
    (0, {'hyp': None}, 'hyp'),
    (0, {'SYS': 3}, 'SYS'),
    (0, {'seg_id': []}, 'seg_id'),
    (1, {'refs': None}, 'refs'),
    (1, {'refs': 'one string'}, 'refs'),
    (1, {'refs': ['a', None]}, 'refs'),
    (2, {'doc_id': 7}, 'doc_id'),
    (2, {'src': {}}, 'src'),
  ],
)
def test_damaged_summeval(tmp_path, corpus, broken, changes, place, capsys):
  _damage(corpus[broken], **changes)
  out = tmp_path / 'out.jsonl'
  assert _module().main(['summeval', *corpus, str(out)]) == 1
  line = 3 if broken == 0 else 1
  error = capsys.readouterr().err
  assert error.startswith(f'error: {corpus[broken]}, line {line}, field ')
  assert repr(place) in error and error.count('\n') == 1
  assert not out.exists()


@pytest.mark.parametrize(
  'changes',
  [
    {'litepyramid_recall': None},
    {'litepyramid_recall': True},
    {'litepyramid_recall': float('nan')},
    {'litepyramid_recall': 10**400},
    {'system': None},
    {'split': 1},
    {'doc_id': None},
    {'hyp': None},
    {'ref': ['a']},
    {'src': None},
  ],
)
def test_damaged_realsumm(tmp_path, changes, capsys):
  row = {
    'split': 'abs', 'doc_id': 1, 'system': 'x.txt', 'src': 's', 'ref': 'r',
    'hyp': 'h', 'litepyramid_recall': 0.5,
  }  # fmt: skip
  path = _write(tmp_path / 'in.gz', [row, row | changes])
  out = tmp_path / 'out.jsonl'
  assert _module().main(['realsumm', path, str(out)]) == 1
  error = capsys.readouterr().err
  assert error.startswith(f'error: {path}, line 2, field {[*changes][0]!r}')
  assert error.count('\n') == 1 and not out.exists()


def test_nothing_is_an_error_and_inputs_are_kept(tmp_path, corpus, capsys):
  main, out = _module().main, str(tmp_path / 'out.jsonl')
  empty = _write(tmp_path / 'empty.gz', [])
  assert main(['summeval', empty, *corpus[1:], out]) == 1
  assert 'empty.gz: the file is empty' in capsys.readouterr().err
  assert main(['realsumm', empty, out]) == 1
  assert 'the file is empty' in capsys.readouterr().err
  for path in corpus:
    before = pathlib.Path(path).read_bytes()
    assert main(['summeval', *corpus, path]) == 1
    assert f'output {path}: is an input too' in capsys.readouterr().err
    assert pathlib.Path(path).read_bytes() == before
  assert not pathlib.Path(out).exists()


def test_examples_of_the_script():
  assert doctest.testmod(_module()).failed == 0
