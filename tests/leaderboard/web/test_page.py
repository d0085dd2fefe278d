"""The site: complete without a script, and in a browser, where there is one."""

import html.parser
import json
import re
import urllib.parse

import board_data
import numpy as np
import pytest

pytest.importorskip('sklearn')
pytest.importorskip('jinja2')

from t5score_jax.leaderboard import changes, plots  # noqa: E402
from t5score_jax.leaderboard.entries import BoardError, Generator  # noqa: E402
from t5score_jax.leaderboard.plots import Mark  # noqa: E402
from t5score_jax.leaderboard.store import Store  # noqa: E402
from t5score_jax.leaderboard.web import page  # noqa: E402

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
    with pytest.raises(BoardError, match='exists already'):
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
  view.get_by_label('without people').check()
  assert len(_column(view, 'generators', 1)) == 5

  dark = 'getComputedStyle(document.body).backgroundColor'
  before = view.evaluate(dark)
  for _ in range(2):
    view.locator('#theme').click()
  assert view.locator('#theme').inner_text() == 'Theme: dark'
  assert view.evaluate(dark) != before
  view.reload()
  assert view.evaluate(dark) != before, 'the choice is remembered'

  view.get_by_role('button', name='Copy').click()
  view.locator('.copied', has_text='copied').wait_for()
  assert problems == []
  assert all(r.startswith(('file:', 'data:')) for r in requests)
  view.close()


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_narrow_screens_and_contrast(site, browser, scheme):
  view = browser.new_page(
    viewport={'width': 360, 'height': 740}, color_scheme=scheme
  )
  view.goto((site / 'index.html').as_uri())
  width = view.evaluate('document.documentElement.scrollWidth')
  assert width <= 360, 'the page itself does not scroll sideways'
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
