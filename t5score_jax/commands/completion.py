"""`t5score completion`: prints a script for completion of `t5score` in a shell.

The script contains all verbs, flags and choices, and the names of metrics,
models and packaged gin files, so that a TAB starts no Python. shtab (the extra
`completion`) generates it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from t5score_jax.checkpoints import kinds
from t5score_jax.commands import _gin
from t5score_jax.data import files
from t5score_jax.metrics import registry

SHELLS = ('bash', 'zsh')

SUMMARY = 'print the completion of t5score for bash or zsh'

DESCRIPTION = """
Prints a script after which TAB completes verbs, flags, their values, names of
metrics, models and packaged gin files, and paths. Print it anew after an
update.
"""

EPILOG = """
examples:
  eval "$(t5score completion bash)"     # this shell
  t5score completion bash > ~/.local/share/bash-completion/completions/t5score
  t5score completion zsh > ~/.zfunc/_t5score    # a folder of zsh's $fpath

exit code: 0 printed; 1 shtab is missing; 2 the command line is wrong
"""

_SHELL_FUNCTIONS = {
  'bash': '{name}() {{ compgen -W "{words}" -- "$1"; compgen -f -- "$1"; }}',
  'zsh': '{name}() {{ compadd -- {words}; _files; }}',
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.add_argument('shell', choices=SHELLS, help='the shell')


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  import shtab

  # The one verb that describes all others.
  from t5score_jax import cli

  parser = cli.make_parser()
  _add_completions(parser, shtab)
  script = shtab.complete(parser, args.shell)
  files.write_lines('-', script.splitlines())
  return 0


def _add_completions(parser: argparse.ArgumentParser, shtab: Any) -> None:
  """Defines the completion of each argument that takes text."""
  names = {
    'model': _words('models', _models()),
    'gin_file': _words('gin_files', _gin_files()),
  }
  for action in _actions(parser):
    if action.choices is not None or action.nargs == 0:
      continue
    if action.dest == 'metric':
      action.choices = registry.available_metrics()
    elif action.dest in names:
      action.complete = names[action.dest]  # type: ignore[attr-defined]
    elif action.type is None or isinstance(action.type, type):
      # Text may name a file; numbers and lists have types of their own.
      if action.type not in (int, float):
        action.complete = shtab.FILE  # type: ignore[attr-defined]


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
  """The arguments of a parser and of all parsers below it."""
  for action in parser._actions:
    if isinstance(action, argparse._SubParsersAction):
      for below in action.choices.values():
        yield from _actions(below)
    else:
      yield action


def _words(name: str, words: Iterable[str]) -> dict[str, Any]:
  """Completion by words, or by a path, as shtab takes it."""
  function = f'_t5score_{name}'
  listed = ' '.join(words)
  preamble = {
    shell: text.format(name=function, words=listed)
    for shell, text in _SHELL_FUNCTIONS.items()
  }
  return {**dict.fromkeys(SHELLS, function), 'preamble': preamble}


def _models() -> Sequence[str]:
  return sorted({*kinds.names(), *registry.available_metrics(True)})


def _gin_files() -> Sequence[str]:
  folder = _gin.packaged_folder()
  return sorted(
    path.relative_to(folder).as_posix() for path in folder.rglob('*.gin')
  )
