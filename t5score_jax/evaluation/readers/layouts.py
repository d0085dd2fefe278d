"""Recognises the layout of a score file and reads the file.

The layouts are in `evaluation/scores.py` (named columns), `readers/wmt.py`,
`readers/mqm.py` and `readers/mtme.py`. The layout is recognised by the file's
name, then by its header, never by its rows.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence

from t5score_jax.data import files
from t5score_jax.errors import InputError
from t5score_jax.evaluation.readers import mqm, mtme, wmt
from t5score_jax.evaluation.scores import ScoreTable, read_table

# `t5score correlate --help` prints these.
LAYOUTS = """
  NAME.seg.score, NAME.sys.score   WMT's metrics task; the column is METRIC
  ad-seg-scores-LP.csv, ad-sys-... official direct assessments: raw, z, n
  TSV of annotated errors          Google's MQM: mqm, mqm-accuracy, ...
  test20.ende.df.short.tsv         MLQE-PE: mean, z_mean, model_scores
  a folder                         mt-metrics-eval's: human-scores, ...
  any other TSV, CSV or JSONL      the columns that you name
""".strip('\n')

#: Their kinds.
FOLDER, WMT, DA, MQM, MLQE, COLUMNS = (
  'folder',
  'wmt',
  'da',
  'mqm',
  'mlqe',
  'columns',
)
#: Each in words.
WORDS = {
  FOLDER: "mt-metrics-eval's folder",
  WMT: "WMT's score file",
  DA: 'official direct assessment',
  MQM: 'a table of MQM errors',
  MLQE: "MLQE-PE's table",
  COLUMNS: 'a file of columns',
}


@dataclasses.dataclass(frozen=True)
class Options:
  """What a layout does not say about itself.

  Attributes:
    columns: A file's names of keys and wanted columns.
    quoting: Quoting of TSV cells, 'none' or 'csv'.
    where: Take only rows whose cells have these values.
    language_pair: Of files that do not state it; None takes it from the name.
    test_set: The test set to take from WMT's score files with several.
    reference: The reference to take from WMT's score files with several.
    by_line: Whether segments of WMT's score files and of MQM annotations are
      called by their number in the test set.
    mqm_weights: See `mqm.parse_weights`.
    level: 'seg' or 'sys': which files of a folder to read.
  """

  columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
  quoting: str = 'none'
  where: Mapping[str, str] = dataclasses.field(default_factory=dict)
  language_pair: str | None = None
  test_set: str | None = None
  reference: str | None = None
  by_line: bool = False
  mqm_weights: str = mqm.WEIGHTS
  level: str = 'seg'


def read(
  path: str | os.PathLike[str],
  wanted: Sequence[str],
  options: Options = Options(),
  score_name: str | None = None,
) -> list[ScoreTable]:
  """Reads one file or folder.

  Args:
    path: What to read; - is standard input, with columns.
    wanted: Names of numeric columns; other columns are left out, as are those
      that the file lacks.
    options: What the layout does not state.
    score_name: The name to give to the one column of scores.

  Returns:
    One table, several for a folder.

  Raises:
    files.RecordError: The file does not follow the layout.
    InputError: A folder needs the language pair, or the name of one of several
      metrics.
  """
  path = os.fspath(path)
  if os.path.isdir(path):
    return _read_folder(path, wanted, options)
  table = _read_special(path, options)
  if table is None:
    table = read_table(
      path,
      wanted,
      columns=options.columns,
      score_name=score_name,
      quoting=options.quoting,
      where=options.where,
    )
    return [_with_language_pair(table, options.language_pair)]
  if options.where:
    raise InputError(f'{path}: --where is for files with columns of any name')
  values = table.values
  if score_name is not None:
    if len(values) != 1:
      raise files.RecordError(
        f'the file has {len(values)} columns ({", ".join(values)}), not one '
        f'to be called {score_name!r}',
        path=path,
      )
    values = dict(zip([score_name], values.values(), strict=True))
  renamed = {options.columns.get(name, name): name for name in wanted}
  return [
    dataclasses.replace(
      table,
      values={
        renamed[name]: column
        for name, column in values.items()
        if name in renamed
      },
      others=tuple(name for name in values if name not in renamed),
    )
  ]


def _with_language_pair(
  table: ScoreTable, language_pair: str | None
) -> ScoreTable:
  # The language pair applies to files that name none.
  if not language_pair or table.names_language_pairs:
    return table
  rows = [(language_pair, system, segment) for _, system, segment in table.rows]
  keys = tuple(dict.fromkeys(['language_pair', *table.keys]))
  return dataclasses.replace(table, keys=keys, rows=rows)


def kind(path: str | os.PathLike[str]) -> str:
  """The layout of a file or folder: a key of `WORDS`.

  Raises:
    OSError: The header can't be read.
  """
  path = os.fspath(path)
  if os.path.isdir(path):
    return FOLDER
  name = os.path.basename(path).removesuffix('.gz')
  if re.search(r'\.(seg|sys)\.score$', name):
    return WMT
  if re.match(r'ad-(seg|sys)-scores-.*\.csv$', name):
    return DA
  if path == '-' or name.endswith(('.csv', '.jsonl')):
    return COLUMNS
  with files.open_text(path) as lines:
    header = next(lines, '').split('\t')
  if mqm.is_mqm_header(header):
    return MQM
  return MLQE if wmt.is_mlqe_header(header) else COLUMNS


def _read_special(path: str, options: Options) -> ScoreTable | None:
  layout = kind(path)
  if layout == WMT:
    return wmt.read_wmt_scores(
      path,
      test_set=options.test_set,
      reference=options.reference,
      by_line=options.by_line,
    )
  if layout == DA:
    return wmt.read_wmt_da(path, options.language_pair)
  if layout == MQM:
    return mqm.read_mqm(
      path,
      options.language_pair or '',
      weights=options.mqm_weights,
      by_line=options.by_line,
    )
  if layout == MLQE:
    return wmt.read_mlqe_pe(path, options.language_pair)
  return None


def _read_folder(
  path: str, wanted: Sequence[str], options: Options
) -> list[ScoreTable]:
  if not mtme.is_folder(path):
    raise files.RecordError(
      'a folder, but not a test set of mt-metrics-eval: it has no '
      'human-scores/ or no system-outputs/',
      path=path,
    )
  if options.language_pair is None:
    raise InputError(
      f'{path}: say which language pair (--language-pair): '
      + ', '.join(mtme.language_pairs(path))
    )
  humans, metrics = mtme.score_files(path, options.language_pair, options.level)
  human_files = {n: humans[n] for n in wanted if n in humans}
  metric_files = {
    n: metrics[mtme.find(n, metrics)] for n in wanted if n not in humans
  }
  return [
    *mtme.read_folder(
      path, options.language_pair, human_files, options.level, may_miss=True
    ),
    *mtme.read_folder(path, options.language_pair, metric_files, options.level),
  ]
