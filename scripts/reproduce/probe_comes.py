r"""Ridge regression on COMES's features from a frozen encoder.

    python scripts/reproduce/probe_comes.py comes/texts summeval.jsonl.gz \
        --ratings coherence,consistency,fluency,relevance

TEXTS is the folder of texts that `t5score crossvalidate` created from these
records (with runs/comes_head.gin); with --encoder it is created if absent.
Features are those of the estimator, means over references: h, h*s, |h-s|, h*r,
|h-r| of the vectors of hypothesis, source and reference, scaled to deviation 1.
Folds are those of `t5score crossvalidate` with the same --part. For
each hidden state and strength: Pearson's correlation
over a fold's outputs, the mean over folds and dimensions; and Kendall's tau of
systems' means.
"""

from __future__ import annotations

import argparse
import json
import sys
import typing
from collections.abc import Sequence
from pathlib import Path

import numpy as np

if typing.TYPE_CHECKING:
  from t5score_jax.data.instances import Fold, Instances, Texts


def parser() -> argparse.ArgumentParser:
  """The command line."""
  result = argparse.ArgumentParser(
    description='Ridge regression on the vectors of a frozen encoder.'
  )
  result.add_argument('texts', type=Path, help='WORK/texts of crossvalidate')
  result.add_argument('records', help='the --input of crossvalidate')
  result.add_argument(
    '--ratings', required=True, help='names of the human ratings: NAME,...'
  )
  result.add_argument(
    '--encoder', help='name or folder of an encoder that reads the texts'
  )
  result.add_argument(
    '--folds', type=int, default=10, help='number of them (default: 10)'
  )
  result.add_argument(
    '--seed',
    type=int,
    default=0,
    help='of the division into folds (default: 0)',
  )
  result.add_argument(
    '--strengths',
    type=lambda text: [float(x) for x in text.split(',')],
    default=[10.0, 100.0, 1000.0, 10000.0],
    metavar='X,...',
    help='strengths of the regularization (default: 10,100,1000,10000)',
  )
  result.add_argument(
    '--part',
    choices=('validation', 'test'),
    default='validation',
    help='the documents of a fold that are predicted (default: %(default)s)',
  )
  result.add_argument(
    '--no-reference',
    action='store_true',
    help='without references, as with REFERENCE = False',
  )
  result.add_argument(
    '--table', default='text', help='text, json, latex or markdown'
  )
  return result


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program; returns its exit code."""
  args = parser().parse_args(arguments)
  from t5score_jax.evaluation.reports import tables

  ratings = args.ratings.split(',')
  try:
    names, rows = _probe(args, ratings)
    print(
      tables.render_values(
        f'Ridge regression, {args.folds} {args.part} folds (seed {args.seed}): '
        "Pearson over outputs, Kendall's tau of systems' means",
        ['pearson', *ratings, 'mean tau'],
        names,
        rows,
        [],
        args.table,
      )
    )
  except (ValueError, OSError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 1
  return 0


def _probe(
  args: argparse.Namespace, ratings: Sequence[str]
) -> tuple[list[str], list[list[float]]]:
  """Returns (setting, numbers) for each row."""
  from t5score_jax.data import instances, records
  from t5score_jax.evaluation import dimensions

  judged = instances.averaged(
    records.read_records(args.records, ratings=ratings)
  )
  instances.check_rated(judged, ratings, args.records)
  texts = instances.Texts()
  built = instances.build(judged, ratings, texts, not args.no_reference)
  if args.encoder:
    _encode(args, ratings, texts)
  vectors, layers = _vectors(args.texts, texts.digest())
  wanted = np.array([[s.ratings[name] for name in ratings] for s in judged])
  keys = instances.keys(judged, 'document')
  divided = instances.folds(keys, args.folds, args.seed)
  names, rows = [], []
  for place, layer in enumerate(layers):
    inputs = _features(vectors[:, place].astype(np.float64), built)
    for strength in args.strengths:
      predicted, pearson = _fold_by_fold(
        inputs, wanted, np.array(keys), divided, args.part, strength
      )
      tau, _ = dimensions.system_kendall(judged, ratings, predicted)
      names.append(f'layer {layer}, strength {strength:g}')
      rows.append([pearson, *tau, float(tau.mean())])
  return names, rows


def _encode(
  args: argparse.Namespace, ratings: Sequence[str], texts: Texts
) -> None:
  """Writes the vectors of all layers, unless they exist."""
  from t5score_jax.checkpoints import kinds
  from t5score_jax.checkpoints.formats.huggingface import encoders
  from t5score_jax.fitting import text_cache
  from t5score_jax.nn import heads

  bundle = encoders.load_encoder(kinds.folder(args.encoder))
  config = heads.RegressorConfig(
    encoder=bundle.config,
    outputs=tuple(ratings),
    reference=not args.no_reference,
    hidden_sizes=(1,),
    pooling='mean',
    layer='mix',
  )
  wanted = text_cache.Encoding(config, args.encoder, form='vectors')
  start = text_cache.load_start(wanted)
  print(text_cache.table(args.texts, texts, wanted, start).about())


def _vectors(folder: Path, digest: str) -> tuple[np.ndarray, list[int]]:
  """The vectors [texts, layers, width], and the indices of the layers.

  Raises:
    ValueError: The vectors are missing, or belong to other texts.
  """
  file = folder / 'vectors.npy'
  if not file.is_file():
    raise ValueError(
      f'{file}: is not there; TEXTS is the texts folder of a `t5score '
      'crossvalidate` with runs/comes_head.gin'
    )
  about = json.loads((folder / 'info.json').read_text('utf-8'))
  if about['texts'] != digest:
    raise ValueError(
      f'{folder}: holds the texts of other records, or those without '
      'references (--no-reference)'
    )
  return np.load(file), about['layers']


def _features(vectors: np.ndarray, built: Instances) -> np.ndarray:
  """The regressor's features of each record, means over references."""
  h, s = vectors[built.hypothesis], vectors[built.source]
  parts = [h, h * s, np.abs(h - s)]
  if (reference := built.reference) is not None:
    r = vectors[reference]
    parts += [h * r, np.abs(h - r)]
  _, starts = np.unique(built.record, return_index=True)
  counts = np.diff([*starts, len(h)])[:, None]
  return np.concatenate(
    [np.add.reduceat(part, starts, axis=0) / counts for part in parts], axis=1
  )


def _fold_by_fold(
  inputs: np.ndarray,
  wanted: np.ndarray,
  keys: np.ndarray,
  divided: Sequence[Fold],
  part: str,
  strength: float,
) -> tuple[np.ndarray, float]:
  """Predicts each record in the fold that holds it out; mean Pearson."""
  from sklearn import linear_model, pipeline, preprocessing

  from t5score_jax.evaluation import correlation

  predicted = np.zeros_like(wanted)
  found = []
  for fold in divided:
    train = np.isin(keys, fold.train)
    held = np.isin(keys, getattr(fold, part))
    model = pipeline.make_pipeline(
      preprocessing.StandardScaler(), linear_model.Ridge(strength)
    )
    predicted[held] = model.fit(inputs[train], wanted[train]).predict(
      inputs[held]
    )
    found += [
      correlation.pearson(x, y)
      for x, y in zip(predicted[held].T, wanted[held].T, strict=True)
    ]
  return predicted, float(np.mean(found))


if __name__ == '__main__':
  sys.exit(main())
