"""`t5score VERB`: imports the verb's module, runs it, and reports its errors.

A verb is a module of `t5score_jax.commands`; `t5score VERB --help` is its help.
Nothing heavy is imported before a verb runs, so that help is immediate. Errors
end here: what users can correct is one line and an exit code, anything else is
a traceback.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from t5score_jax import commands, errors
from t5score_jax.data import files, numbers
from t5score_jax.version import __version__

_EPILOG = '`t5score VERB --help` describes the arguments and output of a verb.'


class _Parser(argparse.ArgumentParser):
  """Reports an unknown flag with the verb's usage and the nearest flag."""

  _arguments: Sequence[str] = ()
  _in_parts = False

  def __init__(self, **settings: Any):
    super().__init__(**settings)
    self.register('type', int, numbers.integer)
    self.register('type', float, numbers.real)

  def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
    if self._in_parts:
      return super().parse_known_args(args, namespace)
    self._arguments = args or ()
    known, unknown = super().parse_known_args(args, namespace)
    if unknown and self._subparsers is None:
      # Files after options, which argparse would not add to the earlier ones.
      self._in_parts = True
      known, unknown = self.parse_known_intermixed_args(args, namespace)
      self._in_parts = False
    if unknown:
      self.error(f'unexpected argument {unknown[0]!r}')
    return known, unknown

  def error(self, message: str) -> NoReturn:
    self.print_usage(sys.stderr)
    # A missing argument may be the misspelt one.
    message = self._unknown_flag() or message
    self.exit(2, f'{self.prog}: {message}\n')

  def _unknown_flag(self) -> str:
    flags = [name for a in self._actions for name in a.option_strings]
    for argument in self._arguments:
      flag = argument.partition('=')[0]
      if argument.startswith('--') and not any(
        name.startswith(flag) for name in flags
      ):
        return f'unknown flag {flag}{_nearest(flag, flags)}'
    return ''


def _nearest(word: str, known: Iterable[str]) -> str:
  close = difflib.get_close_matches(word, known, 1)
  return f'; did you mean {close[0]}?' if close else ''


def verbs() -> list[str]:
  """The names of the verbs: the modules of the folder `commands/`."""
  return sorted(
    module.name
    for module in pkgutil.iter_modules(commands.__path__)
    if not module.name.startswith('_')
  )


def make_parser(verb: str | None = None) -> argparse.ArgumentParser:
  """The parser of the command line.

  Args:
    verb: The only verb whose module is imported; None for all, whose summaries
      the help lists.

  Returns:
    The parser. The namespace that it returns has `run`, the verb's function.
  """
  parser = _Parser(
    prog='t5score',
    description='Learned metrics of generated text: score, train, evaluate.',
    epilog=_EPILOG,
  )
  parser.add_argument(
    '--version', action='version', version=f't5score {__version__}'
  )
  subparsers = parser.add_subparsers(
    dest='verb', metavar='VERB', title='verbs', required=True
  )
  for name in [verb] if verb else verbs():
    module = importlib.import_module(f't5score_jax.commands.{name}')
    subparser = subparsers.add_parser(
      name,
      help=module.SUMMARY,
      description=getattr(module, 'DESCRIPTION', module.SUMMARY),
      epilog=getattr(module, 'EPILOG', None),
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(subparser)
    subparser.set_defaults(run=module.run)
  return parser


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program.

  Args:
    arguments: The command line without the program's name; by default that of
      the process.

  Returns:
    The exit code: 0, that of the verb or of its error, 130 after Ctrl-C, or 141
    if the reader of the output went away.

  Raises:
    SystemExit: Help, the version, or wrong usage (2).
  """
  arguments = list(sys.argv[1:] if arguments is None else arguments)
  if sys.stderr is None:
    # `print` takes no stream for standard output.
    sys.stderr = open(os.devnull, 'w')
  verb = next((a for a in arguments if not a.startswith('-')), None)
  program = f't5score {verb}' if verb in verbs() else 't5score'
  # Warnings are for users, too: one line, without a source location.
  usual = warnings.formatwarning
  warnings.formatwarning = lambda message, *place: (
    f'{program}: warning: {errors.one_line(str(message))}\n'
  )
  try:
    return _run(verb, arguments)
  except (Exception, KeyboardInterrupt) as error:
    code = errors.report(program, error)
    if code is None:
      raise
    if isinstance(error, OSError) and sys.stdout is not None:
      _drop_unwritable_output()
    return code
  finally:
    warnings.formatwarning = usual


def _drop_unwritable_output() -> None:
  """Empties a buffer that Python would try to write again at exit, and fail."""
  try:
    sys.stdout.flush()
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(verb: str | None, arguments: Sequence[str]) -> int:
  known = verbs()
  if verb is not None and verb not in known:
    hint = _nearest(verb, known)
    raise errors.UsageError(
      f'unknown verb {verb!r}{hint} (verbs: {", ".join(known)})'
    )
  args = make_parser(verb).parse_args(arguments)
  if isinstance(sys.stdout, io.TextIOWrapper):
    # The locale may lack letters of names.
    sys.stdout.reconfigure(errors='backslashreplace')
  code: int = args.run(args)
  if sys.stdout is not None:
    with files.named('standard output'):
      sys.stdout.flush()
  return code


if __name__ == '__main__':
  sys.exit(main())
