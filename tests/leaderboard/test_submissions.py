"""Generators, metrics, ratings join a board; hostile metrics harm nothing."""

import json

import board_data
import numpy as np
import pytest

pytest.importorskip('sklearn')
pytest.importorskip('pandas')

from t5score_jax.data.files import RecordError  # noqa: E402
from t5score_jax.leaderboard import (  # noqa: E402
  analysis,
  layouts,
  outputs,
  reuse,
  submissions,
)
from t5score_jax.leaderboard.entries import (  # noqa: E402
  GIVEN,
  BoardError,
  Generator,
  Metric,
)
from t5score_jax.leaderboard.store import Store  # noqa: E402
from t5score_jax.leaderboard.web import sandbox  # noqa: E402

isolated = pytest.mark.skipif(
  sandbox.mechanism() == 'none',
  reason='neither bubblewrap nor user namespaces can be used here',
)
LIMITS = {
  'seconds': 2,
  'memory': 512 << 20,
  'output': 1 << 16,
  'processes': 16,
  'scratch': 1 << 20,
}
WORDS = 'the cat sat on a mat while dogs ran far away from it'.split()
# Scores how many words of the (first) reference are there.
OVERLAP = b"""#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
  row = json.loads(line)
  words = set(row['references'][0].split())
  print(len(words & set(row['hypothesis'].split())) / len(words))
"""
LENGTH = b"""#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
  print(len(json.loads(line)['hypothesis']))
"""


def _sentence(rng):
  return ' '.join(rng.choice(WORDS, 8))


@pytest.fixture
def text_board(tmp_path):
  """Twelve inputs, references A and B, three rated generators."""
  rng = np.random.default_rng(0)
  rows = [
    {'id': f'e{n}', 'source': f'{n}', 'A': _sentence(rng), 'B': _sentence(rng)}
    for n in range(12)
  ]
  inputs = tmp_path / 'inputs.jsonl'
  inputs.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  path = tmp_path / 'text.db'
  layouts.import_inputs(path, inputs, 'text', '', {'A': 'A', 'B': 'B'})
  ratings = ['system\tid\tda']
  with Store(path) as store:
    for n, name in enumerate(('bad', 'fair', 'good')):
      texts = [
        ' '.join(
          word if rng.random() < 0.2 + 0.3 * n else 'x'
          for word in row['A'].split()
        )
        for row in rows
      ]
      file = tmp_path / f'{name}.txt'
      file.write_text('\n'.join(texts) + '\n')
      submissions.add_generator(store, Generator(name), file)
      ratings += [
        f'{name}\te{k}\t{n + text.count("x") * -0.1:.3f}'
        for k, text in enumerate(texts)
      ]
    (tmp_path / 'da.tsv').write_text('\n'.join(ratings) + '\n')
    submissions.add_human(store, tmp_path / 'da.tsv')
  return path


def _state(store):
  return (
    [g.name for g in store.generators()],
    [m.name for m in store.metrics()],
    sorted(store.scored()),
    store.board().revision,
    len(store.versions()),
  )


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('one\n', '1 lines for 2 inputs'),
    ('{"id": "a", "hypothesis": "x"}\n', "no output for 1 of 2.*'b'"),
    ('{"id": "z", "hypothesis": "x"}\n', "line 1: the board has no input 'z'"),
    ('{"id": "a", "output": "x"}\n' * 2, "line 2: a second output .*'a'"),
    ('{"id": "a", "hypothesis": 3}\n', 'line 1: 3 is not a text'),
    ('{"id": "a"}\n', 'none of the fields hypothesis'),
    (b'caf\xe9\nx\n', 'line 1: invalid UTF-8'),
    (b'a\0\nx\n', 'NUL'),
    ('x' * 2000, 'more than 1000'),
  ],
)
def test_wrong_outputs_are_explained(tmp_path, text, message):
  path = tmp_path / 'outputs'
  path.write_bytes(text.encode() if isinstance(text, str) else text)
  with pytest.raises(RecordError, match=message):
    outputs.read_outputs(path, ['a', 'b'], max_bytes=1000)


def test_outputs_in_any_order(tmp_path):
  path = tmp_path / 'outputs.jsonl'
  path.write_text(
    '{"id": "b", "text": "2\\n"}\n{"seg_id": "a", "output": ""}\n'
  )
  assert outputs.read_outputs(path, ['a', 'b']) == ['', '2\n']
  path.write_text('{curly\n\n')
  assert outputs.read_outputs(path, ['a', 'b']) == ['{curly', '']


def test_library_metrics_score_all_and_later_generators(text_board, tmp_path):
  with Store(text_board) as store:
    value = submissions.add_metric(store, submissions.library_metric('chrf'))
    assert [m['name'] for m in value['metrics']][:1] == ['chrf']
    assert value['metrics'][0]['correlation'] > 0.5
    assert [g['name'] for g in value['generators']] == ['good', 'fair', 'bad']
    metric = store.metrics()[0]
    assert metric.settings['references'] and metric.seconds > 0
    assert 'nrefs:2' in metric.signature
    # All references together, and each alone.
    assert {s for _, _, s in store.scored()} == {'A+B', 'A', 'B'}
    value = submissions.add_generator(
      store, Generator('again'), tmp_path / 'good.txt'
    )
    scores = {g['name']: g['score'] for g in value['generators']}
    assert scores['again'] == scores['good']
    assert value['references']['chrf'].keys() == {'1', '2'}
    single = analysis.analyse(store, analysis.Request(reference_set='A'))
    assert single['board']['references'] == 'A'


@isolated
def test_commands_score_all_and_later_generators(text_board, tmp_path):
  with Store(text_board) as store:
    for name, program, settings in (
      ('overlap', OVERLAP, {}),
      ('short', LENGTH, {'references': False, 'negated': True}),
    ):
      metric = submissions.command_metric(
        name, program, limits=LIMITS, **settings
      )
      submissions.add_metric(store, metric, program)
    value = submissions.add_generator(
      store, Generator('again'), tmp_path / 'good.txt'
    )
    scores = {g['name']: g['scores'] for g in value['generators']}
    assert scores['again'] == scores['good']
    assert scores['good']['short'] < 0 < scores['good']['overlap']
    known = {m.name: m for m in store.metrics()}
    single = [dict(store.scores(known['overlap'].id, s))[1] for s in ('A', 'B')]
    both = dict(store.scores(known['overlap'].id, 'A+B'))[1]
    np.testing.assert_array_equal(both, np.maximum(*single))
    assert {s for m, _, s in store.scored() if m == known['short'].id} == {
      GIVEN
    }
    # Any version of the ensemble, on new text.
    version = store.versions()[-1]
    assert version.signature.startswith('ensemble.text+refs.A+B+version.')
    new = tmp_path / 'new.jsonl'
    row = {'hypothesis': 'the cat', 'reference': ['the cat sat', 'a dog']}
    new.write_text(json.dumps(row) + '\n')
    found = reuse.score_with(
      store, version, new, None, tmp_path / 'scores.jsonl'
    )
  scores = json.loads((tmp_path / 'scores.jsonl').read_text())
  assert scores['overlap'] == pytest.approx(2 / 3) and scores['short'] == -7
  weights = version.ensemble['weights']
  assert found[0] == pytest.approx(
    version.ensemble['intercept']
    + sum(w * scores[n] for n, w in weights.items())
  )


HOSTILE = {
  'loops': (b'#!/bin/sh\nwhile :; do :; done\n', '2 seconds'),
  'sleeps': (b'#!/bin/sh\nsleep 1000\n', '2 seconds'),
  'prints garbage': (
    b'#!/bin/sh\nwhile read -r x; do echo \xff\xfenonsense; done\n',
    'in line 1: not a finite number',
  ),
  'prints NaN': (
    b'#!/bin/sh\nwhile read -r x; do echo nan; done\n',
    'not a finite number',
  ),
  'prints too little': (b'#!/bin/sh\necho 1\n', '1 lines for 12 texts'),
  'prints for ever': (b'#!/bin/sh\nyes 1\n', '65536 bytes'),
  'is no program': (b'hello', 'cannot be started'),
}


@isolated
@pytest.mark.parametrize('name', HOSTILE)
def test_hostile_metrics_leave_the_board_as_it_was(text_board, name):
  program, message = HOSTILE[name]
  metric = submissions.command_metric('hostile', program, limits=LIMITS)
  with Store(text_board) as store:
    before = _state(store)
    with pytest.raises(BoardError, match=f'(?s){message}'):
      submissions.add_metric(store, metric, program)
    assert _state(store) == before


@isolated
def test_a_metric_that_fails_later_is_noted(text_board, tmp_path):
  """It worked on the generators that were there, not on a new one."""
  program = b"""#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
  text = json.loads(line)['hypothesis']
  if text == 'trouble':
    sys.exit('cannot read trouble')
  print(len(text))
"""
  (tmp_path / 'new.txt').write_text('trouble\n' * 12)
  with Store(text_board) as store:
    metric = submissions.command_metric('picky', program, limits=LIMITS)
    submissions.add_metric(store, metric, program)
    submissions.add_metric(store, submissions.library_metric('chrf'))
    value = submissions.add_generator(
      store, Generator('new'), tmp_path / 'new.txt'
    )
    assert 'cannot read trouble' in next(iter(store.failures().values()))
    entry = next(g for g in value['generators'] if g['name'] == 'new')
    assert entry['scores']['picky'] is None
    assert entry['scores']['chrf'] is not None
    # Failed pairs are not tried for ever.
    assert submissions.complete(store) == 0


def test_score_files(text_board, tmp_path):
  rows = ['system\tid\tx']
  with Store(text_board) as store:
    for g in store.generators():
      rows += [f'{g.name}\te{k}\t{len(g.name) + k}' for k in range(12)]
    path = tmp_path / 'x.tsv'
    path.write_text('\n'.join(rows) + '\n')
    value = submissions.add_score_file(
      store, Metric('x', 'column', negated=True), path
    )
    means = {g['name']: g['scores']['x'] for g in value['generators']}
    assert means['bad'] == -8.5
    path.write_text('\n'.join(rows[:-1]) + '\n')
    before = _state(store)
    with pytest.raises(BoardError, match="no score for 1 outputs of 'good'"):
      submissions.add_score_file(store, Metric('y', 'column'), path)
    with pytest.raises(BoardError, match="'x'"):
      submissions.add_score_file(store, Metric('x', 'column'), path)
    assert _state(store) == before
    # A generator brings its own scores of such a metric.
    scores = tmp_path / 'scores.tsv'
    scores.write_text('id\tx\n' + ''.join(f'e{k}\t1\n' for k in range(12)))
    value = submissions.add_generator(
      store, Generator('new'), tmp_path / 'good.txt', scores
    )
    entry = next(g for g in value['generators'] if g['name'] == 'new')
    assert entry['scores']['x'] == -1


def test_ratings(text_board, tmp_path):
  with Store(text_board) as store:
    path = tmp_path / 'more.tsv'
    path.write_text('system\tid\tda\ngood\te0\t-5\n')
    with pytest.raises(BoardError, match="'da'"):
      submissions.add_human(store, path)
    submissions.add_human(store, path, replace=True)
    assert dict(store.ratings('da'))[3][0] == -5
    value = submissions.add_human(store, path, name='other', choose=True)
    assert value['board']['human'] == 'other'
    assert value['board']['rated'] == 1
    path.write_text('system\tid\tda\nnobody\te0\t-5\n')
    with pytest.raises(RecordError, match="line 2: .*no generator 'nobody'"):
      submissions.add_human(store, path)


def test_two_submitters_miss_nothing(text_board, tmp_path, monkeypatch):
  """A metric joins while a generator is being scored: both are complete."""
  real = submissions._score_everything
  with Store(text_board) as store, Store(text_board) as other:

    def interrupted(board, texts):
      found = real(board, texts)
      submissions.add_metric(other, submissions.library_metric('chrf'))
      return found

    monkeypatch.setattr(submissions, '_score_everything', interrupted)
    value = submissions.add_generator(
      store, Generator('new'), tmp_path / 'good.txt'
    )
  scores = {g['name']: g['score'] for g in value['generators']}
  assert scores['new'] == scores['good'] is not None


def test_small_board_takes_scores(tmp_path):
  """A board of imported tables takes a generator with its scores."""
  path = board_data.small_board(tmp_path)
  with Store(path) as store:
    ids = store.ids()
    (tmp_path / 'o.txt').write_text('text\n' * len(ids))
    table = ['seg_id\t' + '\t'.join(f'm{n}' for n in range(5))]
    table += [f'{key}\t9\t9\t9\t9\t9' for key in ids]
    (tmp_path / 's.tsv').write_text('\n'.join(table) + '\n')
    value = submissions.add_generator(
      store, Generator('top'), tmp_path / 'o.txt', tmp_path / 's.tsv'
    )
    assert value['generators'][0]['name'] == 'top'
    value = submissions.add_generator(
      store, Generator('unscored'), tmp_path / 'o.txt'
    )
    assert value['generators'][-1]['rank'] is None
