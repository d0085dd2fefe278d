"""The board as a static site: pages, plots, downloads; no external requests.

Templates, style and script stand in `site/`; the server shows the same pages.
Jinja2 escapes everything that comes from the board. Not here: the analyses
(`analysis`) and submissions over HTTP (`server`).
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from t5score_jax.data import files
from t5score_jax.leaderboard import folders, plots, renewal
from t5score_jax.leaderboard.plots import Mark
from t5score_jax.leaderboard.store import Store
from t5score_jax.version import __version__

_SITE = Path(__file__).parent / 'site'
#: Files that pages need beside them, and their media types.
ASSETS = {'style.css': 'text/css', 'board.js': 'text/javascript'}
#: So many generators at most are drawn in plots.
_DRAWN = 60
#: So many metrics are shown beside a generator's score before all are asked
#: for.
_SHOWN = 5


@functools.cache
def environment() -> jinja2.Environment:
  """The templates; undefined names are errors."""
  found = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_SITE),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  found.filters.update(number=number, signed=signed, amount=amount)
  return found


def number(value: float | None, digits: int = 3) -> str:
  """A number with so many decimals, or a dash; a real minus sign."""
  if value is None:
    return '–'
  return f'{value:.{digits}f}'.replace('-', '\N{MINUS SIGN}')


def signed(value: float) -> str:
  """A number with its sign, two decimals."""
  return f'{value:+.2f}'.replace('-', '\N{MINUS SIGN}')


def amount(value: float | None) -> str:
  """A cost: three digits, thousands as k, M, G."""
  if value is None:
    return '–'
  for size, unit in ((1e9, ' G'), (1e6, ' M'), (1e3, ' k')):
    if abs(value) >= size:
      return f'{value / size:.3g}{unit}'
  return f'{value:.3g}'


def asset(name: str) -> bytes:
  """A file of `ASSETS`."""
  return (_SITE / name).read_bytes()


def downloads(
  store: Store, value: Mapping[str, Any]
) -> dict[str, Callable[[], bytes]]:
  """What the site offers for download: path -> function that makes the bytes.

  Args:
    store: The board, open.
    value: Its analyses.

  Returns:
    The board's value as JSON, tables as TSV, versions of the ensemble, and each
    generator's outputs as JSONL.
  """
  found: dict[str, Callable[[], bytes]] = {
    'data/board.json': lambda: _json(value),
    'data/rank.json': lambda: _json(
      renewal.rank_document(dict(value), intervals=True, costs=True)
    ),
    'data/metrics.tsv': lambda: _metrics_tsv(value),
    'data/generators.tsv': lambda: _generators_tsv(value),
    'data/ensembles.jsonl': lambda: _versions(store),
  }
  for generator in store.generators():
    if generator.has_outputs:
      found[outputs_path(generator.name)] = functools.partial(
        _outputs, store, generator.id
      )
  return found


def outputs_path(name: str) -> str:
  """Where a generator's outputs are downloaded from."""
  return f'outputs/{folders.file_name(name)}.jsonl'


def _json(value: Any) -> bytes:
  return (json.dumps(value, ensure_ascii=False, indent=1) + '\n').encode()


def _tsv(rows: list[list[Any]]) -> bytes:
  text = io.StringIO()
  writer = csv.writer(text, delimiter='\t', lineterminator='\n')
  writer.writerows(rows)
  return text.getvalue().encode()


def _metrics_tsv(value: Mapping[str, Any]) -> bytes:
  rows: list[list[Any]] = [
    ['rank', 'metric', 'correlation', 'low', 'high', 'beta', 'ci90', 'seconds']
    + ['parameters', 'signature']
  ]
  for m in value['metrics']:
    interval, fit = m['interval'] or {}, m['overrating'] or {}
    rows.append(
      [
        m['rank'],
        m['name'],
        m['correlation'],
        interval.get('low'),
        interval.get('high'),
        fit.get('beta'),
        fit.get('ci90'),
        m['seconds'],
        m['parameters'],
        m['signature'],
      ]
    )
  return _tsv(rows)


def _generators_tsv(value: Mapping[str, Any]) -> bytes:
  names = [m['name'] for m in value['metrics']]
  rows: list[list[Any]] = [
    ['rank', 'generator', 'human', 'score', 'rating', 'seconds', 'parameters']
    + names
  ]
  for g in value['generators']:
    rows.append(
      [g['rank'], g['name'], int(g['human']), g['score'], g['rating']]
      + [g['seconds'], g['parameters']]
      + [g['scores'].get(name) for name in names]
    )
  return _tsv(rows)


def _versions(store: Store) -> bytes:
  lines = [
    json.dumps(
      {
        'version': v.version,
        'created': v.created,
        'cause': v.cause,
        'signature': v.signature,
        'ensemble': dict(v.ensemble),
      },
      ensure_ascii=False,
    )
    for v in store.versions()
  ]
  return ''.join(line + '\n' for line in lines).encode()


def _outputs(store: Store, generator: int) -> bytes:
  return ''.join(
    json.dumps({'id': key, 'hypothesis': text}, ensure_ascii=False) + '\n'
    for key, text in zip(
      store.ids(), store.outputs(generator) or [], strict=True
    )
  ).encode('utf-8', 'replace')


def render(
  template: str, root: str = '', server: bool = False, **values: Any
) -> str:
  """A page.

  Args:
    template: The file in `site/`.
    root: What leads to the site's root: '' or '../'.
    server: Whether a server shows it: then there are links to submissions.
    **values: What the template needs.

  Returns:
    HTML.
  """
  return (
    environment()
    .get_template(template)
    .render(root=root, server=server, library=__version__, **values)
  )


def index(store: Store, value: Mapping[str, Any], server: bool = False) -> str:
  """The board's page.

  Args:
    store: The board.
    value: Its analyses.
    server: Whether a server shows it.

  Returns:
    HTML.
  """
  shown = [m['name'] for m in value['metrics'] if m['rank'] is not None]
  shown = [n for n in shown if n != value['best']][:_SHOWN]
  links = {
    g['name']: outputs_path(g['name'])
    for g in value['generators']
    if g['has_outputs']
  }
  return render(
    'index.html',
    server=server,
    board=value['board'],
    value=value,
    shown=set(shown),
    links=links,
    versions=list(reversed(store.versions())),
    correlation_plot=_correlation_plot(value),
    overrating_plots={
      role: _overrating_plot(role, fits)
      for role, fits in value['overrating'].items()
      if fits
    },
    references_plot=plots.curves(
      {
        name: {float(n): r for n, r in curve.items()}
        for name, curve in value['references'].items()
      },
      'Correlation by the number of references',
      ('references', 'correlation'),
    ),
    agreement_plot=_agreement_plot(value),
    cost_plots=_cost_plots(value),
    measured=any(
      e[c] is not None
      for e in (*value['metrics'], *value['generators'])
      for c in ('seconds', 'parameters')
    ),
  )


def _correlation_plot(value: Mapping[str, Any]) -> Any:
  marks = []
  for m in value['metrics']:
    if m['rank'] is not None and m['correlation'] is not None:
      interval = m['interval'] or {}
      marks.append(
        Mark(
          m['name'],
          m['correlation'],
          interval.get('low'),
          interval.get('high'),
          'strong' if m['kind'] == 'fitted' else 'plain',
        )
      )
  rule = value['board']['rule']
  return plots.intervals(
    marks,
    'Correlation of metrics with human ratings, with 95% intervals',
    f'{rule["level"]}-level {rule["statistic"]} correlation with people',
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
    f'Overrating of machines over people, role {role}, with 90% intervals',
    'beta_0 in standard deviations; right of 0, machines are overrated',
  )


def _agreement_plot(value: Mapping[str, Any]) -> Any:
  marks = [
    Mark(
      g['name'],
      g['score'],
      x=g['rating'],
      kind='people' if g['human'] else 'plain',
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
  found = {}
  for cost in ('seconds', 'parameters'):
    for entries, what, height in (
      (value['metrics'], 'metrics', 'correlation'),
      (value['generators'], 'generators', 'score'),
    ):
      marks = [
        Mark(
          e['name'],
          e[height],
          x=e[cost],
          kind='strong' if e[f'pareto_{cost}'] else 'plain',
        )
        for e in entries
        if e[cost] is not None
        and e[height] is not None
        and math.isfinite(e[cost])
      ]
      plot = plots.points(
        marks[:_DRAWN],
        f'{what}: {height} against {cost}; the line joins the Pareto front',
        (cost, height),
        logarithmic=True,
      )
      if plot:
        found[f'{what}: {height} and {cost}'] = plot
  return found


def build(store: Store, folder: str | os.PathLike[str]) -> int:
  """Writes the static site into a new folder.

  Args:
    store: The board.
    folder: The folder; it must not be there, and appears when it is complete.

  Returns:
    The number of files.

  Raises:
    BoardError: The folder is there.
    OSError: A file can't be written.
  """
  value = renewal.current(store)
  pages: dict[str, Callable[[], bytes]] = {
    'index.html': functools.partial(_page, store, value)
  }
  pages.update({n: functools.partial(asset, n) for n in ASSETS})
  pages.update(downloads(store, value))
  with folders.new_folder(folder) as partial:
    for path, make in pages.items():
      target = partial / path
      target.parent.mkdir(exist_ok=True)
      with files.write_atomically(target, 'wb') as out:
        out.write(make())
  return len(pages)


def _page(store: Store, value: Mapping[str, Any]) -> bytes:
  return index(store, value).encode()
