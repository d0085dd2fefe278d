"""Reads WMT20's files and further scores for T5Score's tables.

Judgments and published scores are in one folder; `wmt20` measures.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from t5score_jax.data import files
from t5score_jax.evaluation import darr, scores
from t5score_jax.evaluation.readers import wmt

TEST_SET = 'newstest2020'
# What the cells of a file of agreement say.
_SIGNS = {'1': 1.0, '0': -1.0, '': np.nan}


class Data:
  """WMT20's files in a folder, and scores from elsewhere."""

  def __init__(
    self,
    folder: str | os.PathLike[str],
    own: Mapping[str, Sequence[scores.ScoreTable]],
  ):
    """Takes the folder and further scores.

    Args:
      folder: With wmt20_darr.tsv and wmt20_metrics/{human,scores}/, gzipped or
        not; with wmt20_mqm_da.LP.tsv for Table 2, and
        wmt20_metrics/darr_agreement.tsv for metrics without published segment
        scores.
      own: Tables with one column each, by metric; several are joined.

    Raises:
      files.RecordError: The folder lacks the ranked pairs or human scores.
    """
    self.folder = pathlib.Path(folder)
    self.own = {name: _by_key(name, tables) for name, tables in own.items()}
    self.pairs = darr.with_plain_systems(
      darr.read_pairs(self.find('wmt20_darr.tsv'))
    )
    self._agreement: dict[str, np.ndarray] | None = None
    # Cache of files: several tables need the same ones.
    self._read: dict[str, dict[tuple[str, str, str], float]] = {}

  def find(self, name: str) -> pathlib.Path:
    """A file of the folder, gzipped or not.

    Raises:
      files.RecordError: The file does not exist.
    """
    for ending in ('.gz', ''):
      if (self.folder / (name + ending)).exists():
        return self.folder / (name + ending)
    raise files.RecordError(f'no {name} or {name}.gz', path=self.folder)

  def has(self, name: str) -> bool:
    """Whether the folder has a file, gzipped or not."""
    return any((self.folder / (name + e)).exists() for e in ('.gz', ''))

  def segment_scores(self, metric: str) -> dict[tuple[str, str, str], float]:
    """Scores by (language pair, system, segment); empty without a file."""
    if metric in self.own:
      return self.own[metric]
    return self._published(f'wmt20_metrics/scores/{metric}.seg.score')

  def _published(self, name: str) -> dict[tuple[str, str, str], float]:
    if name not in self._read:
      self._read[name] = {}
      if self.has(name):
        table = scores.with_plain_systems(
          wmt.read_wmt_scores(self.find(name), test_set=TEST_SET)
        )
        (values,) = table.values.values()
        self._read[name] = dict(zip(table.rows, values.tolist(), strict=True))
    return self._read[name]

  def system_scores(self, metric: str) -> dict[tuple[str, str], float]:
    """Scores by (language pair, system): published, or means over segments."""
    name = f'wmt20_metrics/scores/{metric}.sys.score'
    if metric not in self.own and self.has(name):
      return {
        (pair, system): value
        for (pair, system, _), value in self._published(name).items()
      }
    by_system: dict[tuple[str, str], list[float]] = {}
    for (pair, system, _), value in self.segment_scores(metric).items():
      by_system.setdefault((pair, system), []).append(value)
    return {key: float(np.mean(values)) for key, values in by_system.items()}

  def agreement(self, metric: str) -> np.ndarray:
    """Whether the metric agrees with each ranked pair: 1, -1, NaN unknown."""
    segment_scores = self.segment_scores(metric)
    p = self.pairs
    if segment_scores:
      keys = (p.language_pair.tolist(), p.segment.tolist())
      better, worse = (
        np.array(
          [
            segment_scores.get((pair, system, segment), np.nan)
            for pair, segment, system in zip(*keys, names, strict=True)
          ]
        )
        for names in (p.better.tolist(), p.worse.tolist())
      )
      known = np.isfinite(better) & np.isfinite(worse)
      return np.where(known, np.where(better > worse, 1.0, -1.0), np.nan)
    if self._agreement is None:
      self._agreement = self._read_agreement()
    return self._agreement.get(metric, np.full(len(p.segment), np.nan))

  def _read_agreement(self) -> dict[str, np.ndarray]:
    name = 'wmt20_metrics/darr_agreement.tsv'
    if not self.has(name):
      return {}
    p = self.pairs
    keys = zip(
      p.language_pair.tolist(),
      p.segment.tolist(),
      p.better.tolist(),
      p.worse.tolist(),
      strict=True,
    )
    place = {key: index for index, key in enumerate(keys)}
    path = self.find(name)
    with files.open_text(path) as lines:
      metrics = next(lines).split('\t')[4:]
      signs = np.full((len(metrics), len(p.segment)), np.nan)
      for number, line in enumerate(lines, 2):
        pair, segment, better, worse, *cells = line.split('\t')
        better, worse = map(scores.plain_system, (better, worse))
        key = (pair, segment, better, worse)
        if key not in place or not set(cells) <= set(_SIGNS):
          raise files.RecordError(
            'not one of the ranked pairs, or a cell that is not 0 or 1',
            path=path,
            line=number,
          )
        signs[:, place[key]] = [_SIGNS[cell] for cell in cells]
    return dict(zip(metrics, signs, strict=True))


def _by_key(
  name: str, tables: Sequence[scores.ScoreTable]
) -> dict[tuple[str, str, str], float]:
  by_key: dict[tuple[str, str, str], float] = {}
  for table in tables:
    if table.keys != scores.KEYS:
      raise files.RecordError(
        'the report needs language_pair, system and segment (DOC::SEG); the '
        f'file has {", ".join(table.keys) or "none of them"}',
        path=table.path,
      )
    table = scores.with_plain_systems(table)
    (values,) = table.values.values()
    for key, value, line in zip(
      table.rows, values.tolist(), table.lines, strict=True
    ):
      if key in by_key:
        raise files.RecordError(
          f'a second score of {name} for {key}', path=table.path, line=int(line)
        )
      by_key[key] = value
  return by_key
