"""`t5score demo`: scores included sentences with a model and with chrF.

Shows example scores, and how many of the pairs each metric orders correctly. A
dozen sentences are an illustration, not a measurement.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.commands import _metric_arguments as metric_arguments
from t5score_jax.data import files, tables
from t5score_jax.metrics import base, registry

SUMMARY = 'score shipped sentences with the embedded model'

SENTENCES = Path(__file__).resolve().parent.parent / 'demo' / 'sentences.jsonl'

DESCRIPTION = """
Scores a dozen references, each with a good and a bad translation, with a
T5Score model and with chrF, and says in how many pairs each metric prefers the
good one. The sentences come with the package.
"""

EPILOG = """
examples:
  t5score demo
  t5score demo -m my_run/

exit code: 0 scored; 1 the run failed; 2 the command line is wrong
"""

_NEXT = """\
Try next:
  {0} score -r references.txt -t hypotheses.txt -o scores.jsonl
  {0} score -m chrf -r references.txt -t hypotheses.txt
  {0} score --help
"""


@dataclasses.dataclass(frozen=True)
class Item:
  """A reference with a good and a bad translation.

  Attributes:
    reference: The reference translation.
    better: A translation with the same meaning in other words.
    worse: A translation with another meaning.
    error: What is wrong with `worse`, in a word or two.
    hard: Whether `worse` keeps nearly all words and changes the meaning.
  """

  reference: str
  better: str
  worse: str
  error: str
  hard: bool


def read_items() -> list[Item]:
  """The shipped sentences."""
  path = str(SENTENCES)
  with files.open_text(path) as lines:
    return [Item(**row) for _, row in tables.read_table(lines, path).rows]


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the verb's arguments."""
  parser.add_argument(
    '-m',
    '--model',
    metavar='NAME_OR_PATH',
    default=registry.DEFAULT_MODEL,
    help='as for t5score score (default: %(default)s)',
  )


def run(args: argparse.Namespace) -> int:
  """Runs the verb; returns the exit code."""
  metric = metric_arguments.load(args.model, {})
  items = read_items()
  names = (Path(args.model).name, 'chrF')
  scores = {
    name: score_items(each, items)
    for name, each in zip(
      names, (metric, registry.load_metric('chrf')), strict=True
    )
  }
  with files.named('standard output'):
    _print(items, scores)
  return 0


def score_items(metric: base.Metric, items: Sequence[Item]) -> np.ndarray:
  """Scores both translations of every item.

  Args:
    metric: A metric that only needs references.
    items: N items.

  Returns:
    Scores of the good and the bad translation, [N, 2].
  """
  texts = [text for item in items for text in (item.better, item.worse)]
  references = [item.reference for item in items for _ in range(2)]
  return metric.score(texts, references).values.reshape(len(items), 2)


def verdict(name: str, values: np.ndarray, items: Sequence[Item]) -> str:
  """Reports how many pairs a metric orders correctly, and which it does not.

  A tie is not correct.

  Args:
    name: The metric.
    values: [N, 2], from `score_items`.
    items: N items.
  """
  right = values[:, 0] > values[:, 1]
  hard = np.array([item.hard for item in items])
  text = (
    f'{name} prefers the good translation in {right[~hard].sum()} of '
    f'{(~hard).sum()} ordinary and {right[hard].sum()} of {hard.sum()} hard '
    'pairs'
  )
  missed = [
    f'{n} ({item.error})'
    for n, (item, good) in enumerate(zip(items, right, strict=True), 1)
    if not good
  ]
  return f'{text}; not in {", ".join(missed)}.' if missed else f'{text}.'


def _print(items: Sequence[Item], scores: dict[str, np.ndarray]) -> None:
  """Prints the table, the verdicts and what to try next."""
  from rich import box, console, table

  shown = table.Table(box=box.SIMPLE_HEAD)
  shown.add_column('', no_wrap=True)
  shown.add_column('text', ratio=1)
  for name in scores:
    shown.add_column(name, justify='right', no_wrap=True)
  for n, item in enumerate(items):
    shown.add_row(
      str(n + 1), item.reference, *('' for _ in scores), style='bold'
    )
    good: list[Any] = ['good', item.better]
    bad: list[Any] = ['bad', f'{item.worse} ({item.error})']
    for values in scores.values():
      better, worse = values[n]
      good.append(f'{better:.2f}  ')
      bad.append(f'{worse:.2f} ' + ('+' if better > worse else '-'))
    shown.add_row(*good)
    shown.add_row(*bad, end_section=True)

  # A readable width if the output is a file; a terminal knows its width.
  class Console(console.Console):
    """Leaves it to `cli.main` to handle a closed output."""

    def on_broken_pipe(self) -> None:
      raise BrokenPipeError

  out = Console(highlight=False, markup=False)
  if not out.is_terminal and not os.environ.get('COLUMNS', '').isdecimal():
    out = Console(highlight=False, markup=False, width=100)
  out.print(shown)
  out.print(
    'Higher is better; + where the good translation scores higher than the '
    'bad one, - where not. In the hard pairs, which stand last, the bad one '
    'keeps nearly all words of the reference and says something else.\n'
  )
  for name, values in scores.items():
    out.print(verdict(name, values, items))
  out.print(
    'These pairs illustrate; how well a metric agrees with human judgments is '
    'measured by `t5score correlate`.\n'
  )
  out.print(_NEXT.format(_program()), end='', soft_wrap=True)


def _program() -> str:
  """The command for this program: its path if `t5score` is not on PATH."""
  if shutil.which('t5score'):
    return 't5score'
  beside = Path(sys.executable).with_name('t5score')
  if beside.is_file():
    path = os.path.relpath(beside)
    return shlex.quote(str(beside) if path.startswith(os.pardir) else path)
  return f'{shlex.quote(sys.executable)} -m t5score_jax'
