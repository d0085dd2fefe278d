"""Outlying systems: those whose human score is far from the median.

The one outlier rule of this library; `leaderboard/` uses it too.
"""

from __future__ import annotations

import numpy as np

#: The median absolute deviation (MAD) times this estimates the standard
#: deviation of a normal distribution. Mathur et al. (2020), section 4, print
#: 1.483; four decimals are common elsewhere. Rankings can depend on it, so
#: each published number keeps its own.
MATHUR_SCALE, MAD_SCALE = 1.483, 1.4826

#: Distance, in robust standard deviations, beyond which Mathur et al. (2020)
#: call a system an outlier.
CUTOFF = 2.5


def are_outliers(
  means: np.ndarray, cutoff: float = CUTOFF, scale: float = MATHUR_SCALE
) -> np.ndarray:
  """Which systems are outliers: |mean - median| > cutoff * scale * MAD.

  If more than half of the systems share one mean, the MAD is 0 and there are
  no outliers.

  Args:
    means: Human score of each system, [S].
    cutoff: Distance from the median in robust standard deviations.
    scale: Factor from MAD to standard deviation.

  Returns:
    bool [S].

  >>> are_outliers(np.array([0.1, 0.2, 0.15, 0.12, -3.0])).tolist()
  [False, False, False, False, True]
  """
  distance = np.abs(means - np.median(means))
  spread = scale * np.median(distance)
  return (
    distance > cutoff * spread if spread > 0 else np.zeros_like(means, bool)
  )
