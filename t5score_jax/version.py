"""The version of this library, and signatures, which end with it."""

from __future__ import annotations

from collections.abc import Mapping

__version__ = '0.1.0'


def format_signature(settings: Mapping[str, object]) -> str:
  """Writes settings as `key:value|key:value|...|version:...`.

  >>> format_signature({'metric': 'bleu', 'tok': '13a'})  # doctest: +ELLIPSIS
  'metric:bleu|tok:13a|version:...'

  Args:
    settings: Everything that a score depends on, in the order to show.

  Returns:
    The signature, with this package's version at the end.

  Raises:
    ValueError: A key or a value would make the signature ambiguous.
  """
  pairs = {**settings, 'version': __version__}
  for key, value in pairs.items():
    if '|' in f'{key}{value}' or ':' in key or '\n' in f'{value}':
      raise ValueError(f'{key!r}: {value!r} cannot stand in a signature')
  return '|'.join(f'{key}:{value}' for key, value in pairs.items())
