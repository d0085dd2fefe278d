r"""Times a miniature beside MoverScore, this library's and the published one.

    pip install --no-deps --target peer moverscore==1.0.3 pyemd==1.1.0
    python benchmarks/frugalscore.py wmt17.tsv --encoder all-MiniLM-L6-v2 \
      --published peer

PAIRS has columns `hypothesis` and `reference` (`t5score score --input` says how
to name others). All run on the CPU in this process, in turns; the first run
over the pairs, which loads and compiles, does not count. The published program
(`moverscore_v2.py`; Apache-2.0) names a GPU, a DistilBERT of a model hub and a
NumPy type that no longer exists: it runs from a copy in which these are the
CPU, --encoder and float. It needs torch and transformers. Pairs have a
reference each; of several the first counts there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t5score_jax.commands._usage import positive

# Before JAX is imported: both use the CPU.
os.environ['JAX_PLATFORMS'] = 'cpu'

# Replacements in the published program.
_REPLACED = (
  ('from transformers import *', 'from transformers import {0}'),
  ('DistilBert', 'Bert'),
  ("'distilbert-base-uncased'", '{1!r}'),
  ("'cuda:0'", "'cpu'"),
  ('dtype=np.float)', 'dtype=float)'),
  ('tokenizer.max_len ', '512 '),
  (
    'output, x_encoded_layers, _ = model(input_ids = x, '
    'attention_mask = attention_mask)',
    'x_encoded_layers = model(input_ids=x, attention_mask=attention_mask, '
    'output_hidden_states=True).hidden_states',
  ),
)


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description='Times a miniature beside MoverScore.'
  )
  result.add_argument(
    'pairs',
    nargs='+',
    metavar='PAIRS [NAME=VALUE]',
    help='files of records that are scored, with their columns',
  )
  result.add_argument(
    '--student', default='frugalscore-tiny', help='a name or a folder'
  )
  result.add_argument(
    '--encoder', required=True, help="MoverScore's, a folder of a BERT"
  )
  result.add_argument(
    '--published',
    type=pathlib.Path,
    help='folder with moverscore_v2.py and pyemd; not timed otherwise',
  )
  result.add_argument(
    '--published_pairs',
    type=positive,
    default=500,
    help='number of pairs to time',
  )
  result.add_argument(
    '--batch_size', type=positive, default=64, help='of its own'
  )
  result.add_argument(
    '--rounds', type=positive, default=3, help='after the first'
  )
  return result


def main(arguments: list[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  try:
    _time(args)
  except (ValueError, OSError, ImportError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


def _time(args: argparse.Namespace) -> None:
  from t5score_jax.commands import _record_files
  from t5score_jax.metrics import registry

  segments = list(_record_files.parse(args.pairs, 'PAIRS').segments())
  student = registry.load_metric('frugalscore', model=args.student)
  mover = registry.load_metric('moverscore', model=args.encoder)
  runs: dict[str, tuple[Callable[[Sequence[Any]], np.ndarray], list[Any]]] = {
    args.student: (lambda s: student.score_segments(s).values, segments),
    'MoverScore': (lambda s: mover.score_segments(s).values, segments),
  }
  if args.published:
    runs['MoverScore, published'] = (
      _published(args.published, args.encoder, args.batch_size),
      segments[: args.published_pairs],
    )
  seconds: dict[str, list[float]] = {name: [] for name in runs}
  values = {}
  for _ in range(args.rounds + 1):
    for name, (score, chosen) in runs.items():
      start = time.perf_counter()
      values[name] = score(chosen)
      seconds[name].append((time.perf_counter() - start) / len(chosen))
  fastest = {name: min(times[1:]) for name, times in seconds.items()}
  for name, one in fastest.items():
    ratio = one / fastest[args.student]
    print(
      f'{name}: {1 / one:.0f} pairs/s (median '
      f'{1 / np.median(seconds[name][1:]):.0f}); {args.student} is '
      f'{ratio:.1f} times as fast'
    )
  if args.published:
    published = values['MoverScore, published']
    r = np.corrcoef(published, values['MoverScore'][: len(published)])[0, 1]
    print(f'MoverScore and the published one: Pearson {r:.4f}')


def _published(
  folder: pathlib.Path, encoder: str, batch_size: int
) -> Callable[[Sequence[Any]], np.ndarray]:
  """The published word_mover_score, idf of references and hypotheses."""
  import torch

  from t5score_jax.crosslingual import transport

  # pyemd imports POT, which would import TensorFlow; PyTorch imports Triton
  # after that and crashes.
  transport.optimal_transport()
  source = (folder / 'moverscore_v2.py').read_text('utf-8')
  for old, new in _REPLACED:
    if old not in source:
      raise ValueError(
        f'{folder}/moverscore_v2.py: there is no {old!r} in it; give 1.0.3'
      )
    names = 'BertConfig, BertTokenizer, BertModel'
    source = source.replace(old, new.format(names, encoder))
  sys.path.insert(0, str(folder))
  with tempfile.TemporaryDirectory() as scratch:
    copy = pathlib.Path(scratch) / 'published_moverscore.py'
    copy.write_text(source, 'utf-8')
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # It counts document frequencies in processes, which import it.
    sys.modules[copy.stem] = module
    spec.loader.exec_module(module)
  print(f'torch computes with {torch.get_num_threads()} threads')

  def score(segments: Sequence[Any]) -> np.ndarray:
    hypotheses = [segment.hypothesis for segment in segments]
    references = [segment.references[0] for segment in segments]
    return np.array(
      module.word_mover_score(
        references,
        hypotheses,
        module.get_idf_dict(references),
        module.get_idf_dict(hypotheses),
        stop_words=[],
        n_gram=1,
        remove_subwords=True,
        batch_size=batch_size,
        device='cpu',
      )
    )

  return score


if __name__ == '__main__':
  sys.exit(main())
