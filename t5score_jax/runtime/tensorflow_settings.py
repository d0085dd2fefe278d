"""TensorFlow only reads data here: it takes no GPU and does not chatter.

Wherever a verb may come to import it, and then at length: on some machines it
logs lines that look like errors, before it can be told not to. Imports no
TensorFlow itself. Not here: what it reads (`inputs/datasets.py`, `tasks/`).
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

#: Whoever sets it wants to hear TensorFlow.
VARIABLE = 'TF_CPP_MIN_LOG_LEVEL'
# What its C++ writes before its log is set up, whatever the variable says.
_CHATTER = re.compile(
  r'[IWE]\d{4} \d\d:\d\d:\d+\.\d+ '
  r'|WARNING: All log messages before absl::InitializeLog\(\) is called '
)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
  """Within, TensorFlow may be imported, and logs nothing.

  What else is written to standard error appears when the block ends.
  """
  # Where standard error is closed there is nothing to keep clean.
  heard = VARIABLE in os.environ or sys.stderr is None
  if heard or 'tensorflow' in sys.modules:
    yield
    keep_off_accelerators()
    return
  os.environ[VARIABLE] = '3'
  with tempfile.TemporaryFile() as written:
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(written.fileno(), 2)
    try:
      yield
      # Asking for its devices is what it complains about where there are none.
      keep_off_accelerators()
    finally:
      sys.stderr.flush()
      os.dup2(kept, 2)
      os.close(kept)
      written.seek(0)
      text = written.read().decode('utf-8', 'backslashreplace')
      for line in text.splitlines(keepends=True):
        if not _CHATTER.match(line):
          sys.stderr.write(line)


def keep_off_accelerators() -> None:
  """Hides GPUs from TensorFlow, if it is there; JAX keeps them.

  Otherwise it reserves their memory as soon as it computes.
  """
  tensorflow = sys.modules.get('tensorflow')
  if tensorflow is None:
    return
  # It has computed already: too late, and no reason to stop.
  with contextlib.suppress(AttributeError, RuntimeError):
    tensorflow.config.set_visible_devices([], 'GPU')
