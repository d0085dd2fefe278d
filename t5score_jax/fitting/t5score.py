"""Writes the gin file that trains T5Score on rated records.

Lengths, group size and steps are derived from the records, and the network from
the initial model. All else comes from `runs/train_groups.gin` and
`runs/records.gin` (equation 3 of the paper over groups), and for small models
from `recipes/t5score_tiny_records.gin`. Not here: training
(`training/loop.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5score_jax.checkpoints import kinds, registry
from t5score_jax.checkpoints.source import Options, Source
from t5score_jax.data import judgments, vocab
from t5score_jax.data.records import Segment
from t5score_jax.nn import t5

# The share of texts that are not truncated, and the maximum length of any text.
_WHOLE, _LONGEST = 0.95, 512
_MOST_IN_A_GROUP = 8
# Smaller models use the settings measured with t5score-tiny.
_SMALL = 50_000_000
_EVALUATIONS = 8
_FEWEST_STEPS = 20

_SMALL_MODEL = """\
t5score.GroupModel:
  config = %CONFIG
  alpha = 0.3
  generative_weight = 0.1
  joint = True
OPTIMIZER = @optimizers.adamw()
optimizers.adamw:
  b2 = 0.98
  weight_decay = 0.01
  clip_norm = 1.0
  schedule = %SCHEDULE
EMA_DECAY = 0.98
DROPOUT_RATE = 0.0
"""


@dataclasses.dataclass(frozen=True)
class Choices:
  """The user's choices; None derives the value from records and model.

  Attributes:
    model: The name or folder of the initial model.
    shared: 'reference' or 'source': what hypotheses are compared with.
    epochs: Passes over the groups.
    batch_size: Groups per step.
    learning_rate: The peak rate, after the warm-up.
  """

  model: str
  shared: str | None = None
  epochs: float = 4.0
  batch_size: int | None = None
  learning_rate: float | None = None


def configuration(
  choices: Choices,
  rating: str,
  train: Sequence[Segment],
  paths: Mapping[str, str],
) -> str:
  """Returns the text of the gin file, without MODEL_DIR.

  Args:
    choices: The user's choices.
    rating: The name of the rating; higher is better.
    train: The records to train on.
    paths: The files with the records to train on ('train') and to select the
      checkpoint on ('validation').

  Raises:
    ValueError: No record has the rating.
    CheckpointError: The model's folder holds no T5 model.
    FileNotFoundError: There is no such model.
  """
  source = _source(choices.model)
  shared = choices.shared or _shared(train)
  groups, _ = judgments.groups(train, rating, shared=shared)
  sizes = [len(group.hypotheses) for group in groups]
  largest = min(max(sizes, default=2), _MOST_IN_A_GROUP)
  count = sum(math.ceil(size / largest) for size in sizes)
  length = _length(groups, source.need_vocabulary())
  small = source.size < _SMALL
  batch_size = choices.batch_size or (4 if small else 8)
  steps = max(math.ceil(choices.epochs * count / batch_size), _FEWEST_STEPS)
  settings = dict(source.settings)
  if 'name' in settings:
    # Once, also where a tuned model is tuned again.
    settings['name'] = settings['name'].removesuffix('-tuned') + '-tuned'
  if shared == 'source':
    settings['direction'] = 'source'
  lengths = {'inputs': length, 'targets': length, 'ratings': largest}
  macros = {
    'VOCABULARY': choices.model,
    'INITIAL_CHECKPOINT_PATH': choices.model,
    'RECORDS': paths['train'],
    'VALIDATION': paths['validation'],
    'RATING': rating,
    'SHARED': shared,
    'SETTINGS': settings,
    'TASK_FEATURE_LENGTHS': lengths,
    'BATCH_SIZE': batch_size,
    'LEARNING_RATE': choices.learning_rate or (1e-4 if small else 1e-5),
    'TRAIN_STEPS': steps,
    'WARMUP_STEPS': steps // 15,
    'EVAL_EVERY': max(steps // _EVALUATIONS, 1),
  }
  return '\n'.join(
    [
      f'# T5Score from {choices.model}, on {rating!r} of {count:,} groups; '
      'by `t5score fit`.',
      '',
      'from __gin__ import dynamic_registration',
      '',
      'from t5score_jax.models import t5score',
      'from t5score_jax.nn import t5',
      'from t5score_jax.training import optimizers',
      '',
      "include 'runs/train_groups.gin'",
      "include 'runs/records.gin'",
      '',
      *_network(source.config),
      '',
      *(_SMALL_MODEL.splitlines() if small else ()),
      *(f'{name} = {value!r}' for name, value in macros.items()),
      '',
    ]
  )


def _source(model: str) -> Source:
  path = kinds.folder(model)
  return registry.load(registry.detect(path)).open_source(path, Options())


def _shared(segments: Sequence[Segment]) -> str:
  """The reference, unless there are only sources."""
  referenced = any(segment.references for segment in segments)
  sourced = any(segment.source for segment in segments)
  return 'source' if sourced and not referenced else 'reference'


def _length(
  groups: Sequence[judgments.Group], vocabulary: vocab.Vocabulary
) -> int:
  """Tokens of a text, a multiple of 16 that leaves 95% of the texts whole."""
  texts = {text for g in groups for text in (g.shared, *g.hypotheses)}
  if not texts:
    return 64
  # One more for </s>.
  counts = [len(ids) + 1 for ids in vocabulary.encode_batch(sorted(texts))]
  wanted = float(np.quantile(counts, _WHOLE, method='higher'))
  return min(16 * math.ceil(wanted / 16), _LONGEST)


def _network(config: t5.T5Config) -> list[str]:
  """The network in gin: fields that differ from the defaults."""
  usual = t5.T5Config(vocab_size=config.vocab_size)
  # How to compute, not what.
  own: dict[str, Any] = {
    field.name: getattr(config, field.name)
    for field in dataclasses.fields(config)
    if field.name not in ('dropout_rate', 'dtype', 'remat', 'scan_layers')
    and getattr(config, field.name) != getattr(usual, field.name)
  }
  lines = {'vocab_size': config.vocab_size, **own}
  return [
    'CONFIG = @t5.T5Config()',
    't5.T5Config:',
    *(f'  {name} = {value!r}' for name, value in lines.items()),
    '  dropout_rate = %DROPOUT_RATE',
    '  dtype = %DTYPE',
    '  remat = %REMAT',
    "DTYPE = 'float32'",
    "REMAT = 'none'",
  ]
