"""Runs the published program of UScore on arrays, for `crosslingual.py`.

    PYTHON unsupervised_metrics.py FOLDER JOB.npz RESULT.npz

FOLDER is a checkout of github.com/potamides/unsupervised-metrics (0d105ac), and
PYTHON has torch, pyemd and faiss-cpu. Of the program its word mover's distance
(metrics/utils/wmd.py) and its ratio margin (metrics/utils/knn.py) are loaded,
unchanged; nothing of this library is. Of 'words_x', 'words_y' (the vectors of
all texts' words in a row) and 'sizes_x', 'sizes_y' the distances of pairs are
computed; of 'x' and 'y', sentence vectors, the matches by ratio margin.
"""

import importlib.util
import sys
import time

import numpy as np
import torch


def _load(folder, name):
  path = f'{folder}/metrics/utils/{name}.py'
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _padded(vectors, sizes):
  texts = np.split(vectors, np.cumsum(sizes)[:-1])
  padded = np.zeros((len(texts), max(sizes), vectors.shape[1]), np.float32)
  for row, text in enumerate(texts):
    padded[row, : len(text)] = text
  weights = (np.arange(max(sizes)) < np.array(sizes)[:, None]).astype('f')
  # Every token is a word.
  tokens = [['word'] * size for size in sizes]
  return torch.tensor(padded), torch.tensor(weights), tokens


def main():
  """Runs one job."""
  folder, job, result = sys.argv[1:]
  with np.load(job) as arrays:
    given = dict(arrays)
  found = {}
  if 'words_x' in given:
    sides = [
      _padded(given[f'words_{side}'], given[f'sizes_{side}']) for side in 'xy'
    ]
    wmd = _load(folder, 'wmd')
    start = time.perf_counter(), time.process_time()
    found['distances'] = -np.array(wmd.word_mover_score(*sides, n_gram=1))
    found['distances_seconds'] = time.perf_counter() - start[0]
    found['distances_cpu'] = time.process_time() - start[1]
  if 'x' in given:
    knn = _load(folder, 'knn')
    k = int(given['k'])
    # They normalise in place.
    sides = [torch.tensor(given[side].copy()) for side in 'xy']
    start = time.perf_counter(), time.process_time()
    matches, found['margins'] = knn.ratio_margin_align(
      *sides, k, 1000000, 'cpu'
    )
    found['margins_seconds'] = time.perf_counter() - start[0]
    found['margins_cpu'] = time.process_time() - start[1]
    found['matches'] = matches[:, 1]
  np.savez(result, **found)


main()
