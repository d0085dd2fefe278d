"""Selects the systems of a language pair."""

from __future__ import annotations

import re

import numpy as np

from t5score_jax.errors import InputError
from t5score_jax.evaluation import correlation, outliers
from t5score_jax.evaluation.config import AgreementConfig
from t5score_jax.evaluation.scores import ScoreGrid


def choose_systems(
  grid: ScoreGrid, config: AgreementConfig, notes: list[str]
) -> ScoreGrid:
  """Removes the systems that the configuration excludes, with a note on each.

  In this order: names that match `exclude`, systems without a human rating,
  outliers, all but the top k.

  Raises:
    InputError: Outliers or top k without human scores.
  """
  if config.exclude:
    out = [s for s in grid.systems if re.search(config.exclude, s)]
    if out:
      notes.append(
        f'{grid.prefix}left out by --exclude-systems: {", ".join(out)}'
      )
      grid = grid.with_systems([s for s in grid.systems if s not in out])
  means = correlation.system_means(grid.human)
  if config.pairs is None:
    unrated = [
      s for s, m in zip(grid.systems, means, strict=True) if np.isnan(m)
    ]
    if unrated:
      notes.append(
        f'{grid.prefix}left out, no human rating: {", ".join(unrated)}'
      )
      grid = grid.with_systems([s for s in grid.systems if s not in unrated])
      means = means[~np.isnan(means)]
  if config.outliers is not None or config.top_k is not None:
    if np.isnan(means).any():
      raise InputError(
        f'{grid.prefix}outliers and top-k need a human score of every system; '
        'name the column with the human scores'
      )
  if config.outliers is not None:
    away = outliers.are_outliers(means, config.outliers)
    if away.any():
      out = [s for s, far in zip(grid.systems, away, strict=True) if far]
      notes.append(f'{grid.prefix}left out as outliers: {", ".join(out)}')
      grid = grid.with_systems([s for s in grid.systems if s not in out])
      means = means[~away]
  if config.top_k is not None:
    # A stable sort of the negated means: equal means keep the file's order.
    best = np.argsort(-means, kind='stable')[: config.top_k]
    grid = grid.with_systems([grid.systems[i] for i in best])
  return grid
