"""FrugalScore beside transformers, on the embedded cross-encoder."""

import texts
import work

TITLE = 'FrugalScore, frugalscore-tiny (2 x 128)'
UNIT = 'pairs'
OURS = {'here': 'ours'}
PEERS = {'transformers': 'peer'}
TOLERANCE = 1e-4
MEASURE = 'seconds'
GOALS = {'transformers': 2}
SHORT = (
  'both sides take the same tokenizer, and the network is so narrow (128) that '
  'softmax, norms and GELU take a good part of the time of its products'
)
_BATCH = 32


def prepare(folder, size):
  """Ten systems' outputs and their references, as pairs."""
  from t5score_jax.checkpoints import cross_encoders, kinds

  path = kinds.folder('frugalscore-tiny')
  segments, systems = (2, 2) if size['quick'] else (200, 10)
  found = texts.wmt(segments, systems, size['data'])
  pairs = list(zip(*found.pairs(), strict=True))
  model = cross_encoders.load(path)
  encoded = model.tokenizer.encode_pairs(sorted(set(pairs)), 192)
  return {
    'items': len(pairs),
    'texts': found.origin,
    'pairs': pairs,
    'model': str(path),
    'flops': work.encoder(
      model.config, [len(one.ids) for one in encoded], True
    ),
    **size,
  }


def ours(job):
  """The metric."""
  from t5score_jax.metrics import registry

  metric = registry.load_metric('frugalscore', model=job['model'])
  texts_of = tuple(zip(*job['pairs'], strict=True))
  return lambda: work.with_padding(lambda: metric.score(*texts_of).values)


def peer(job):
  """A loop over batches that are sorted by length."""
  import torch
  import transformers

  device = 'cuda' if job['platform'] == 'gpu' else 'cpu'
  tokenizer = transformers.AutoTokenizer.from_pretrained(job['model'])
  load = transformers.AutoModelForSequenceClassification.from_pretrained
  model = load(job['model'], torch_dtype=torch.float32).to(device).eval()
  pairs = job['pairs']

  @torch.inference_mode()
  def run():
    order = sorted(range(len(pairs)), key=lambda n: -sum(map(len, pairs[n])))
    scores = [0.0] * len(pairs)
    for start in range(0, len(pairs), _BATCH):
      rows = order[start : start + _BATCH]
      batch = tokenizer(
        [pairs[n][0] for n in rows],
        [pairs[n][1] for n in rows],
        truncation='longest_first',
        max_length=192,
        padding=True,
        return_tensors='pt',
      ).to(device)
      for n, score in zip(rows, model(**batch).logits[:, 0], strict=True):
        scores[n] = float(score)
    return {'scores': scores}

  return run
