"""The board as a static site: pages, plots, downloads; no external requests.

Templates, style and script are in `site/`; the server shows the same pages.
Jinja2 escapes everything that comes from the board. `analysis.py` computes what
is shown; `examples.py` has the pages of single examples.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from t5score_jax.data import files
from t5score_jax.leaderboard import folders, renewal
from t5score_jax.leaderboard.analysis import COSTS
from t5score_jax.leaderboard.store import Store
from t5score_jax.leaderboard.web import examples, plots
from t5score_jax.leaderboard.web.plots import SITE, Mark, amount
from t5score_jax.version import __version__

#: Files that pages need beside them, and their media types.
ASSETS = {'style.css': 'text/css', 'board.js': 'text/javascript'}
#: The most generators in a plot.
_DRAWN = 60
#: The number of metrics beside a generator's score, until all are asked for.
_SHOWN = 5

Downloads = dict[str, Callable[[], bytes]]


def number(value: float | None, digits: int = 3) -> str:
  """Formats a number with a real minus sign; a dash for None."""
  if value is None:
    return '–'
  return f'{value:.{digits}f}'.replace('-', '\N{MINUS SIGN}')


def asset(name: str) -> bytes:
  """A file of `ASSETS`."""
  return (SITE / name).read_bytes()


def anchors(names: Iterable[str], prefix: str) -> dict[str, str]:
  """Ids of table rows, for links: name -> id, all different."""
  ids: dict[str, str] = {}
  for name in names:
    slug = f'{prefix}-{re.sub("[^A-Za-z0-9._-]+", "-", name)}'
    taken = set(ids.values())
    copies = (f'{slug}~{n}' for n in range(2, len(taken) + 3))
    ids[name] = next(s for s in (slug, *copies) if s not in taken)
  return ids


def downloads(store: Store, value: Mapping[str, Any]) -> Downloads:
  """Path -> function that makes the bytes, for everything that is offered.

  Args:
    store: The board, open.
    value: Its analyses.

  Returns:
    The analyses as JSON, tables as TSV, versions of the ensemble, and each
    generator's outputs as JSONL.
  """
  ranks = functools.partial(
    renewal.rank_document, dict(value), intervals=True, costs=True
  )
  found: Downloads = {
    'data/board.json': lambda: _json(value),
    'data/rank.json': lambda: _json(ranks()),
    'data/metrics.tsv': lambda: _tsv(value['metrics'], _METRIC_COLUMNS),
    'data/generators.tsv': lambda: _tsv(
      value['generators'], _generator_columns(value)
    ),
    'data/ensembles.jsonl': lambda: _jsonl(
      v.to_json() for v in store.versions()
    ),
  }
  for generator in store.generators():
    if generator.has_outputs:
      found[outputs_path(generator.name)] = functools.partial(
        _outputs, store, generator.id
      )
  return found


def outputs_path(name: str) -> str:
  """The path of a generator's outputs."""
  return f'outputs/{folders.file_name(name)}.jsonl'


def _json(value: Any) -> bytes:
  return (json.dumps(value, ensure_ascii=False, indent=1) + '\n').encode()


def _jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
  lines = (json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
  return ''.join(lines).encode('utf-8', 'replace')


def _tsv(entries: Sequence[Any], columns: Mapping[str, Any]) -> bytes:
  """A table of entries; `columns` has name -> path of keys in an entry."""
  text = io.StringIO()
  writer = csv.writer(text, delimiter='\t', lineterminator='\n')
  writer.writerow(columns)
  for entry in entries:
    writer.writerow([_cell(entry, keys) for keys in columns.values()])
  return text.getvalue().encode()


def _cell(value: Any, keys: Sequence[str]) -> Any:
  for key in keys:
    value = (value or {}).get(key)
  return int(value) if isinstance(value, bool) else value


_METRIC_COLUMNS = {
  'rank': ['rank'],
  'metric': ['name'],
  'correlation': ['correlation'],
  'low': ['interval', 'low'],
  'high': ['interval', 'high'],
  'beta': ['overrating', 'beta'],
  'ci90': ['overrating', 'ci90'],
  'seconds': ['seconds'],
  'parameters': ['parameters'],
  'signature': ['signature'],
}


def _generator_columns(value: Mapping[str, Any]) -> dict[str, list[str]]:
  names = ('human', 'score', 'rating', *COSTS)
  metrics = (m['name'] for m in value['metrics'])
  return {
    'rank': ['rank'],
    'generator': ['name'],
    **{name: [name] for name in names},
    **{name: ['scores', name] for name in metrics},
  }


def _outputs(store: Store, generator: int) -> bytes:
  texts = store.outputs(generator) or []
  return _jsonl(
    {'id': key, 'hypothesis': text}
    for key, text in zip(store.ids(), texts, strict=True)
  )


def render(
  template: str, root: str = '', server: bool = False, **values: Any
) -> str:
  """Renders a page.

  Args:
    template: The file in `site/`.
    root: The relative path of the site's root: '' or '../'.
    server: Whether a server shows the page: it then links to submissions.
    **values: The variables of the template.

  Returns:
    HTML.
  """
  filters = {'number': number, 'amount': amount}
  environment = plots.environment()
  environment.filters.update(filters)
  return environment.get_template(template).render(
    root=root, server=server, library=__version__, **values
  )


def index(
  store: Store,
  value: Mapping[str, Any],
  server: bool = False,
  pages: int | None = None,
) -> str:
  """Renders the board's page.

  Args:
    store: The board.
    value: Its analyses.
    server: Whether a server shows it.
    pages: The number of examples that have pages; None for all.

  Returns:
    HTML.
  """
  shown = [m['name'] for m in value['metrics'] if m['rank'] is not None]
  generators, metrics = value['generators'], value['metrics']
  return render(
    'index.html',
    server=server,
    board=value['board'],
    value=value,
    pages=value['board']['examples'] if pages is None else pages,
    warnings=renewal.warnings(value),
    generator_ids=anchors((g['name'] for g in generators), 'generator'),
    metric_ids=anchors((m['name'] for m in metrics), 'metric'),
    shown=[n for n in shown if n != value['best']][:_SHOWN],
    links={
      g['name']: outputs_path(g['name']) for g in generators if g['has_outputs']
    },
    versions=list(reversed(store.versions())),
    plots=_plots(value),
    measured=any(
      e[cost] is not None for e in (*metrics, *generators) for cost in COSTS
    ),
  )


def _plots(value: Mapping[str, Any]) -> dict[str, Any]:
  """Caption -> plot; plots without data are left out."""
  roles = value['overrating']
  drawn = {
    'Correlation with human ratings, 95% intervals': _correlation_plot(value),
    **{
      'Overrating of machines, 90% intervals'
      + (f', role {role}' if len(roles) > 1 else ''): _overrating_plot(
        role, fits
      )
      for role, fits in roles.items()
    },
    'Correlation by the number of references': plots.curves(
      {
        name: {float(n): r for n, r in curve.items()}
        for name, curve in value['references'].items()
      },
      'Correlation by the number of references',
      ('references', 'correlation'),
    ),
    'Generators: human ratings and the best metric': _agreement_plot(value),
    **_cost_plots(value),
  }
  return {caption: plot for caption, plot in drawn.items() if plot}


def _correlation_plot(value: Mapping[str, Any]) -> Any:
  marks = []
  for m in value['metrics']:
    if m['rank'] is not None:
      interval = m['interval'] or {}
      kind = 'strong' if m['kind'] == 'fitted' else 'plain'
      ends = interval.get('low'), interval.get('high')
      marks.append(Mark(m['name'], m['correlation'], *ends, kind))
  rule = value['board']['rule']
  return plots.intervals(
    marks,
    'Correlation of metrics with human ratings, with 95% intervals',
    f'{rule["level"]}-level {rule["statistic"]} correlation',
  )


def _overrating_plot(role: str, fits: Mapping[str, Any]) -> Any:
  kinds = {1: 'over', -1: 'under', 0: 'plain'}
  marks = [
    Mark(
      name,
      fit['beta'],
      fit['beta'] - fit['ci90'],
      fit['beta'] + fit['ci90'],
      kinds[fit['significance']],
    )
    for name, fit in sorted(fits.items(), key=lambda item: item[1]['beta'])
  ]
  return plots.intervals(
    marks,
    f'Overrating of machines over humans, role {role}, with 90% intervals',
    'beta_0 in standard deviations; right of 0, machines are overrated',
  )


def _agreement_plot(value: Mapping[str, Any]) -> Any:
  marks = [
    Mark(
      g['name'],
      g['score'],
      x=g['rating'],
      kind='human' if g['human'] else 'plain',
    )
    for g in value['generators']
    if g['score'] is not None and g['rating'] is not None
  ]
  return plots.points(
    marks[:_DRAWN],
    'Generators: mean human rating against the best metric',
    ('mean human rating', str(value['best'])),
  )


def _cost_plots(value: Mapping[str, Any]) -> dict[str, Any]:
  drawn = {}
  for cost in COSTS:
    for what, height in (('metrics', 'correlation'), ('generators', 'score')):
      marks = [
        Mark(
          e['name'],
          e[height],
          x=e[cost],
          kind='strong' if e[f'pareto_{cost}'] else 'plain',
        )
        for e in value[what]
        if e[cost] is not None
        and e[height] is not None
        and math.isfinite(e[cost])
      ]
      drawn[f'{what.capitalize()}: {height} and {cost}'] = plots.points(
        marks[:_DRAWN],
        f'{what}: {height} against {cost}; the line joins the Pareto front',
        (cost, height),
        logarithmic=True,
      )
  return drawn


def build(store: Store, folder: str | os.PathLike[str]) -> int:
  """Writes the static site into a new folder.

  Args:
    store: The board.
    folder: The folder, which must not exist; it appears when complete.

  Returns:
    The number of files.

  Raises:
    BoardError: The folder exists.
    OSError: A file cannot be written.
  """
  value = renewal.current(store)
  shown = examples.Examples(store, value)
  count = shown.affordable()
  pages: Downloads = {
    'index.html': lambda: index(store, value, pages=count).encode(),
    **{name: functools.partial(asset, name) for name in ASSETS},
    **downloads(store, value),
  }
  for n in range(count + 1 if count else 0):
    pages[examples.path(n)] = functools.partial(_example, shown, n, count)
  with folders.new_folder(folder) as partial:
    for path, make in pages.items():
      target = partial / path
      target.parent.mkdir(exist_ok=True)
      with files.write_atomically(target, 'wb') as out:
        out.write(make())
  return len(pages)


def _example(
  shown: examples.Examples, n: int, count: int, server: bool = False
) -> bytes:
  """Renders the list of examples (0) or the page of one, from 1."""
  template = 'example.html' if n else 'examples.html'
  values = shown.example(n) if n else shown.listed(count)
  html = render(template, '../', server, count=count, **values)
  return html.encode('utf-8', 'replace')


def example(store: Store, value: Mapping[str, Any], n: int) -> bytes:
  """Renders the list of examples (0) or the page of one for a server."""
  shown = examples.Examples(store, value)
  return _example(shown, n, store.size(), server=True)
