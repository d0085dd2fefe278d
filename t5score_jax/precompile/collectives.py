"""Communication between chips, counted in the text of a compiled program.

Not here: what a chip computes (`precompile/flops.py`), its memory
(`precompile/reports.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re

_OPERATION = re.compile(
  r' = (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|'
  r'collective-permute|collective-broadcast|ragged-all-to-all)(-start|-done)?\('
)
_ARRAY = re.compile(r'([a-z]+)(\d*)\w*\[([\d,]*)\]')
_HEADER = re.compile(r'(ENTRY )?%?([\w.\-]+) .*\{$')
_CALLED = re.compile(
  r'(?:calls|body|condition|to_apply)=%?([\w.\-]+)|'
  r'branch_computations=\{([^}]*)\}'
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_LOOP = re.compile(r' while\(.* condition=%?([\w.\-]+)')
_LIMIT = re.compile(r' = [su]32\[\]\S* constant\((\d+)\)')
# The second half of an asynchronous operation names its computation again.
_SECOND = re.compile(r' async-(?:update|done)\(')


@dataclasses.dataclass(frozen=True)
class Traffic:
  """One kind of collective operations.

  Attributes:
    count: Number of operations, those in loops once per iteration.
    bytes: Size of their results on one chip.
  """

  count: int = 0
  bytes: int = 0

  def __add__(self, other: Traffic) -> Traffic:
    return Traffic(self.count + other.count, self.bytes + other.bytes)

  def times(self, count: int) -> Traffic:
    """The same, repeated."""
    return Traffic(count * self.count, count * self.bytes)


def count(text: str) -> dict[str, Traffic]:
  """Counts the collectives of a program.

  Args:
    text: The optimized program, `jax.stages.Compiled.as_text()`. The number of
      a loop's iterations is the one that XLA states, else the constant in its
      condition, as in `jax.lax.scan`; a loop without either counts once.

  Returns:
    Kind -> its traffic; kinds that do not occur are left out.
  """
  own: dict[str, dict[str, Traffic]] = {}
  calls: dict[str, list[tuple[str, int]]] = {}
  limits: dict[str, list[int]] = {}
  entry = name = ''
  for line in text.splitlines():
    if header := _HEADER.match(line):
      name = header[2]
      own[name], calls[name], limits[name] = {}, [], []
      entry = name if header[1] else entry
      continue
    if not name:
      continue
    operation = _OPERATION.search(line)
    # An operation in two halves has its result in the second.
    if operation and operation[3] != '-start':
      found = own[name].get(operation[2], Traffic())
      own[name][operation[2]] = found + Traffic(1, _bytes(operation[1]))
    if _SECOND.search(line):
      continue
    if limit := _LIMIT.search(line):
      limits[name].append(int(limit[1]))
    trips = 1
    if stated := _TRIPS.search(line):
      trips = int(stated[1])
    elif loop := _LOOP.search(line):
      # Computations stand before those that call them.
      trips = max(limits.get(loop[1], []), default=1)
    for called in _CALLED.finditer(line):
      for one in (called[1] or called[2]).split(','):
        calls[name].append((one.strip(' %'), trips))
  return _total(entry, own, calls, {})


def _total(
  name: str,
  own: dict[str, dict[str, Traffic]],
  calls: dict[str, list[tuple[str, int]]],
  known: dict[str, dict[str, Traffic]],
) -> dict[str, Traffic]:
  """Of a computation and all that it calls."""
  if name not in known:
    total: dict[str, Traffic] = collections.defaultdict(Traffic)
    total.update(own.get(name, {}))
    for called, trips in calls.get(name, []):
      for kind, traffic in _total(called, own, calls, known).items():
        total[kind] += traffic.times(trips)
    known[name] = dict(total)
  return known[name]


def _bytes(shape: str) -> int:
  """Of arrays as HLO writes them: 'f32[8,128]{1,0}', '(bf16[4], u32[])'."""
  return sum(
    -(-int(bits or 8) * math.prod(int(d) for d in sizes.split(',') if d) // 8)
    for _, bits, sizes in _ARRAY.findall(shape)
  )
