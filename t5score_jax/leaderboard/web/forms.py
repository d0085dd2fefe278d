"""The fields of submissions: their types, checks, and OpenAPI description.

msgspec derives both the checks and the schemas from the classes here.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from t5score_jax.leaderboard.entries import BoardError, check_name
from t5score_jax.leaderboard.web import jobs
from t5score_jax.leaderboard.web.plots import SITE
from t5score_jax.version import __version__

_Description = Annotated[
  str, Meta(max_length=500, description='a paper, a URL')
]
_Column = Annotated[str, Meta(max_length=500, description='the column to read')]
_Cost = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


class Ratings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
  """Human ratings: a table with a system, an id and a column of numbers."""

  name: Annotated[str, Meta(max_length=100)]
  column: _Column = ''


class Generator(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
  """The outputs of a generator; costs are seconds and parameters."""

  name: Annotated[str, Meta(max_length=100)]
  human: Annotated[bool, Meta(description='human-written texts')] = False
  description: _Description = ''
  seconds: _Cost | None = None
  parameters: _Cost | None = None


class Metric(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
  """An executable, a table of scores, or the name of a library metric."""

  name: Annotated[str, Meta(max_length=100)]
  type: Literal['command', 'scores', 'library', ''] = ''
  library: Annotated[str, Meta(max_length=500)] = ''
  column: _Column = ''
  several: Annotated[
    Literal['max', 'mean', 'own'], Meta(description='several references')
  ] = 'max'
  referenceless: bool = False
  negated: Annotated[bool, Meta(description='lower is better')] = False
  description: _Description = ''
  seconds: _Cost | None = None
  parameters: _Cost | None = None

  def __post_init__(self) -> None:
    self.type = self.type or ('library' if self.library else 'command')
    if self.type == 'library' and not self.library:
      raise ValueError('the field library must name the metric')


#: Kind of submission -> its fields, and its path below /api/.
FORMS: dict[str, Any] = {
  'generator': Generator,
  'metric': Metric,
  'human': Ratings,
}
PATHS = {'generators': 'generator', 'metrics': 'metric', 'ratings': 'human'}


def parse(kind: str, fields: dict[str, str]) -> Any:
  """Checks the fields of a submission; empty ones count as missing.

  Raises:
    BoardError: A field is unknown or invalid, or the name is.
  """
  given = {
    name: text.strip().encode('utf-8', 'replace').decode()
    for name, text in fields.items()
    if text.strip()
  }
  if any('\0' in text for text in given.values()):
    raise BoardError('a field contains a NUL character')
  try:
    form = msgspec.convert(given, FORMS[kind], strict=False)
  except msgspec.ValidationError as error:
    raise BoardError(str(error)) from error
  check_name(form.name, kind)
  return form


def openapi(title: str) -> dict[str, Any]:
  """The OpenAPI 3.1 document of a board's server, as JSON."""
  document: dict[str, Any] = yaml.safe_load(
    (SITE / 'openapi.yaml').read_text(encoding='utf-8')
  )
  _, schemas = msgspec.json.schema_components(
    [jobs.Job, *FORMS.values()], ref_template='#/components/schemas/{name}'
  )
  for name in jobs.PRIVATE:
    del schemas['Job']['properties'][name]
    schemas['Job']['required'].remove(name)
  for form in FORMS.values():
    fields = schemas[form.__name__]
    fields['properties']['file'] = {'type': 'string', 'format': 'binary'}
    if form is not Metric:
      fields['required'].append('file')
  document['info'] = {'title': title, 'version': __version__}
  document['components']['schemas'] = schemas
  return document
