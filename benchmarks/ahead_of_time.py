"""What scoring and training with mT5-XXL ask of TPUs that are absent.

Runs `t5score precompile` and writes its reports to results/ahead_of_time.json,
which `report.py` shows in BENCHMARKS.md. Needs libtpu (the extra `tpu`) and
four minutes of two cores, so that `make bench` does not run it:

    python benchmarks/ahead_of_time.py
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

FILE = 'ahead_of_time.json'
_COMMANDS = (
  (
    '--gin_file=models/mt5_xxl.gin --gin_file=runs/train_generative.gin '
    '--run_mode=score --dtype=bfloat16 --topology=v5e:2x4 --partitions=8 '
    '--batch=64 --lengths=128,128'
  ),
  '--gin_file=recipes/t5score_xxl_contrastive.gin --topology=v5e:4x4',
)


def main() -> int:
  """Compiles and writes."""
  folder = pathlib.Path(__file__).parent / 'results'
  reports = []
  for flags in _COMMANDS:
    command = [sys.executable, '-m', 't5score_jax', 'precompile', '--json']
    done = subprocess.run(
      [*command, *flags.split()], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
      return done.returncode
    (line,) = [x for x in done.stdout.splitlines() if x.startswith('{')]
    reports.append({'flags': flags, **json.loads(line)})
  (folder / FILE).write_text(json.dumps(reports, indent=1) + '\n', 'utf-8')
  print(*table(reports), sep='\n')
  return 0


def table(reports: Sequence[Mapping[str, Any]]) -> list[str]:
  """The rows of BENCHMARKS.md."""
  lines = [
    '| step | slice | batch | PFLOP | GiB per chip | collectives: operations, '
    'GiB of results per chip | least seconds by peak, by HBM |',
    '|---|---|---|---|---|---|---|',
  ]
  for one in reports:
    mesh = ' x '.join(f'{axis} {size}' for axis, size in one['mesh'].items())
    traffic = '; '.join(
      f'{kind} {found["count"]}, {found["bytes"] / 2**30:.2f}'
      for kind, found in sorted(one['collectives'].items())
    )
    bound = one['roofline']
    lines.append(
      f'| {one["what"]}, mT5-XXL | {one["topology"]}, {mesh} '
      f'| {one["pairs"]} x {one["unit"]} | {one["flops"] / 1e15:.3f} '
      f'| {one["memory"]["needed"] / 2**30:.2f} of '
      f'{one["usable"] / 2**30:.2f} | {traffic} '
      f'| {bound["products"]:.3f}, {bound["memory"]:.3f} |'
    )
  return lines


if __name__ == '__main__':
  sys.exit(main())
