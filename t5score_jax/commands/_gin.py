"""Gin files and flags, as in T5X, for the verbs that gin configures.

Declares the flags, builds gin's configuration from them, and reports errors in
one line. Not here: what a verb does with the configuration.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from t5score_jax.errors import ConfigurationError
from t5score_jax.runtime import configurables, tensorflow_settings

_BINDING = '--gin.NAME'
FINE_TUNE_FILE = 'runs/comes_fine_tune.gin'
# Exceptions of gin and its imported modules for an invalid configuration.
_WRONG = (
  OSError,
  ValueError,
  TypeError,
  SyntaxError,
  ImportError,
  AttributeError,
  NameError,
  RuntimeError,
)


_INCLUDE = re.compile(r"""^[ \t]*include[ \t]+(['"])(.+?)\1""", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the flags that configure training, for any verb."""
  parser.add_argument(
    '--gin_file',
    action='append',
    default=[],
    metavar='FILE',
    help='configuration; may be given several times, the later wins; looked '
    'for in --gin_search_paths, here, and among the files of the package',
  )
  parser.add_argument(
    _BINDING,
    dest='gin_bindings',
    action='append',
    default=[],
    metavar='VALUE',
    help='sets the macro or parameter NAME, as in --gin.TRAIN_STEPS=1000 or '
    '--gin.loop.Intervals.log_every=10',
  )
  parser.add_argument(
    '--gin_search_paths',
    default='',
    metavar='DIR,...',
    help='folders in which gin files are looked for first',
  )
  # argparse has no options with variable names: --gin.A=1 becomes
  # --gin.NAME=A=1 before parsing.
  parse = parser.parse_known_args

  def parse_known_args(args: Any = None, namespace: Any = None) -> Any:
    args = sys.argv[1:] if args is None else args
    return parse([_named(text) for text in args], namespace)

  parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def configure(
  gin_files: list[str],
  bindings: list[str],
  search_paths: str = '',
  more: Sequence[str] = (),
  strict: bool = True,
) -> None:
  """Rebuilds gin's global configuration.

  Args:
    gin_files: Files; later ones take precedence.
    bindings: 'NAME=VALUE' each, which take precedence over files.
    search_paths: Folders, separated by commas.
    more: The program's own bindings, which take precedence over the user's.
    strict: Whether an unused macro among `bindings` is an error.

  Raises:
    ConfigurationError: The configuration is invalid.
  """
  import gin

  # Gin reports a missing file to the log as well.
  logging.getLogger().setLevel(logging.CRITICAL)
  if not gin_files:
    raise ConfigurationError(
      'no configuration: give at least one --gin_file (see --help)'
    )
  gin.clear_config()
  folders = [folder for folder in search_paths.split(',') if folder]
  for folder in folders:
    if not Path(folder).is_dir():
      raise ConfigurationError(f'--gin_search_paths: no folder {folder}')
  places = [*folders, '', str(packaged_folder())]
  # The folder added last is searched first.
  for folder in reversed(places):
    gin.add_config_file_search_path(folder)
  checked = [*map(_checked, bindings), *more]
  texts, complete = _texts(gin_files, places)
  if strict and complete:
    # Repeated below; here before files import modules, which takes seconds.
    _check_macros(bindings, '\n'.join([*texts, *checked]))
  try:
    with tensorflow_settings.quietly():
      # Not finalized: a macro that this run never reads needs no value.
      gin.parse_config_files_and_bindings(
        gin_files, checked, finalize_config=False
      )
  except _WRONG as error:
    raise ConfigurationError(configurables.plain(error)) from error
  if strict:
    _check_macros(bindings, gin.config_str())


def _texts(
  gin_files: Sequence[str], places: Sequence[str]
) -> tuple[list[str], bool]:
  """The files and their includes, without comments; whether all were read.

  Unreadable files are left out: gin reports them later.

  Raises:
    ConfigurationError: A file includes itself, directly or indirectly.
  """
  texts: dict[Path, str] = {}
  complete = True

  def read(name: str, above: tuple[Path, ...]) -> None:
    nonlocal complete
    paths = (Path(place, name) for place in places)
    path = next((path.resolve() for path in paths if path.is_file()), None)
    if path in above:
      raise ConfigurationError(_circle([*above[above.index(path) :], path]))
    if path in texts:
      return
    try:
      text = path.read_text('utf-8') if path else None
    except (OSError, ValueError):
      text = None
    if path is None or text is None:
      complete = False
      return
    texts[path] = re.sub(r'(?m)^\s*#.*$', '', text)
    for match in _INCLUDE.finditer(texts[path]):
      read(match[2], (*above, path))

  for name in gin_files:
    read(name, ())
  return list(texts.values()), complete


def _circle(paths: Sequence[Path]) -> str:
  """In words; the last path is the first."""
  if len(paths) == 2:
    return f'{paths[0]} includes itself'
  return ', which includes '.join(map(str, paths)).replace(', which', '', 1)


def phases(
  args: argparse.Namespace,
) -> Callable[[Sequence[str], bool], None]:
  """Returns what rebuilds gin's configuration in each phase of an estimator.

  Args:
    args: Parsed flags of `add_arguments`.

  Returns:
    A `fitting.Configure`.
  """

  def configure_phase(bindings: Sequence[str], fine_tune: bool) -> None:
    # A flag for the first phase may be unused in the second.
    configure(
      [*args.gin_file, *([FINE_TUNE_FILE] if fine_tune else [])],
      args.gin_bindings,
      args.gin_search_paths,
      more=bindings,
      strict=not fine_tune,
    )

  return configure_phase


def train_command(gin_files: Sequence[str], bindings: Sequence[str]) -> str:
  """The command of `t5score train` for a shell.

  Args:
    gin_files: Files, in order.
    bindings: NAME=VALUE each.
  """
  words = [f'--gin_file={file}' for file in gin_files]
  words += [f'--gin.{binding}' for binding in bindings]
  return ' '.join(['t5score', 'train', *map(_quoted, words)])


def _quoted(word: str) -> str:
  """A word for a shell; in double quotes if that suffices, for readability."""
  if "'" in word and not re.search(r'["$`\\!]', word):
    return f'"{word}"'
  return shlex.quote(word)


def packaged_folder() -> Path:
  """The folder of the gin files that come with the package."""
  from t5score_jax import gin_configs

  return Path(next(iter(gin_configs.__path__)))


def _named(text: str) -> str:
  match = re.match(r'--gin\.([^=]+)=', text)
  return f'{_BINDING}={text[len("--gin.") :]}' if match else text


def _checked(text: str) -> str:
  """A binding from the command line, after parsing its value separately."""
  import gin

  name, equals, value = text.partition('=')
  if not equals:
    raise ConfigurationError(
      f'--gin.{name}: write --gin.NAME=VALUE, in one word'
    )
  # References can be resolved after the files have been read.
  if re.match(r'[\s\[(]*[@%]', value):
    return f'{name} = {value}'
  try:
    gin.config.parse_value(value)
  except (SyntaxError, ValueError):
    raise ConfigurationError(
      f'--gin.{name}={value}: the value is not one that gin reads; a string '
      f'needs quotes of its own: --gin.{name}="\'{value}\'"'
    ) from None
  return f'{name} = {value}'


def _check_macros(bindings: list[str], config: str) -> None:
  """Rejects unused macros, which are usually typos."""
  used = set(re.findall(r'%([A-Za-z_][\w.]*)', config))
  for binding in bindings:
    name = binding.partition('=')[0].strip()
    if '.' not in name and name not in used:
      close = difflib.get_close_matches(name, used, n=1)
      hint = f' did you mean {close[0]}?' if close else ''
      raise ConfigurationError(
        f'--gin.{name}: nothing in the gin files uses {name};{hint} These '
        f'are used: {", ".join(sorted(used))}'
      )
