"""The description of the submission API (OpenAPI 3.1) that `server` has."""

from __future__ import annotations

from typing import Any

from t5score_jax.version import __version__

#: Field -> (type, what it is), for each kind of submission.
FIELDS: dict[str, dict[str, tuple[str, str]]] = {
  'generator': {
    'human': ('boolean', 'people wrote these texts'),
    'description': ('string', 'a paper, a link'),
    'seconds': ('number', 'cost of generating the outputs'),
    'parameters': ('number', 'number of parameters'),
  },
  'metric': {
    'type': ('string', 'command (default), scores or library'),
    'library': ('string', 'name in the library'),
    'column': ('string', 'column of scores'),
    'several': ('string', 'several references: max (default), mean or own'),
    'referenceless': ('boolean', 'it uses no references'),
    'negated': ('boolean', 'lower is better'),
    'description': ('string', 'a paper, a link'),
    'seconds': ('number', 'cost for one generator'),
    'parameters': ('number', 'number of parameters'),
  },
  'human': {'column': ('string', 'column of ratings')},
}
_PATHS = {'generator': 'generators', 'metric': 'metrics', 'human': 'ratings'}
_ERRORS = {
  '400': 'a field or the file is not right',
  '401': 'no token, or a wrong one',
  '403': "the token's role does not allow it",
  '409': 'the name is taken',
  '413': 'the upload is too large',
  '429': 'too many requests; Retry-After says how long to wait',
  '507': 'there is no room for uploads at present',
}


def _answer(description: str, schema: Any = None) -> dict[str, Any]:
  content = {'application/json': {'schema': schema or {'type': 'object'}}}
  return {'description': description, 'content': content}


def _errors(*codes: str) -> dict[str, Any]:
  reference = {'$ref': '#/components/schemas/Error'}
  return {code: _answer(_ERRORS[code], reference) for code in codes}


def document(title: str) -> dict[str, Any]:
  """The description.

  Args:
    title: The board's name.

  Returns:
    OpenAPI 3.1, JSON.
  """
  job = {'$ref': '#/components/schemas/Job'}
  paths: dict[str, Any] = {
    '/api/board': {
      'get': {
        'summary': 'Both rankings, the ensemble and the overrating',
        'responses': {'200': _answer('the board')},
      }
    },
    '/api/jobs': {
      'get': {
        'summary': 'The newest jobs',
        'responses': {'200': _answer('jobs', {'type': 'array', 'items': job})},
      }
    },
    '/api/jobs/{number}': {
      'get': {
        'summary': 'A job',
        'parameters': [
          {
            'name': 'number',
            'in': 'path',
            'required': True,
            'schema': {'type': 'integer'},
          }
        ],
        'responses': {
          '200': _answer('the job', job),
          '404': _answer('no such job'),
        },
      }
    },
  }
  for kind, path in _PATHS.items():
    properties: dict[str, Any] = {
      'name': {'type': 'string', 'maxLength': 100},
      'file': {'type': 'string', 'format': 'binary'},
    }
    for field, (kind_of, text) in FIELDS[kind].items():
      properties[field] = {'type': kind_of, 'description': text}
    schema = {
      'type': 'object',
      'required': ['name'] if kind == 'metric' else ['name', 'file'],
      'properties': properties,
    }
    paths[f'/api/{path}'] = {
      'post': {
        'summary': f'Submits a {kind}',
        'security': [{'token': []}],
        'requestBody': {
          'required': True,
          'content': {'multipart/form-data': {'schema': schema}},
        },
        'responses': {
          '202': _answer('queued', job),
          **_errors(*_ERRORS),
        },
      }
    }
  return {
    'openapi': '3.1.0',
    'info': {'title': title, 'version': __version__},
    'paths': paths,
    'components': {
      'securitySchemes': {'token': {'type': 'http', 'scheme': 'bearer'}},
      'schemas': {
        'Error': {
          'type': 'object',
          'properties': {'error': {'type': 'string'}},
        },
        'Job': {
          'type': 'object',
          'properties': {
            'id': {'type': 'integer'},
            'kind': {'enum': list(_PATHS)},
            'name': {'type': 'string'},
            'submitter': {'type': 'string'},
            'status': {
              'enum': ['queued', 'running', 'stored', 'done', 'failed']
            },
            'message': {'type': 'string'},
            'created': {'type': 'string'},
            'started': {'type': ['string', 'null']},
            'finished': {'type': ['string', 'null']},
          },
        },
      },
    },
  }
