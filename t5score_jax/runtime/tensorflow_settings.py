"""Keeps TensorFlow, which only reads data here, off GPUs and quiet.

On some machines TensorFlow logs lines that look like errors before logging can
be configured. This module does not import it. Not here: what it reads
(`inputs/datasets.py`, `tasks/`).
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

#: If the user sets it, nothing is suppressed.
VARIABLE = 'TF_CPP_MIN_LOG_LEVEL'
# Written by its C++ code before logging is set up.
_NOISE = re.compile(
  r'[IWE]\d{4} \d\d:\d\d:\d+\.\d+ '
  r'|WARNING: All log messages before absl::InitializeLog\(\) is called '
)
# Whether this module set the variable.
_is_set_here = False


@contextlib.contextmanager
def quietly() -> Iterator[None]:
  """Suppresses TensorFlow's log while it is imported in the block.

  Other output to standard error appears when the block ends.
  """
  global _is_set_here
  # JAX sets the variable to 1 when it is imported.
  by_jax = 'jax' in sys.modules and os.environ.get(VARIABLE) == '1'
  by_user = VARIABLE in os.environ and not (by_jax or _is_set_here)
  # Nothing to suppress if standard error is closed.
  shown = by_user or sys.stderr is None
  if shown or 'tensorflow' in sys.modules:
    yield
    keep_off_accelerators()
    return
  os.environ[VARIABLE] = '3'
  _is_set_here = True
  with tempfile.TemporaryFile() as written:
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(written.fileno(), 2)
    try:
      yield
      # It logs complaints when asked for devices on machines without any.
      keep_off_accelerators()
    finally:
      sys.stderr.flush()
      os.dup2(kept, 2)
      os.close(kept)
      written.seek(0)
      text = written.read().decode('utf-8', 'backslashreplace')
      for line in text.splitlines(keepends=True):
        if not _NOISE.match(line):
          sys.stderr.write(line)


def keep_off_accelerators() -> None:
  """Hides GPUs from TensorFlow if it is imported.

  Otherwise it would reserve their memory as soon as it computes.
  """
  tensorflow = sys.modules.get('tensorflow')
  if tensorflow is None:
    return
  # Too late if it has already computed, but no reason to stop.
  with contextlib.suppress(AttributeError, RuntimeError):
    tensorflow.config.set_visible_devices([], 'GPU')
