"""Reads compiled programs: which collectives they run, how often, how large.

XLA's own cost analysis counts the body of a loop once. This follows the calls
from the entry computation and multiplies by trip counts. Not here: what a
collective costs (`precompile/train_step.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

KINDS = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'collective-permute',
)

_BYTES = {
  'pred': 1,
  's4': 0.5,
  'u4': 0.5,
  's8': 1,
  'u8': 1,
  's16': 2,
  'u16': 2,
  'f16': 2,
  'bf16': 2,
  's32': 4,
  'u32': 4,
  'f32': 4,
  's64': 8,
  'u64': 8,
  'f64': 8,
  'c64': 8,
  'c128': 16,
}

# `%name (parameters) -> result {` or `ENTRY %name ...`, up to a lone `}`.
_COMPUTATION = re.compile(
  r'^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*?\) -> .*? \{\n'
  r'(?P<body>.*?)^\}',
  re.MULTILINE | re.DOTALL,
)
# `  %name = shape operation(operands), attributes`
_INSTRUCTION = re.compile(
  r'^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>.+?) '
  r'(?P<op>[a-z][\w\-]*)\((?P<rest>.*)$',
  re.MULTILINE,
)
_CALLED = re.compile(
  r'\b(?:calls|to_apply|body|called_computations|true_computation|'
  r'false_computation|branch_computations)='
  r'(\{[^}]*\}|%?[\w.\-]+)'
)
_ARRAY = re.compile(r'\b([a-z]+\d*)\[([\d,]*)\]')
_KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONSTANT = re.compile(r's32\[\]\S* constant\((\d+)\)')
# XLA for TPU writes a reduce-scatter as a fusion of these two.
_SCATTER = re.compile(r'all-reduce-scatter')


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective of a program, as a device sees it.

  Attributes:
    kind: One of `KINDS`.
    bytes: Of the larger of what goes in and what comes out, on one device.
    group: Devices that take part in it together.
    count: How often the program runs it.
    source: What it was written for, from JAX's names.
  """

  kind: str
  bytes: float
  group: int
  count: int
  source: str = ''

  @property
  def sent(self) -> float:
    """Bytes that a device sends, all runs together, round a ring.

    An all-reduce is a reduce-scatter and an all-gather.
    """
    share = (self.group - 1) / self.group if self.group else 0.0
    if self.kind == 'collective-permute':
      share = 1.0
    return self.count * self.bytes * share * (1 + (self.kind == 'all-reduce'))


def collectives(text: str, devices: int) -> list[Collective]:
  """All collectives of a compiled program, loops counted as often as they run.

  Args:
    text: HLO (`jax.stages.Compiled.as_text()`).
    devices: Of the program; a collective without groups takes them all.
  """
  computations = {
    found['name']: found['body'] for found in _COMPUTATION.finditer(text)
  }
  entry = next(
    found['name'] for found in _COMPUTATION.finditer(text) if found['entry']
  )
  program = _Program(computations, devices)
  # Parts of one collective that is overlapped with products share a channel.
  by_channel: dict[str, Collective] = {}
  for channel, found in program.walk(entry, 1):
    known = by_channel.get(channel)
    if known is None or found.count * found.bytes > known.count * known.bytes:
      by_channel[channel] = found
  return list(by_channel.values())


class _Program:
  """The computations of a module by name."""

  def __init__(self, computations: dict[str, str], devices: int):
    self._computations = computations
    self._devices = devices
    self.instructions = functools.lru_cache(None)(self._instructions)

  def _instructions(self, name: str) -> list[re.Match[str]]:
    return list(_INSTRUCTION.finditer(self._computations.get(name, '')))

  def walk(self, name: str, count: int) -> Iterator[tuple[str, Collective]]:
    """Yields (channel, collective) of a computation and all that it calls."""
    scatter = bool(_SCATTER.match(name))
    for found in self.instructions(name):
      op, rest = found['op'], found['rest']
      kind = op.removesuffix('-start')
      if kind in KINDS:
        if scatter and kind == 'all-reduce':
          kind = 'reduce-scatter'
        channel = re.search(r'channel_id=(\d+)', rest)
        key = channel[1] if channel else f'{name}/{found["name"]}'
        yield key, self._collective(kind, found, name, count)
      times = count * self._trips(rest) if op == 'while' else count
      for called in _CALLED.findall(rest):
        for inner in re.findall(r'[\w.\-]+', called):
          if inner in self._computations:
            yield from self.walk(inner, times)

  def _trips(self, rest: str) -> int:
    """How often a loop runs: as XLA says, or as its condition compares."""
    if known := _KNOWN_TRIPS.search(rest):
      return int(known[1])
    condition = re.search(r'condition=%?([\w.\-]+)', rest)
    body = self._computations.get(condition[1], '') if condition else ''
    bounds = [int(number) for number in _CONSTANT.findall(body)]
    return max(bounds, default=1)

  def _collective(
    self, kind: str, found: re.Match[str], name: str, count: int
  ) -> Collective:
    sizes = [_size(found['shape'])]
    shapes = {i['name']: i['shape'] for i in self.instructions(name)}
    operands = found['rest'].split(')', 1)[0]
    # Older texts write an operand's shape before its name.
    if _ARRAY.search(operands):
      sizes.append(_size(operands))
    else:
      named = re.findall(r'%([\w.\-]+)', operands)
      sizes.append(sum(_size(shapes.get(operand, '')) for operand in named))
    if found['op'].endswith('-start') and kind != 'all-reduce':
      sizes[0] -= sizes[1]  # Their result names the operands as well.
    source = re.search(r'op_name="([^"]*)"', found['rest'])
    return Collective(
      kind,
      max(sizes),
      _group_size(found['rest'], self._devices),
      count,
      source[1] if source else '',
    )


def _size(shape: str) -> float:
  """Bytes of an array or a tuple of arrays."""
  return sum(
    _BYTES.get(dtype, 0) * math.prod(int(n) for n in dims.split(',') if n)
    for dtype, dims in _ARRAY.findall(shape)
  )


def _group_size(rest: str, devices: int) -> int:
  """Devices in one group, from any of the ways in which XLA writes them."""
  if found := re.search(r'replica_groups=\{\{([\d,]*)\}', rest):
    return len(found[1].split(','))
  if found := re.search(r'replica_groups=\[(\d+),(\d+)\]<=', rest):
    return int(found[2])
  if found := re.search(r'replica_groups=mesh\[(.*?)\] ?\{(.*?)\}', rest):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
    named = re.findall(r"'(\w+)'", found[2])
    return math.prod(int(sizes[axis]) for axis in named)
  return devices
