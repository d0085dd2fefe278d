"""`t5score VERB`: finds the verb's module and hands over to it.

A verb is a module of `t5score_jax.commands`; `t5score VERB --help` is its help.
Nothing heavy is imported before a verb runs, so that help is immediate. Not
here: what a verb does.
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

from t5score_jax import commands
from t5score_jax.version import __version__

_EPILOG = '`t5score VERB --help` says what a verb takes and prints.'


def verbs() -> list[str]:
  """The names of the verbs: the modules of the folder `commands/`."""
  return sorted(
    module.name
    for module in pkgutil.iter_modules(commands.__path__)
    if not module.name.startswith('_')
  )


def make_parser(wanted: str | None = None) -> argparse.ArgumentParser:
  """The command line.

  Args:
    wanted: The verb that is asked for, whose module alone is imported; None
      for all, as the list of verbs in the help needs them.

  Returns:
    The parser. Its result has `run`, the verb's function.
  """
  parser = argparse.ArgumentParser(
    prog='t5score',
    description='Learned metrics of generated text: score, train, judge.',
    epilog=_EPILOG,
  )
  parser.add_argument(
    '--version', action='version', version=f't5score {__version__}'
  )
  subparsers = parser.add_subparsers(
    dest='verb', metavar='VERB', title='verbs', required=True
  )
  for verb in [wanted] if wanted else verbs():
    module = importlib.import_module(f't5score_jax.commands.{verb}')
    subparser = subparsers.add_parser(
      verb, help=module.SUMMARY, description=module.SUMMARY
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
    The exit code: 0, what the verb says, 130 after Ctrl-C, or 141 where the
    reader of the output went away.

  Raises:
    SystemExit: Help, the version, or wrong usage (2).
  """
  arguments = list(sys.argv[1:] if arguments is None else arguments)
  wanted = next((a for a in arguments if not a.startswith('-')), None)
  known = verbs()
  if wanted is not None and wanted not in known:
    close = difflib.get_close_matches(wanted, known, 1)
    hint = f' Did you mean {close[0]!r}?' if close else ''
    print(
      f't5score: there is no verb {wanted!r}.{hint} There are: '
      f'{", ".join(known)}',
      file=sys.stderr,
    )
    return 2
  args = make_parser(wanted).parse_args(arguments)
  if isinstance(sys.stdout, io.TextIOWrapper):
    # Names may have letters that the locale lacks.
    sys.stdout.reconfigure(errors='backslashreplace')
  try:
    code = args.run(args)
    sys.stdout.flush()
    return code
  except KeyboardInterrupt:
    print(f't5score {args.verb}: interrupted', file=sys.stderr)
    return 130
  except BrokenPipeError:
    # Python would complain once more when it closes the pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


if __name__ == '__main__':
  sys.exit(main())
