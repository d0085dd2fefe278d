"""Load on `t5score serve` over loopback: requests a second and their delays.

Starts the server itself, sends a bounded number of requests from concurrent
clients, checks every score against the metric's own, and prints a row for each
number of clients, with and without joined batches:

    python benchmarks/serving.py --clients 1 8 64 --requests 1000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np

import t5score_jax

_WORDS = 'the a cat dog ship leaves sees moon town in morning red old'.split()


@contextlib.contextmanager
def served(model: str, *arguments: str) -> Iterator[tuple[str, int]]:
  """The address of a server of its own; SIGTERM has to end it with code 0."""
  command = [sys.executable, '-m', 't5score_jax', 'serve', '-m', model]
  process = subprocess.Popen(
    [*command, '--port', '0', *arguments], stdout=subprocess.PIPE, text=True
  )
  assert process.stdout is not None
  try:
    found = re.match(r'http://([\d.]+):(\d+)/', process.stdout.readline())
    if not found:
      raise SystemExit('the server did not start')
    yield found[1], int(found[2])
    process.send_signal(signal.SIGTERM)
    if process.wait(60):
      raise SystemExit(f'the server ended with {process.returncode}')
  finally:
    process.kill()


async def ask(
  reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> dict:
  """One request on a connection that stays open."""
  head = (
    f'POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n'
  )
  writer.write(head.encode() + body)
  answer = await reader.readuntil(b'\r\n\r\n')
  length = int(re.search(rb'content-length: (\d+)', answer.lower())[1])
  value = json.loads(await reader.readexactly(length))
  if b' 200 ' not in answer.partition(b'\r\n')[0]:
    raise SystemExit(value)
  return value


async def load(
  address: tuple[str, int],
  requests: list[tuple[bytes, list[float]]],
  clients: int,
) -> tuple[np.ndarray, float]:
  """Seconds of each request, and of all together."""
  waiting = iter(requests)
  delays: list[float] = []

  async def client() -> None:
    reader, writer = await asyncio.open_connection(*address)
    for body, expected in waiting:
      start = time.perf_counter()
      value = await ask(reader, writer, body)
      delays.append(time.perf_counter() - start)
      np.testing.assert_allclose(value['scores'], expected, atol=1e-5)
    writer.close()

  start = time.perf_counter()
  await asyncio.gather(*(client() for _ in range(clients)))
  return np.array(delays), time.perf_counter() - start


def made_up(
  model: str, requests: int, texts: int
) -> list[tuple[bytes, list[float]]]:
  """Bodies of requests, and the scores that they must have."""
  draw = random.Random(0)

  def text() -> str:
    return ' '.join(draw.choices(_WORDS, k=draw.randint(4, 24)))

  pairs = [(text(), text()) for _ in range(requests * texts)]
  scores = t5score_jax.load(model).score(*zip(*pairs, strict=True)).values
  made = []
  for n in range(0, len(pairs), texts):
    hypotheses, references = zip(*pairs[n : n + texts], strict=True)
    body = {'hypotheses': hypotheses, 'references': references}
    made.append((json.dumps(body).encode(), scores[n : n + texts].tolist()))
  return made


def main() -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '-m',
    '--model',
    default='t5score-tiny',
    help='name or folder (default: %(default)s)',
  )
  parser.add_argument(
    '--clients',
    type=int,
    nargs='+',
    default=[1, 8, 64],
    help='numbers of clients at once (default: 1 8 64)',
  )
  parser.add_argument(
    '--requests',
    type=int,
    default=1000,
    help='for each number of clients (default: %(default)s)',
  )
  parser.add_argument('--texts', type=int, default=1, help='of a request')
  args = parser.parse_args()
  requests = made_up(args.model, args.requests, args.texts)
  print(f'{os.cpu_count()} cores, {args.requests} requests of {args.texts}')
  print('joined  clients  requests/s  p50 ms  p95 ms  p99 ms')
  for joined in (True, False):
    more = [] if joined else ['--batch-texts', '1']
    with served(args.model, *more) as address:
      # Once untimed: the shapes of batches are compiled.
      for clients in args.clients:
        asyncio.run(load(address, requests, clients))
      for clients in args.clients:
        delays, seconds = asyncio.run(load(address, requests, clients))
        p50, p95, p99 = 1000 * np.percentile(delays, [50, 95, 99])
        print(
          f'{"yes" if joined else "no":<6}  {clients:7}  '
          f'{len(delays) / seconds:10.0f}  {p50:6.1f}  {p95:6.1f}  {p99:6.1f}',
          flush=True,
        )


if __name__ == '__main__':
  main()
