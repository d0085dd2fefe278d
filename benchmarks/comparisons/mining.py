"""Mining of sentence pairs by ratio margin, beside faiss and NumPy scripts.

On a CPU this library searches with faiss as well; the rest differs.
"""

import numpy as np

TITLE = 'Mining by ratio margin'
UNIT = 'sources'
OURS = {'here': 'ours', 'NumPy, brute force': 'by_numpy'}
PEERS = {'faiss and NumPy': 'by_faiss'}
TOLERANCE = 1e-3
MEASURE = 'seconds'
_K = 5
_BLOCK = 1000


def prepare(folder, size):
  """Numbers of sentences; vectors are drawn by each side alike."""
  return {'items': 500 if size['quick'] else 10000, 'width': 384, **size}


def _vectors(job):
  """Sources and noisy translations of them, of unit length."""
  draw = np.random.default_rng(0)
  x = draw.normal(size=(job['items'], job['width'])).astype('f4')
  y = x + 1.5 * draw.normal(size=x.shape).astype('f4')
  return [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y)]


def ours(job):
  """The library."""
  from t5score_jax.crosslingual import mining

  x, y = _vectors(job)

  def run():
    found = mining.by_margin(x, y, _K)
    scores = np.zeros(len(x))
    scores[found.sources] = found.scores
    return {'scores': scores}

  return run


def by_faiss(job):
  """Flat indices in both directions."""
  import faiss

  def nearest(queries, base):
    index = faiss.IndexFlatIP(base.shape[1])
    index.add(base)
    return index.search(queries, _K)

  return _script(job, nearest)


def by_numpy(job):
  """All products, block by block."""

  def nearest(queries, base):
    values, rows = [], []
    for start in range(0, len(queries), _BLOCK):
      products = queries[start : start + _BLOCK] @ base.T
      best = np.argpartition(-products, _K, axis=1)[:, :_K]
      rows.append(best)
      values.append(np.take_along_axis(products, best, 1))
    return np.concatenate(values), np.concatenate(rows)

  return _script(job, nearest)


def _script(job, nearest):
  """Equation 5 of UScore, then the best pairs first, each text once."""
  x, y = _vectors(job)

  def run():
    forward, targets = nearest(x, y)
    backward, sources = nearest(y, x)
    near_x, near_y = forward.mean(1), backward.mean(1)
    pairs = {}
    for i in range(len(x)):
      for value, j in zip(forward[i], targets[i], strict=True):
        pairs[i, int(j)] = value / ((near_x[i] + near_y[j]) / 2)
    for j in range(len(y)):
      for value, i in zip(backward[j], sources[j], strict=True):
        pairs[int(i), j] = value / ((near_x[i] + near_y[j]) / 2)
    scores, taken = np.zeros(len(x)), set()
    for (i, j), value in sorted(pairs.items(), key=lambda pair: -pair[1]):
      if not scores[i] and j not in taken:
        scores[i] = value
        taken.add(j)
    return {'scores': scores}

  return run
