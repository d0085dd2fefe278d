"""The site: complete without a script, and in a browser, where there is one."""

import html
import html.parser
import json
import re
import urllib.parse

import board_data
import numpy as np
import pytest

pytest.importorskip('sklearn')
pytest.importorskip('jinja2')

from t5score_jax.leaderboard import changes  # noqa: E402
from t5score_jax.leaderboard.entries import BoardError, Generator  # noqa: E402
from t5score_jax.leaderboard.store import Store  # noqa: E402
from t5score_jax.leaderboard.web import examples, page, plots  # noqa: E402
from t5score_jax.leaderboard.web.plots import Mark  # noqa: E402

NASTY = '<script>alert(1)</script>"\'&'


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  """The built site of a small board with a name that attacks."""
  folder = tmp_path_factory.mktemp('site')
  path = board_data.small_board(folder)
  with Store(path) as store:
    changes.add_generator(
      store,
      Generator(
        NASTY.replace('/', ''), description=NASTY, seconds=12, parameters=6e7
      ),
      [NASTY] * store.size(),
    )
    page.build(store, folder / 'out')
    with pytest.raises(BoardError, match='out'):
      page.build(store, folder / 'out')
  return folder / 'out'


class _Reader(html.parser.HTMLParser):
  """Links, ids, and whether tags are closed."""

  VOID = {'meta', 'link', 'input', 'br', 'circle', 'line', 'rect', 'polyline'}

  def __init__(self):
    super().__init__()
    self.links, self.ids, self.open, self.scripts = [], [], [], []

  def handle_starttag(self, tag, attrs):
    found = dict(attrs)
    self.links += [found[n] for n in ('href', 'src') if found.get(n)]
    if 'id' in found:
      self.ids.append(found['id'])
    assert not [n for n in found if n.startswith('on')], 'inline handler'
    if tag == 'script':
      self.scripts.append(found)
    if tag not in self.VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.handle_starttag(tag, attrs)
    if tag not in self.VOID:
      self.open.pop()

  def handle_endtag(self, tag):
    if tag not in self.VOID:
      assert self.open.pop() == tag


def test_page_is_whole_and_safe(site):
  text = (site / 'index.html').read_text()
  reader = _Reader()
  reader.feed(text)
  assert reader.open == []
  assert len(set(reader.ids)) == len(reader.ids)
  assert [s.get('src') for s in reader.scripts] == ['board.js']
  assert '<script>alert' not in text
  for link in reader.links:
    if not link.startswith(('#', 'data:')):
      assert '//' not in link
      decoded = site / urllib.parse.unquote(link)
      assert decoded.is_file(), link
  style = (site / 'style.css').read_text()
  assert 'url(' not in style and '@import' not in style


def test_rows_have_links_and_tables_captions(site):
  reader = _Reader()
  text = (site / 'index.html').read_text()
  reader.feed(text)
  rows = [link[1:] for link in reader.links if link.startswith('#')]
  assert {'generator-system-2', 'metric-m0'} <= set(rows) <= set(reader.ids)
  assert text.count('<table') == text.count('<caption') == 3
  assert text.count('aria-sort="ascending"') == 2
  assert 'a small board, 40 examples' in text
  assert '3540--3557' in text and 'How to cite' in text


def test_anchors_are_different():
  names = ['a b', 'a-b', 'a/b', 'é']
  ids = page.anchors(names, 'g')
  assert len(set(ids.values())) == 4
  assert all(re.fullmatch('[A-Za-z0-9._~-]+', i) for i in ids.values())


def test_single_examples(site, tmp_path):
  """Each has the texts, the ratings and all scores of its outputs."""
  pages = sorted(site.glob('examples/*.html'))
  assert len(pages) == 41
  systems, _, columns = board_data.made_up()
  text = (site / 'examples/7.html').read_text()
  assert NASTY not in text and html.escape(NASTY, quote=False)[:9] in text
  for name, values in columns.items():
    for i in range(len(systems) - 1):
      digits = 2 if name == 'human' else 3
      assert f'>{page.number(values[i, 6], digits)}</td>' in text, name
  fitted = json.loads((site / 'data/board.json').read_text())['ensemble']
  score = fitted['intercept'] + sum(
    weight * columns[n][1, 6] for n, weight in fitted['raw'].items()
  )
  assert f'>{page.number(score)}</td>' in text
  with Store(board_data.small_board(tmp_path)) as store:
    value = {'generators': [{}] * 10**4, 'metrics': [{}] * 98}
    assert examples.Examples(store, value).affordable() == 1


def test_downloads_say_what_the_page_says(site):
  value = json.loads((site / 'data/board.json').read_text())
  document = json.loads((site / 'data/rank.json').read_text())
  assert [g['name'] for g in document['generators']] == [
    g['name'] for g in value['generators']
  ]
  rows = (site / 'data/generators.tsv').read_text().splitlines()
  assert len(rows) == len(value['generators']) + 1
  (outputs,) = (site / 'outputs').iterdir()
  assert json.loads(outputs.read_text().splitlines()[0])['hypothesis'] == NASTY


def test_empty_boards_have_pages(tmp_path):
  from t5score_jax.leaderboard import layouts

  inputs = tmp_path / 'inputs.jsonl'
  inputs.write_text('{"id": "a", "source": "x"}\n')
  layouts.import_inputs(tmp_path / 'e.db', inputs, 'empty')
  with Store(tmp_path / 'e.db') as store:
    page.build(store, tmp_path / 'out')
  assert 'no ensemble yet' in (tmp_path / 'out/index.html').read_text()
  assert (tmp_path / 'out/data/metrics.tsv').read_text().startswith('rank\t')


def test_ticks_hold_the_values():
  rng = np.random.default_rng(0)
  for low, high in np.sort(rng.normal(size=(50, 2)) * 10 ** rng.uniform(-3, 5)):
    found = plots.ticks(low, high)
    assert found[0] <= low and found[-1] >= high and 3 <= len(found) <= 12
  assert plots.ticks(2.0, 2.0)[0] < 2.0 < plots.ticks(2.0, 2.0)[-1]


def test_plots_escape_and_place():
  marks = [Mark(NASTY, 1.0, 0.5, 1.5, 'over'), Mark('b', -1.0, -2.0, 0.0)]
  svg = str(plots.intervals(marks, NASTY, 'axis'))
  assert '<script' not in svg
  centers = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', svg)]
  grid = [float(x) for x in re.findall(r'<line x1="([\d.]+)" x2="\1"', svg)]
  values = plots.ticks(-2.0, 1.5)
  assert centers == pytest.approx(
    np.interp([1.0, -1.0], values, grid[: len(values)]), abs=0.2
  )
  assert plots.points(marks[:1], '', ('x', 'y')) == ''
  assert plots.intervals([], '', '') == ''
  assert plots.curves({}, '', ('', '')) == ''


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


def _column(view, table, number):
  return view.eval_on_selector_all(
    f'#{table} tbody tr:not([hidden])',
    f'rows => rows.map(r => r.cells[{number}].textContent.trim())',
  )


def test_in_a_browser(site, browser):
  """Sort, filter, theme, copy; by keyboard; nothing from other hosts."""
  view = browser.new_page(color_scheme='light')
  problems, requests = [], []
  view.on('console', lambda message: problems.append(message.text))
  view.on('pageerror', lambda error: problems.append(str(error)))
  view.on('request', lambda request: requests.append(request.url))
  view.goto((site / 'index.html').as_uri())
  names = _column(view, 'generators', 1)
  view.get_by_role('button', name='Rating').first.click()
  ratings = [
    float(t.replace('\N{MINUS SIGN}', '-'))
    for t in _column(view, 'generators', 4)
    if t != '–'
  ]
  assert ratings == sorted(ratings, reverse=True) and len(ratings) == 4
  header = view.locator('#generators th', has_text='Rating')
  assert header.get_attribute('aria-sort') == 'descending'
  view.locator('#generators th', has_text='#').locator('button').press('Enter')
  # Ties in rank do not move: the order is the first one again.
  assert _column(view, 'generators', 1) == names

  view.keyboard.press('Escape')
  view.locator('body').press('/')
  view.keyboard.type('system 2')
  assert _column(view, 'generators', 1) == ['system 2']
  assert '1 of 6' in view.locator('[data-count=generators]').inner_text()
  view.locator('[data-filter=generators]').fill('')
  view.get_by_label('without human texts').check()
  assert len(_column(view, 'generators', 1)) == 5

  dark = 'getComputedStyle(document.body).backgroundColor'
  before = view.evaluate(dark)
  for _ in range(2):
    view.locator('#theme').click()
  assert view.locator('#theme').inner_text() == 'Theme: dark'
  assert view.evaluate(dark) != before
  view.reload()
  assert view.evaluate(dark) != before, 'the choice is remembered'

  view.get_by_role('button', name='Copy').first.click()
  view.locator('.copied', has_text='copied').wait_for()
  assert problems == []
  assert all(r.startswith(('file:', 'data:')) for r in requests)
  view.close()


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_narrow_screens_and_contrast(site, browser, scheme):
  view = browser.new_page(
    viewport={'width': 360, 'height': 740}, color_scheme=scheme
  )
  for name in ('examples/index.html', 'examples/7.html', 'index.html'):
    view.goto((site / name).as_uri())
    width = view.evaluate('document.documentElement.scrollWidth')
    assert width <= 360, f'{name} itself scrolls sideways'
    hidden = view.evaluate(
      """() => [...document.querySelectorAll('table, svg, p, dd, h1')].filter(
        e => e.getBoundingClientRect().right > 360 && !e.closest('.scroll')
      ).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert hidden == [], 'what is too wide scrolls'
  colors = view.evaluate(
    """() => ['body', '.facts dt', '.over', '.under', 'a', 'thead th'].map(
      s => { const e = document.querySelector(s);
             return e && [s, getComputedStyle(e).color,
               getComputedStyle(document.body).backgroundColor]; })"""
  )
  for entry in colors:
    if entry:
      selector, ink, paper = entry
      assert _contrast(ink, paper) >= 4.5, selector
  view.close()


def test_without_a_script_everything_is_shown(site, browser):
  context = browser.new_context(java_script_enabled=False)
  view = context.new_page()
  view.goto((site / 'index.html').as_uri())
  heads = view.locator('#generators thead th')
  assert heads.count() == 13
  assert all(heads.nth(n).is_visible() for n in range(heads.count()))
  view.goto((site / 'index.html').as_uri() + '#generator-system-2')
  assert view.locator('tr:target').inner_text().split('\t')[1] == 'system 2'
  context.close()


def _contrast(first: str, second: str) -> float:
  """WCAG's contrast of two CSS colours."""

  def luminance(text):
    parts = np.array(re.findall(r'[\d.]+', text)[:3], float) / 255
    linear = np.where(
      parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4
    )
    return linear @ [0.2126, 0.7152, 0.0722]

  low, high = sorted([luminance(first), luminance(second)])
  return (high + 0.05) / (low + 0.05)
