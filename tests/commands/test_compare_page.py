"""`t5score compare --html`: the data in the page, and the page in a browser."""

import base64
import hashlib
import json
import re
import types

import board_data
import numpy as np
import pytest

import t5score_jax
from t5score_jax import cli
from t5score_jax.commands import _compare_page, _score_output
from t5score_jax.data import records, vocab
from t5score_jax.evaluation import paired_tests
from t5score_jax.evaluation.reports import comparison_page
from t5score_jax.metrics import _spans

EVIL = '</script><script>document.title = "taken"</script>'
SOURCES = ['die Katze & der Mond', EVIL, 'ein Hund', 'Größe', 'fünf', 'sechs']
REFERENCES = ['the cat sees the moon.', EVIL, 'a dog', 'size', 'five', 'six']
A = ['the cat sees music.', 'a dog', 'a dog', 'size 😀!', 'five', '']
B = ['a cat', EVIL, 'the old ship', 'größe', 'this town', 'six <b>boxes</b>']


def _span(text, part, severity):
  start = text.index(part)
  return {'start': start, 'end': start + len(part), 'severity': severity}


@pytest.fixture
def folder(tmp_path, monkeypatch):
  for name, lines in {
    'src': SOURCES,
    'ref': REFERENCES,
    'A': A,
    'B': B,
  }.items():
    (tmp_path / name).write_text(''.join(f'{x}\n' for x in lines), 'utf-8')
  errors = [[_span(A[0], 'music', 'major'), _span(A[0], 'sees music', 'minor')]]
  errors += [[], [], [_span(A[3], '!', 'critical')], [], []]
  rows = [
    {'system': 'A', 'segment': str(n + 1), 'hypothesis': A[n], 'errors': found}
    for n, found in enumerate(errors)
  ]
  (tmp_path / 'spans').write_text('\n'.join(map(json.dumps, rows)) + '\n')
  monkeypatch.chdir(tmp_path)
  return tmp_path


def _run(*arguments, code=0):
  given = ['compare', '-r', 'ref', '-s', 'src', '-t', 'A', 'B']
  assert cli.main([*given, *map(str, arguments)]) == code


def _data(page):
  text = page.read_text('utf-8')
  # As a browser finds the element's end.
  found = re.search(
    r'<script id="data" type="application/json">(.*?)</script', text, re.DOTALL
  )
  return json.loads(found[1])


def test_tables_and_texts(folder, capsys):
  _run('-m', 'chrf', '--html', 'page.html', '--table', 'json')
  printed = json.loads(capsys.readouterr().out)
  data = _data(folder / 'page.html')
  (pair,) = data['pairs']
  (result,) = printed['results']
  assert [s['name'] for s in pair['systems']] == ['A', 'B']
  assert [s['value'] for s in pair['systems']] == [
    s['value'] for s in result['systems']
  ]
  assert pair['comparisons'] == result['comparisons']
  assert data['notes'] == printed['notes']
  scores = t5score_jax.load('chrf').score(A, REFERENCES)
  for n, segment in enumerate(pair['segments']):
    assert segment['source'] == SOURCES[n]
    assert segment['references'] == [REFERENCES[n]]
    assert [o['text'] for o in segment['outputs']] == [A[n], B[n]]
    assert segment['outputs'][0]['score'] == pytest.approx(scores[n], rel=1e-6)
  assert not data['has_tokens'] and not data['has_errors']


@pytest.mark.parametrize('inside', [False, True])
def test_texts_of_score_files(folder, capsys, inside):
  """The page of scores is that of the texts, which are found by their ids."""
  _run('-m', 'chrf', '--html', 'page.html')
  wanted = _data(folder / 'page.html')['pairs'][0]['segments']
  score = ['score', '-m', 'chrf', '-r', 'ref', '-t', 'A', 'B']
  assert cli.main([*score, '-o', 'scores.jsonl']) == 0
  lines = (folder / 'scores.jsonl').read_text().splitlines()
  texts = [
    {'hypothesis': h, 'source': s, 'reference': r}
    for system in (A, B)
    for h, s, r in zip(system, SOURCES, REFERENCES, strict=True)
  ]
  rows = [json.loads(line) | t for line, t in zip(lines, texts, strict=True)]
  for row in rows:
    # The other name of that column, and scores apart from the metric's.
    row['seg_id'] = row.pop('segment')
    row['mine'] = row.pop('score')
  beside = [] if inside else ['-t', 'A', 'B', '-s', 'src', '-r', 'ref']
  keys = set(rows[0]) - (set() if inside else set(texts[0]))
  with open('mine.jsonl', 'w') as out:
    for row in reversed(rows):
      out.write(json.dumps({k: row[k] for k in keys}) + '\n')
  words = ['compare', 'mine.jsonl', '--score', 'mine', '--html', 'two.html']
  words += ['--baseline', 'A', '--spans', 'spans', *beside]
  assert cli.main(words) == 0, capsys.readouterr().err
  pair = _data(folder / 'two.html')['pairs'][0]
  order = [s['name'] for s in pair['systems']]
  by_id = {s['id']: s for s in pair['segments']}
  for segment in wanted:
    found = by_id[segment['id']]
    for name in ('source', 'references'):
      assert found[name] == segment[name]
    for n, system in enumerate('AB'):
      output = found['outputs'][order.index(system)]
      assert output['text'] == segment['outputs'][n]['text']
      assert output['score'] == pytest.approx(segment['outputs'][n]['score'])
  assert by_id['1']['outputs'][order.index('A')]['errors']


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (['--html', 'x.html'], 'no texts in a score file; give them'),
    (['--html', 'x.html', '-t', 'A'], "'B' has a score but no text of segment"),
    (['-t', 'A', 'B'], '-t is for texts without score files, or for --html'),
  ],
)
def test_score_files_without_texts(folder, capsys, words, message):
  score = ['score', '-m', 'chrf', '-r', 'ref', '-t', 'A', 'B']
  assert cli.main([*score, '-o', 'scores.jsonl']) == 0
  assert cli.main(['compare', 'scores.jsonl', *words]) in (1, 2)
  assert message in capsys.readouterr().err
  assert not (folder / 'x.html').exists()


def test_nothing_is_fetched_and_nothing_else_runs(folder):
  _run('-m', 'chrf', '--html', 'page.html')
  text = (folder / 'page.html').read_text('utf-8')
  assert not re.search(r'(?:src|href)\s*=|url\(|@import|https?:', text)
  assert EVIL not in text and text.count('<script') == 2
  policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
  assert policy.startswith("default-src 'none'; ")
  script = re.search(r'<script>(.*)</script>', text, re.DOTALL)[1]
  digest = base64.b64encode(hashlib.sha256(script.encode()).digest())
  assert f"script-src 'sha256-{digest.decode()}'" in policy


@pytest.mark.parametrize('model', ['random_bundle', 'bytes_bundle'])
def test_tokens_are_those_of_the_scores(folder, model, request, monkeypatch):
  written = []
  write = _compare_page.write
  monkeypatch.setattr(
    _compare_page, 'write', lambda *a: (written.extend(a), write(*a))
  )
  _run('-m', request.getfixturevalue(model), '--html', 'page.html')
  data = _data(folder / 'page.html')
  assert data['has_tokens']
  scores = written[1].scores
  for n, segment in enumerate(data['pairs'][0]['segments']):
    tokens = segment['outputs'][0]['tokens']
    count = len(scores.token_log_probs['precision'][n])
    mean = sum(value for _, value in tokens) / count
    assert mean == pytest.approx(scores.components['precision'][n], abs=1e-3)
    assert tokens[-1][0] == '</s>'
    text = ''.join(piece for piece, _ in tokens[:-1])
    if model == 'bytes_bundle':
      assert text == A[n]
      # A character of four bytes is one token.
      assert len(tokens) == len(A[n]) + 1
    else:
      assert len(tokens) == count


def test_pieces_of_vocabularies(random_model):
  text = 'the cat sees a red kite.'
  words = random_model.vocabulary
  assert ''.join(words.pieces(words.encode(text))) == f' {text}'
  assert words.pieces([words.eos_id]) == ['</s>']
  several = vocab.ByteVocabulary()
  assert several.pieces(several.encode('aß')) == ['a', '', 'ß']
  assert several.pieces([1, 259]) == ['</s>', '<extra_id_0>']


def test_errors_are_runs_of_the_text(folder):
  _run('-m', 'chrf', '--html', 'page.html', '--spans', 'spans')
  segments = _data(folder / 'page.html')['pairs'][0]['segments']
  first = segments[0]['outputs'][0]['errors']
  assert first == [
    ['the cat ', ''], ['sees ', 'minor'], ['music', 'major'], ['.', '']
  ]  # fmt: skip
  assert segments[3]['outputs'][0]['errors'][-1] == ['!', 'critical']
  # Nobody looked for errors of B.
  assert 'errors' not in segments[0]['outputs'][1]


def test_what_score_writes_is_read(tmp_path):
  segments = [
    records.Segment(text, system=system, segment=str(n), language_pair='de-en')
    for system, lines in (('A', A), ('B', B))
    for n, text in enumerate(lines, 1)
  ]
  found = [
    [_spans.ErrorSpan(0, len(s.hypothesis), 'major', 0.5)] for s in segments
  ]
  scores = types.SimpleNamespace(spans=found)
  path = tmp_path / 'errors.jsonl'
  _score_output.write_spans(path, segments, scores)
  read = _compare_page.read_spans([str(path)], segments)
  assert read['de-en', 'B', '2'] == [(0, len(EVIL), 'major')]
  assert len(read) == 12


@pytest.mark.parametrize(
  ('row', 'message'),
  [
    ('{', 'line 1: not JSON'),
    ('[]', "line 1: not an object with a list 'errors'"),
    ('{"segment": 1, "errors": []}', 'no text has the ids'),
    ('{"system": "A", "segment": 9, "errors": []}', "'segment': 9"),
    ('{"system": "A", "segment": 1, "hypothesis": "x", "errors": []}',
     'of another text'),
    ('{"system": "A", "segment": 1, "errors": [{"start": 1}]}',
     'needs start, end and severity'),
    ('{"system": "A", "segment": 1, "errors": [{"start": 3, "end": 99, '
     '"severity": "major"}]}', 'from 3 to 99 is not in a text of 19'),
  ],
)  # fmt: skip
def test_errors_that_do_not_fit(folder, capsys, row, message):
  (folder / 'wrong').write_text(row + '\n')
  _run('-m', 'chrf', '--html', 'page.html', '--spans', 'wrong', code=1)
  shown = capsys.readouterr().err
  assert message in shown and shown.count('\n') == 1
  assert not (folder / 'page.html').exists()


def test_the_system_of_a_file_that_does_not_name_it(folder):
  row = {'errors': [_span(B[0], 'cat', 'odd')]}
  (folder / 'plain').write_text(json.dumps(row) + '\n')
  _run('-m', 'chrf', '--html', 'page.html', '--spans', 'B=plain')
  outputs = _data(folder / 'page.html')['pairs'][0]['segments'][0]['outputs']
  assert outputs[1]['errors'] == [['a ', ''], ['cat', 'odd']]


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--spans', 'spans'], '--spans is for --html'),
    (['--html-segments', '3'], '--html-segments is for --html'),
    (['--html', 'no/page.html'], 'there is no folder'),
    (['--html', 'A'], '--html'),
  ],
)
def test_wrong_usage(folder, capsys, arguments, message):
  assert cli.main(['compare', '-m', 'chrf', '-r', 'ref', '-t', 'A', 'B',
                   *arguments]) != 0  # fmt: skip
  assert message in capsys.readouterr().err


def test_the_segments_with_the_largest_spread_are_kept():
  rng = np.random.default_rng(0)
  values = rng.normal(size=(2, 40))
  comparison = paired_tests.compare(
    [paired_tests.of_means(n, v) for n, v in zip('AB', values, strict=True)],
    [(1, 0)],
    randomisations=0,
  )
  rows = [
    comparison_page.Shown(
      str(n), None, (), [comparison_page.Output('x', v) for v in column]
    )
    for n, column in enumerate(values.T)
  ]
  text = comparison_page.render({'': comparison}, {'': rows}, title='t', most=7)
  kept = re.findall(r'"id":"(\d+)"', text)
  spread = np.abs(values[0] - values[1])
  assert {int(n) for n in kept} == set(np.argsort(-spread)[:7].tolist())
  assert kept == sorted(kept, key=int) and '"count":40' in text


@pytest.fixture(scope='module')
def browser():
  api = pytest.importorskip(
    'playwright.sync_api', reason='needs playwright, to drive a browser'
  )
  if board_data.CHROMIUM is None:
    pytest.skip('needs Chromium: apt-get install chromium')
  with api.sync_playwright() as running:
    found = running.chromium.launch(
      executable_path=board_data.CHROMIUM, args=['--no-sandbox']
    )
    yield found
    found.close()


def test_in_a_browser(folder, random_bundle, browser):
  _run('-m', random_bundle, '--html', 'page.html', '--spans', 'spans')
  view = browser.new_page(
    color_scheme='light', viewport={'width': 360, 'height': 740}
  )
  problems, requests = [], []
  view.on('console', lambda message: problems.append(message.text))
  view.on('pageerror', lambda error: problems.append(str(error)))
  view.on('request', lambda request: requests.append(request.url))
  view.goto((folder / 'page.html').as_uri())
  assert view.evaluate('document.documentElement.scrollWidth') <= 360
  assert view.title() == 'A / B: T5Score'

  def ids():
    return view.locator('article h3 span:first-child').all_inner_texts()

  def differences():
    texts = view.locator('article h3 span:last-child').all_inner_texts()
    return [float(t.replace('\N{MINUS SIGN}', '-')) for t in texts]

  assert len(ids()) == 6
  spread = [abs(d) for d in differences()]
  assert spread == sorted(spread, reverse=True)
  # Errors first, since they were given; the text is text.
  marks = view.locator('mark').all_inner_texts()
  assert sorted(marks) == ['!', 'music', 'sees ']
  shown = view.locator('article dd').all_inner_texts()
  assert EVIL in shown and B[5] in shown

  view.select_option('#severity', 'critical')
  assert ids() == ['4']
  view.select_option('#severity', '')
  view.select_option('#colour', 'tokens')
  token = view.locator('article', has_text='the cat sees').locator('.token')
  assert 'log-probability' in token.first.get_attribute('title')
  colour = 'e => getComputedStyle(e).backgroundColor'
  deep = {view.evaluate(colour, e) for e in token.element_handles()}
  assert len(deep) > 2
  view.locator('body').press('/')
  view.keyboard.type('größe')
  assert ids() == ['4'] and '1 of 6' in view.locator('#count').inner_text()
  view.fill('#search', '')
  view.select_option('#order', 'given')
  assert ids() == list('123456')
  view.fill('#least', str(spread[2] - 1e-3))
  assert len(ids()) == 3
  view.fill('#least', '')
  view.select_option('#first', '0')
  view.select_option('#order', 'better')
  assert differences() == sorted(differences(), reverse=True)

  back = 'getComputedStyle(document.body).backgroundColor'
  before = view.evaluate(back)
  for _ in range(2):
    view.locator('#theme').click()
  assert view.locator('#theme').inner_text() == 'Theme: dark'
  assert view.evaluate(back) != before
  assert problems == [] and len(requests) == 1
  view.close()
