// Tables, filters and segments of a comparison. All text goes through textContent.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const PAGE = 50;
// At this log-probability a token has the full colour: one in 3000.
const DEEPEST = 8;
const THEMES = ['system', 'light', 'dark'];
const $ = (id) => document.getElementById(id);
let shown = PAGE;
let current = data.pairs[0];

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function number(value, sign = false) {
  if (value === null) return '–';
  const text = Math.abs(value).toFixed(data.digits);
  const minus = value < 0 && Number(text) !== 0;
  return (minus ? '\u2212' : sign ? '+' : '') + text;
}

function probability(value) {
  return value === null ? '–' : value < 0.0001 ? '<.0001' : value.toFixed(4);
}

function table(id, head, rows, names = 1) {
  const header = element('tr');
  head.forEach((text, n) => {
    const cell = element('th', text, n < names ? 'name' : '');
    cell.scope = 'col';
    header.append(cell);
  });
  const top = element('thead');
  const body = element('tbody');
  top.append(header);
  body.append(...rows);
  $(id).replaceChildren(top, body);
}

function row(cells, names = 1) {
  const made = element('tr');
  cells.forEach((text, n) => made.append(element(n ? 'td' : 'th', text, n < names ? 'name' : '')));
  made.cells[0].scope = 'row';
  return made;
}

function showTables() {
  table('systems', ['system', 'value', '95% interval', 'segments'], current.systems.map((s) => row(
    [s.name, number(s.value), `${number(s.low)} to ${number(s.high)}`, current.count])));
  const head = ['system', 'minus', 'difference', '95% interval', 'p bootstrap', 'p randomisation', 'wins', 'better', 'worse'];
  table('comparisons', head, current.comparisons.map((c) => {
    const made = row([c.first, c.second, number(c.difference, true),
      `${number(c.low, true)} to ${number(c.high, true)}`, probability(c.bootstrap_p),
      probability(c.randomisation_p), `${(100 * c.wins[0]).toFixed(1)}%`, c.segments[0], c.segments[1]], 2);
    made.cells[2].classList.add('difference');
    const p = c.randomisation_p ?? c.bootstrap_p;
    made.classList.add('pick');
    if (p !== null && p < 0.05) made.classList.add('significant');
    made.title = 'Show these two below';
    made.addEventListener('click', () => choose(c.first, c.second));
    return made;
  }), 2);
  const notes = [...data.notes];
  if (current.segments.length < current.count) {
    notes.push(`Below are ${current.segments.length} of ${current.count} segments, those on which the systems differ most.`);
  }
  $('notes').replaceChildren(...notes.map((text) => element('li', text)));
}

function choose(first, second) {
  const names = current.systems.map((s) => s.name);
  $('first').value = names.indexOf(first);
  $('second').value = names.indexOf(second);
  update();
}

function options(select, names) {
  select.replaceChildren(...names.map((name, n) => {
    const made = element('option', name);
    made.value = n;
    return made;
  }));
}

function choosePair() {
  current = data.pairs[Number($('pair').value)];
  const names = current.systems.map((s) => s.name);
  options($('first'), names);
  options($('second'), names);
  showTables();
  const { first, second } = current.comparisons[0];
  choose(first, second);
}

function errorsOf(output) {
  return (output.errors || []).filter(([, severity]) => severity);
}

function fits(segment, first, second, words, least, severity) {
  const outputs = [segment.outputs[first], segment.outputs[second]];
  if (Math.abs(outputs[0].score - outputs[1].score) < least) return false;
  if (severity) {
    const has = outputs.some((o) => errorsOf(o).some(([, s]) => severity === 'any' || s === severity));
    if (!has) return false;
  }
  if (!words.length) return true;
  const text = [segment.id, segment.source ?? '', ...segment.references, ...segment.outputs.map((o) => o.text)]
    .join('\n').toLocaleLowerCase();
  return words.every((word) => text.includes(word));
}

function chosen() {
  const first = Number($('first').value);
  const second = Number($('second').value);
  const words = $('search').value.toLocaleLowerCase().split(/\s+/).filter(Boolean);
  const least = Math.max(Number($('least').value) || 0, 0);
  const severity = $('severity').value;
  const difference = (s) => s.outputs[first].score - s.outputs[second].score;
  const keys = {
    differ: (s) => -Math.abs(difference(s)),
    better: (s) => -difference(s),
    worse: difference,
    low: (s) => s.outputs[first].score,
    given: () => 0,
  };
  const key = keys[$('order').value];
  return current.segments
    .filter((s) => fits(s, first, second, words, least, severity))
    .map((s) => [key(s), s])
    .sort((a, b) => a[0] - b[0])
    .map(([, s]) => s);
}

function hypothesis(output) {
  const made = element('dd');
  made.dir = 'auto';
  const colour = $('colour').value;
  if (colour === 'tokens' && output.tokens) {
    for (const [piece, value] of output.tokens) {
      const token = element('span', piece, 'token');
      token.style.setProperty('--p', Math.min(-value / DEEPEST, 1));
      token.title = `log-probability ${number(value)}`;
      made.append(token);
    }
  } else if (colour === 'errors' && output.errors) {
    for (const [text, severity] of output.errors) {
      if (!severity) { made.append(text); continue; }
      const known = ['minor', 'major', 'critical'].includes(severity);
      const mark = element('mark', text, known ? severity : '');
      mark.title = severity;
      made.append(mark);
    }
  } else {
    made.textContent = output.text;
  }
  if (!output.text) made.append(element('em', '(empty)', 'quiet'));
  return made;
}

function card(segment) {
  const first = Number($('first').value);
  const second = Number($('second').value);
  const difference = segment.outputs[first].score - segment.outputs[second].score;
  const made = element('article');
  const head = element('h3');
  head.append(element('span', segment.id), element('span', number(difference, true),
    difference > 0 ? 'better' : difference < 0 ? 'worse' : ''));
  const list = element('dl');
  const add = (name, text) => {
    const cell = element('dd', text);
    cell.dir = 'auto';
    list.append(element('dt', name), cell);
  };
  if (segment.source !== null) add('source', segment.source);
  segment.references.forEach((text, n) => add(n ? `reference ${n + 1}` : 'reference', text));
  const rest = segment.outputs.map((_, n) => n).filter((n) => n !== first && n !== second);
  for (const n of [...new Set([first, second]), ...($('all').checked ? rest : [])]) {
    const name = element('dt');
    name.append(element('b', current.systems[n].name), element('span', number(segment.outputs[n].score)));
    list.append(name, hypothesis(segment.outputs[n]));
  }
  made.append(head, list);
  return made;
}

function update() {
  const found = chosen();
  $('segments').replaceChildren(...found.slice(0, shown).map(card));
  $('count').textContent = `${found.length} of ${current.segments.length} segments`;
  $('more').hidden = found.length <= shown;
  const legends = {
    tokens: data.has_tokens ? 'The deeper the colour, the less probable the token is, given the text that it is compared with and the tokens before it; hover for its log-probability.' : '',
    errors: data.has_errors ? 'Errors: dotted minor, dashed major, solid critical.' : '',
  };
  $('legend').textContent = legends[$('colour').value] || '';
}

function theme(name) {
  const next = name || (() => { try { return localStorage.getItem('theme'); } catch { return null; } })() || 'system';
  if (next === 'system') document.documentElement.removeAttribute('data-theme');
  else document.documentElement.dataset.theme = next;
  $('theme').textContent = `Theme: ${next}`;
  $('theme').dataset.now = next;
  if (name) { try { localStorage.setItem('theme', name); } catch { /* for this page only */ } }
}

theme();
$('theme').addEventListener('click', () => theme(THEMES[(THEMES.indexOf($('theme').dataset.now) + 1) % 3]));
options($('pair'), data.pairs.map((p) => p.name || 'all'));
$('pairs').hidden = data.pairs.length < 2;
$('pair').addEventListener('change', choosePair);
$('severity-label').hidden = !data.has_errors;
for (const [value, has] of [['tokens', data.has_tokens], ['errors', data.has_errors]]) {
  if (!has) $('colour').querySelector(`[value=${value}]`).remove();
}
$('colour').value = data.has_errors ? 'errors' : data.has_tokens ? 'tokens' : 'none';
for (const id of ['first', 'second', 'order', 'least', 'search', 'severity', 'colour', 'all']) {
  $(id).addEventListener('input', () => { shown = PAGE; update(); });
}
$('more').addEventListener('click', () => { shown += PAGE; update(); });
document.addEventListener('keydown', (event) => {
  if (event.key === '/' && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    $('search').focus();
  }
});
choosePair();
