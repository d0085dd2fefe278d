"""Reads the declarations of metrics without importing them.

A metric's class may declare which models it reads (`MODELS`, `READS`), its
variants and its flags; see `base.Metric`. Importing a metric can take seconds,
and the command line needs all declarations for its help. Declarations are
therefore literals, or module constants with literal values, and are read from
the source.

Metrics are the files in this folder and the entry points that other
distributions define in the group `t5score_jax.metrics`:

    [project.entry-points.'t5score_jax.metrics']
    length = 'my_package.length'          # or 'my_package.metrics:Length'

Not a metric by itself (hence the underscore).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.metadata
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from t5score_jax import metrics

GROUP = 't5score_jax.metrics'
_NAMES = ('MODELS', 'READS', 'VARIANTS', 'FLAGS')


@dataclasses.dataclass(frozen=True)
class Declared:
  """The declarations of a metric; see `base.Metric`."""

  MODELS: tuple[str, ...] = ()
  READS: tuple[str, ...] = ()
  VARIANTS: Mapping[str, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )
  FLAGS: Mapping[str, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )

  @property
  def kinds(self) -> tuple[str, ...]:
    """All kinds of models that the metric reads; () means any or none."""
    return (*self.MODELS, *self.READS)


@dataclasses.dataclass(frozen=True)
class Source:
  """Where a metric's class is.

  Attributes:
    name: The metric's name.
    module: The module that defines it.
    attribute: The name of the class.
  """

  name: str
  module: str
  attribute: str = 'Metric'

  def load(self) -> Any:
    """Imports the class."""
    return getattr(importlib.import_module(self.module), self.attribute)

  def declared(self) -> Declared:
    """Reads the declarations; a module that cannot be read has none."""
    return _declared(self.module, self.attribute)


def sources() -> Mapping[str, Source]:
  """All metrics by name: those in this folder, then other distributions'."""
  return _sources(tuple(metrics.__path__), tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _sources(
  folder: tuple[str, ...], path: tuple[str, ...]
) -> Mapping[str, Source]:
  del path  # Entry points depend on it.
  own = {
    module.name: Source(module.name, f'{metrics.__name__}.{module.name}')
    for module in pkgutil.iter_modules(folder)
    if module.name not in ('base', 'registry', 'systems')
    and not module.name.startswith('_')
  }
  others = {
    point.name: Source(point.name, point.module, point.attr or 'Metric')
    for point in importlib.metadata.entry_points(group=GROUP)
  }
  return dict(sorted({**others, **own}.items()))


@functools.lru_cache(maxsize=64)
def _declared(module: str, attribute: str) -> Declared:
  try:
    spec = importlib.util.find_spec(module)
    text = spec.loader.get_source(module)  # type: ignore[union-attr]
    body = ast.parse(text).body
  except (ImportError, AttributeError, TypeError, SyntaxError):
    return Declared()
  inlined = _Inlined(dict(_assignments(body)))
  for node in body:
    if isinstance(node, ast.ClassDef) and node.name == attribute:
      return Declared(
        **{
          name: ast.literal_eval(inlined.visit(value))
          for name, value in _assignments(node.body)
          if name in _NAMES
        }
      )
  return Declared()


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
  """Yields the names and values of simple assignments."""
  for node in body:
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    target = node.target if isinstance(node, ast.AnnAssign) else target
    value = getattr(node, 'value', None)
    if isinstance(target, ast.Name) and value is not None:
      yield target.id, value


class _Inlined(ast.NodeTransformer):
  """Replaces names of module constants by their values."""

  def __init__(self, constants: Mapping[str, ast.expr]):
    self._constants = constants

  def visit_Name(self, node: ast.Name) -> ast.expr:
    """Replaces one name."""
    return self._constants.get(node.id, node)
