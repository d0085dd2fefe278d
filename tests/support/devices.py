"""The environment of child processes with some number of host devices."""

import os
import re


def environment(count: int = 1, **changes: str) -> dict[str, str]:
  """This process's environment; the child starts with `count` CPU devices."""
  flags = re.sub(
    r'--xla_force_host_platform_device_count=\d+',
    '',
    os.environ.get('XLA_FLAGS', ''),
  )
  if count > 1:
    flags += f' --xla_force_host_platform_device_count={count}'
  return {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags, **changes}
