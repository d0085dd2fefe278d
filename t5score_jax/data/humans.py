"""Recognises human translations among the systems of an evaluation.

The one definition for training, evaluation and leaderboards.
"""

from __future__ import annotations

import re

#: Regular expression (searched) that matches the names of human translations
#: entered as systems: the names that T5Score (Qin et al. 2022) leaves out.
HUMAN_SYSTEMS = r'^(Human|HUMAN|ref)'


def is_human(system: str | None) -> bool:
  """Whether a system's name matches `HUMAN_SYSTEMS`.

  Args:
    system: The name; None, an unknown system, counts as a machine.

  >>> is_human('Human-A.0'), is_human('ref-B'), is_human('Online-B.1590')
  (True, True, False)
  """
  return system is not None and re.search(HUMAN_SYSTEMS, system) is not None
