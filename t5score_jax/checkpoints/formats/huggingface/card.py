"""The model card of an exported folder: how to score with transformers alone.

`tests/parity` runs the code that it shows. Not here: the folder's other files
(`formats/huggingface/checkpoint.py`).
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.bundle import network_hash
from t5score_jax.checkpoints.formats import safetensors_files
from t5score_jax.checkpoints.weights import BLOCK_BYTES, LazyArray, Weights
from t5score_jax.data.vocab import ByteVocabulary, Vocabulary
from t5score_jax.nn.t5 import T5Config
from t5score_jax.version import __version__, format_signature

# The paper's, for models that do not say.
_DEFAULT_LENGTH = 1024

_CARD = """\
---
library_name: transformers
tags:
- t5score
- {kind}
---
# {name}

A T5Score model (Qin et al. 2022): it scores a text by its probability given a
reference, and the reference's given the text. Exported by t5score_jax
{version}, which has the documentation.

{size:,} parameters in {dtype}; {encoder} encoder and {decoder} decoder layers,
width {emb_dim}, {heads} heads; {vocabulary}.

## Signature

    {signature}

State it with scores. With t5score_jax the same scores come from

    t5score score -m THIS_FOLDER -r references.txt -t hypotheses.txt

## Scoring with transformers

The score of a target given an input is the mean log-probability of the target's
tokens, `</s>` among them; at most 0, higher is better. Precision scores the
hypothesis given the reference, recall the reference given the hypothesis, F is
their mean{default}. A source can take the reference's place.

```python
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

FOLDER = '.'  # this folder

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelForSeq2SeqLM.from_pretrained(FOLDER).float().eval()


def token_ids(text):
  return tokenizer(
    text{lower}, truncation=True, max_length={length}, return_tensors='pt'
  ).input_ids


@torch.inference_mode()
def log_prob(given, target):
  labels = token_ids(target)
  logits = model(input_ids=token_ids(given), labels=labels).logits
  log_probs = logits.log_softmax(-1).gather(-1, labels[..., None])
  return log_probs.mean().item()


def t5score(hypothesis, reference):
  precision = log_prob(reference, hypothesis)
  recall = log_prob(hypothesis, reference)
  return {{
    'precision': precision,
    'recall': recall,
    'f': (precision + recall) / 2,
  }}


print(t5score('the cat sat on a mat', reference='a cat sat on the mat'))
```

Texts are cut at {length} tokens. Batches, with padding and `attention_mask`,
give the same scores faster.{special}
"""

_METRIC_CARD = """\
---
library_name: transformers
tags:
- {metric}
- {kind}
---
# {name}

A T5 whose first decoder step is a score of {title}. Exported by t5score_jax
{version}, which has the documentation.

{size:,} parameters in {dtype}; {encoder} encoder and {decoder} decoder layers,
width {emb_dim}, {heads} heads; {vocabulary}.

    t5score score -m THIS_FOLDER -s SOURCES -r REFERENCES -t HYPOTHESES

prints scores with their signature. The published program of {title} reads this
folder too. Settings: {settings}.
"""
_TITLES = {kinds.METRICX: 'MetricX', kinds.UNIEVAL: 'UniEval'}


def make(
  config: T5Config,
  kind: str,
  dtype: str,
  vocabulary: Vocabulary,
  settings: Mapping[str, Any],
  folder: Path,
  weights: Weights,
) -> str:
  """Writes the card.

  Args:
    config: The network, not scanned.
    kind: HuggingFace's model type.
    dtype: The dtype of the stored weights.
    vocabulary: The model's vocabulary.
    settings: See `Bundle.settings`; with a name.
    folder: Needs room for the largest array, temporarily.
    weights: As stored, under our names; read once, for their hash.

  Returns:
    Markdown.
  """
  name = str(settings['name'])
  length = int(settings.get('max_length') or _DEFAULT_LENGTH)
  direction = settings.get('direction', 'f')
  spelled = (
    '\nThe spelling of a special token in a text, such as `</s>`, is the token '
    'to this\ntokenizer, and plain text to t5score_jax unless it is given '
    '`--option\nspecial_tokens=True`.'
  )
  in_bytes = isinstance(vocabulary, ByteVocabulary)
  common = {
    'kind': kind,
    'name': name,
    'version': __version__,
    'size': sum(array.size for array in weights.values()),
    'dtype': dtype,
    'encoder': config.num_encoder_layers,
    'decoder': config.num_decoder_layers,
    'emb_dim': config.emb_dim,
    'heads': config.num_heads,
    'vocabulary': 'bytes'
    if in_bytes
    else f'{vocabulary.vocab_size:,} SentencePiece ids',
  }
  metric = settings.get(kinds.METRIC_SETTING)
  if metric in _TITLES:
    return _METRIC_CARD.format(
      **common, metric=metric, title=_TITLES[metric], settings=dict(settings)
    )
  return _CARD.format(
    **common,
    signature=signature(config, vocabulary, settings, weights, folder),
    default='' if direction == 'f' else f' (this model is used by {direction})',
    lower='.lower()' if settings.get('lowercase') else '',
    length=length,
    special='' if in_bytes else spelled,
  )


def signature(
  config: T5Config,
  vocabulary: Vocabulary,
  settings: Mapping[str, Any],
  weights: Weights,
  folder: Path,
) -> str:
  """The signature of `metrics/t5score.py`, with one reference, in float32."""
  direction = settings.get('direction', 'f')
  conditioning = {'source': 'source', 'ref_src': 'reference+source'}
  observed = {'nrefs': 1, 'refs': 'max'}
  values = {
    'metric': 'T5Score',
    'model': str(settings['name']),
    'checkpoint': checkpoint_hash(weights, folder),
    'network': network_hash(config),
    'vocabulary': vocabulary.fingerprint()[:12],
    'direction': 'f' if direction == 'source' else direction,
    'conditioning': conditioning.get(direction, 'reference'),
    **({} if direction == 'source' else observed),
    'length': int(settings.get('max_length') or _DEFAULT_LENGTH),
    'case': 'lc' if settings.get('lowercase') else 'mixed',
    'zhspaces': 'kept',
    'dtype': 'float32',
  }
  return format_signature(
    {
      key: re.sub(r'[|\s]', '_', value) if isinstance(value, str) else value
      for key, value in values.items()
    }
  )


def checkpoint_hash(weights: Weights, folder: Path) -> str:
  """`bundle.checkpoint_hash` of weights that are read a part at a time.

  Args:
    weights: The weights by name.
    folder: Needs room for the largest array, temporarily.
  """
  digest = hashlib.sha256()
  for name, array in sorted(weights.items()):
    digest.update(f'{name} {array.shape}\n'.encode())
    for values in _rows(array, folder):
      digest.update(np.ascontiguousarray(values, '<f4').data)
  return digest.hexdigest()[:12]


def _rows(array: LazyArray, folder: Path) -> Iterator[np.ndarray]:
  """Yields an array in order, some rows at a time."""
  rows, *rest = array.shape
  row = array.nbytes // max(1, rows)
  whole = array.block[1:] == array.shape[1:]
  if rows and not whole and array.block[0] * row > BLOCK_BYTES:
    # Stored by columns or in tiles: rows are read from a file that has them.
    with tempfile.TemporaryDirectory(prefix='.rows.', dir=folder) as spool:
      path = Path(spool) / 'rows.safetensors'
      safetensors_files.write_file(path, {'rows': array})
      yield from _rows(safetensors_files.open_file(path)['rows'], folder)
    return
  step = max(1, BLOCK_BYTES // max(1, row))
  if rows:
    # Whole blocks, so that none is read twice.
    step = -(-step // array.block[0]) * array.block[0]
  for start in range(0, rows, step):
    index = slice(start, min(start + step, rows))
    yield array.read((index, *(slice(0, size) for size in rest)))
