// Sorting, filtering, theme, copying. The page is complete without it.
'use strict';

const themes = ['system', 'light', 'dark'];

function storedTheme() {
  try { return localStorage.getItem('theme') || 'system'; } catch { return 'system'; }
}

function applyTheme(name) {
  if (name === 'system') document.documentElement.removeAttribute('data-theme');
  else document.documentElement.dataset.theme = name;
  const button = document.getElementById('theme');
  if (button) button.textContent = `Theme: ${name}`;
}

function valueOf(row, column, kind) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (kind === 'text') return text.toLocaleLowerCase();
  const number = parseFloat(text.replace('\u2212', '-'));
  return Number.isNaN(number) ? null : number;
}

function sortBy(table, header, descending) {
  const column = header.cellIndex;
  const kind = header.dataset.kind;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row, place) => [valueOf(row, column, kind), place, row]);
  rows.sort(([a, i], [b, j]) => {
    // Rows without a value stay last in both directions.
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    const order = kind === 'text' ? a.localeCompare(b) : a - b;
    return (descending ? -order : order) || i - j;
  });
  for (const other of table.tHead.querySelectorAll('[aria-sort]')) other.setAttribute('aria-sort', 'none');
  header.setAttribute('aria-sort', descending ? 'descending' : 'ascending');
  body.append(...rows.map(([, , row]) => row));
}

function filter(id) {
  const table = document.getElementById(id);
  const words = document.querySelector(`[data-filter=${id}]`).value.toLocaleLowerCase().split(/\s+/);
  const machines = document.querySelector(`[data-human=${id}]`);
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    const text = row.cells[1].textContent.toLocaleLowerCase();
    const hidden = !words.every((word) => text.includes(word))
      || (machines && machines.checked && row.classList.contains('human'));
    row.hidden = hidden;
    shown += !hidden;
  }
  document.querySelector(`[data-count=${id}]`).textContent = `${shown} of ${table.tBodies[0].rows.length}`;
}

async function copy(button) {
  const field = document.getElementById(button.dataset.copy);
  const status = button.parentElement.querySelector('.copied');
  try {
    await navigator.clipboard.writeText(field.value);
  } catch {
    field.select();
    document.execCommand('copy');
  }
  status.textContent = 'copied';
  setTimeout(() => { status.textContent = ''; }, 2000);
}

applyTheme(storedTheme());
document.addEventListener('DOMContentLoaded', () => {
  const button = document.getElementById('theme');
  button.hidden = false;
  applyTheme(storedTheme());
  button.addEventListener('click', () => {
    const next = themes[(themes.indexOf(storedTheme()) + 1) % themes.length];
    try { localStorage.setItem('theme', next); } catch { /* for this page only */ }
    applyTheme(next);
  });
  for (const table of document.querySelectorAll('table')) {
    for (const sorter of table.querySelectorAll('.sort')) {
      const header = sorter.closest('th');
      sorter.addEventListener('click', () => {
        const now = header.getAttribute('aria-sort').replace('none', '');
        // Numbers start with the largest, the best; ranks with the first.
        const rising = header.dataset.kind === 'text' || /^(#|Ranks)$/.test(sorter.textContent);
        sortBy(table, header, now ? now === 'ascending' : !rising);
      });
    }
  }
  for (const tools of document.querySelectorAll('.tools')) tools.hidden = false;
  for (const input of document.querySelectorAll('[data-filter]')) {
    input.addEventListener('input', () => filter(input.dataset.filter));
    filter(input.dataset.filter);
  }
  for (const box of document.querySelectorAll('[data-human]')) {
    box.addEventListener('change', () => filter(box.dataset.human));
  }
  for (const box of document.querySelectorAll('[data-columns]')) {
    const table = document.getElementById(box.dataset.columns);
    table.classList.add('narrow');
    box.addEventListener('change', () => table.classList.toggle('narrow', !box.checked));
  }
  for (const each of document.querySelectorAll('[data-copy]')) {
    each.hidden = false;
    each.addEventListener('click', () => copy(each));
  }
  const waiting = document.querySelector('[data-refresh]');
  if (waiting) setTimeout(() => location.reload(), 1000 * waiting.dataset.refresh);
  document.addEventListener('keydown', (event) => {
    if (event.key === '/' && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) {
      const first = document.querySelector('[data-filter]');
      if (first) { event.preventDefault(); first.focus(); }
    }
  });
});
