"""`t5score VERB`: imports the verb's module, runs it, and reports its errors.

A verb is a module of `t5score_jax.commands`; `t5score VERB --help` is its help.
Nothing heavy is imported before a verb runs, so that help is immediate. Errors
end here: what users can mend is one line and an exit code, anything else is a
traceback.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from t5score_jax import commands, errors
from t5score_jax.version import __version__

_EPILOG = '`t5score VERB --help` describes the arguments and output of a verb.'


class _Parser(argparse.ArgumentParser):
  """Reports an unknown flag with the verb's usage and the nearest flag."""

  def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
    known, unknown = super().parse_known_args(args, namespace)
    if unknown:
      self.error(self._describe(unknown[0]))
    return known, unknown

  def error(self, message: str) -> NoReturn:
    self.print_usage(sys.stderr)
    self.exit(2, f'{self.prog}: {message}\n')

  def _describe(self, argument: str) -> str:
    if not argument.startswith('-'):
      return f'unexpected argument {argument!r}'
    flag = argument.partition('=')[0]
    flags = [name for a in self._actions for name in a.option_strings]
    close = difflib.get_close_matches(flag, flags, 1)
    hint = f'; did you mean {close[0]}?' if close else ''
    return f'unknown flag {flag}{hint}'


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
    verb: The only verb whose module is imported; None for all, which the list
      of verbs in the help needs.

  Returns:
    The parser. Its result has `run`, the verb's function.
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
      name, help=module.SUMMARY, description=module.SUMMARY
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
    where the reader of the output went away.

  Raises:
    SystemExit: Help, the version, or wrong usage (2).
  """
  arguments = list(sys.argv[1:] if arguments is None else arguments)
  verb = next((a for a in arguments if not a.startswith('-')), None)
  try:
    return _run(verb, arguments)
  except (Exception, KeyboardInterrupt) as error:
    code = errors.report(f't5score {verb}' if verb else 't5score', error)
    if code is None:
      raise
    if isinstance(error, BrokenPipeError):
      # Python would complain once more when it closes the pipe.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _run(verb: str | None, arguments: Sequence[str]) -> int:
  known = verbs()
  if verb is not None and verb not in known:
    close = difflib.get_close_matches(verb, known, 1)
    hint = f'; did you mean {close[0]}?' if close else ''
    print(
      f't5score: unknown verb {verb!r}{hint} (verbs: {", ".join(known)})',
      file=sys.stderr,
    )
    return 2
  args = make_parser(verb).parse_args(arguments)
  if isinstance(sys.stdout, io.TextIOWrapper):
    # Names may have letters that the locale lacks.
    sys.stdout.reconfigure(errors='backslashreplace')
  code: int = args.run(args)
  sys.stdout.flush()
  return code


if __name__ == '__main__':
  sys.exit(main())
