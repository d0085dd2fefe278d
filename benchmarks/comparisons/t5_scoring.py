"""T5Score beside a transformers loop: mT5-small's shape, both directions.

The weights are random: scores mean nothing, and cost what real ones cost. The
tokenizer is the embedded one, whose ids are the first of the vocabulary.
"""

import pathlib

import texts

TITLE = 'T5Score, mT5-small shape (250,112 ids), f'
UNIT = 'hypotheses'
OURS = {'here': 'ours'}
PEERS = {'transformers': 'peer'}
TOLERANCE = 1e-4
MEASURE = 'seconds'
GOALS = {'transformers': 5}
SHORT = (
  "the peer's share of the matrix peak, below, says how much is left above it; "
  'attention, softmax and norms run beside the products. Next: bfloat16 where '
  'the processor multiplies it (AMX), and larger batches of short texts'
)
_BATCH = 16
_LENGTH = 256


def prepare(folder, size):
  """A model in both layouts; ten systems' outputs and shared references."""
  from t5score_jax.checkpoints import bundle, layouts, loading, source, weights
  from t5score_jax.checkpoints.formats.huggingface import checkpoint
  from t5score_jax.nn import t5

  segments, systems = (2, 2) if size['quick'] else (4, 10)
  found = texts.wmt(segments, systems, size['data'])
  hypotheses, references = found.pairs()
  small = {'vocab_size': 5000, 'emb_dim': 32, 'num_heads': 2, 'mlp_dim': 64}
  config = t5.T5Config(
    **(small if size['quick'] else {'vocab_size': 250112}), dropout_rate=0.0
  )
  draw = _arrays(layouts.parameter_shapes(config))
  vocabulary = loading.load_model('t5score-tiny').vocabulary
  model = source.Source(
    config,
    {name: weights.LazyArray.of(array) for name, array in draw.items()},
    vocabulary,
    {'name': 'random', 'max_length': _LENGTH},
  )
  folder = pathlib.Path(folder)
  for name, write in (('here', bundle.write), ('hf', checkpoint.write)):
    (folder / name).mkdir()
    write(model, folder / name, dtype='float32', max_shard_bytes=10 * 2**30)
  return {
    'items': len(hypotheses),
    'texts': found.origin,
    'hypotheses': hypotheses,
    'references': references,
    'here': str(folder / 'here'),
    'hf': str(folder / 'hf'),
    'flops': flops(config, vocabulary, hypotheses, references),
    **size,
  }


def _arrays(shapes):
  """Random weights, scaled so that activations and logits stay near 1."""
  import numpy as np

  draw = np.random.default_rng(0)
  arrays = {}
  for name, shape in shapes.items():
    x = draw.standard_normal(shape, np.float32)
    if name.endswith('scale'):
      x = np.ones(shape, np.float32)
    elif name.endswith('query/kernel'):
      x *= (shape[0] * 64) ** -0.5
    elif name.endswith('kernel'):
      x *= shape[0] ** -0.5
    arrays[name] = x
  return arrays


def flops(config, vocabulary, hypotheses, references):
  """Each text encoded once, each pair decoded once, padding apart."""
  encoded = {
    text: len(vocabulary.encode(text)) + 1
    for text in {*hypotheses, *references}
  }
  pairs = set(zip(hypotheses, references, strict=True))
  d, joined = config.emb_dim, config.num_heads * config.head_dim
  mlp = (len(config.mlp_activations) + 1) * d * config.mlp_dim
  own = config.num_encoder_layers * (4 * d * joined + mlp)
  cross = config.num_decoder_layers * 2 * d * joined
  each = config.num_decoder_layers * (6 * d * joined + mlp)
  each += d * config.vocab_size
  total = sum(encoded.values()) * (own + cross)
  for pair in pairs:
    total += each * sum(encoded[text] for text in pair)
  return 2 * total


def ours(job):
  """The metric."""
  from t5score_jax.metrics import registry

  metric = registry.load_metric('t5score', model=job['here'], direction='f')
  texts_of = job['hypotheses'], job['references']
  return lambda: {'scores': metric.score(*texts_of).values}


def peer(job):
  """A loop over batches that are sorted by length."""
  import torch
  import transformers

  device = 'cuda' if job['platform'] == 'gpu' else 'cpu'
  tokenizer = transformers.AutoTokenizer.from_pretrained(job['hf'])
  load = transformers.AutoModelForSeq2SeqLM.from_pretrained
  model = load(job['hf'], torch_dtype=torch.float32).to(device).eval()
  hypotheses, references = job['hypotheses'], job['references']
  pairs = list(
    zip(hypotheses + references, references + hypotheses, strict=True)
  )

  def encode(batch):
    return tokenizer(
      batch,
      truncation=True,
      max_length=_LENGTH,
      padding=True,
      return_tensors='pt',
    ).to(device)

  @torch.inference_mode()
  def run():
    order = sorted(range(len(pairs)), key=lambda n: -sum(map(len, pairs[n])))
    scores = [0.0] * len(pairs)
    for start in range(0, len(pairs), _BATCH):
      rows = order[start : start + _BATCH]
      inputs = encode([pairs[n][0] for n in rows])
      targets = encode([pairs[n][1] for n in rows])
      labels = targets.input_ids
      logits = model(**inputs, labels=labels).logits
      each = torch.log_softmax(logits, -1)
      each = torch.gather(each, -1, labels[..., None])[..., 0]
      mask = targets.attention_mask
      means = (each * mask).sum(1) / mask.sum(1)
      for n, score in zip(rows, means, strict=True):
        scores[n] = float(score)
    half = len(hypotheses)
    return {'scores': [(scores[n] + scores[n + half]) / 2 for n in range(half)]}

  return run
