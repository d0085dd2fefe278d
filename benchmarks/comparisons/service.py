"""`t5score serve` over loopback: requests of one pair by eight and 64 clients.

Requests that wait are scored in one batch; the other side takes one by one.
Every score is checked. Processor seconds and memory are those of the server.
"""

import asyncio

import numpy as np

TITLE = 'Service, t5score-tiny'
UNIT = 'requests'
OURS = {'here': 'ours', 'here, one request a batch': 'apart'}
PEERS = {}
TOLERANCE = 0.0
MEASURE = 'seconds'
ROUNDS = 0
_CLIENTS = (8, 64)


def prepare(folder, size):
  """How many requests."""
  requests = 16 if size['quick'] else 128
  return {'items': requests * len(_CLIENTS), 'requests': requests, **size}


def ours(job):
  """As it works."""
  return _served(job)


def apart(job):
  """A batch for every request."""
  return _served(job, '--batch-texts', '1')


def _served(job, *arguments):
  import measuring
  import serving

  requests = serving.made_up('t5score-tiny', job['requests'], 1)

  def measured(address):
    before, _ = measuring.children()
    rows, total = [], 0.0
    for clients in _CLIENTS:
      delays, seconds = asyncio.run(serving.load(address, requests, clients))
      p50, p95 = 1000 * np.percentile(delays, [50, 95])
      rate = len(delays) / seconds
      rows.append([clients, f'{rate:.0f}', f'{p50:.0f}', f'{p95:.0f}'])
      total += seconds
    after, memory = measuring.children()
    columns = ['clients', 'requests/s', 'p50, ms', 'p95, ms']
    return {
      'seconds': total,
      'cpu': after - before,
      'memory': memory,
      'table': {'columns': columns, 'rows': rows},
    }

  def run():
    with serving.served('t5score-tiny', *arguments) as address:
      # Once untimed: the shapes of batches are compiled.
      for clients in _CLIENTS:
        asyncio.run(serving.load(address, requests, clients))
      return measured(address)

  return run
