"""BERTScore beside bert-score, on the same MiniLM.

bert-score lets padding, with similarity 0, match a token whose similarities are
all negative, so that a few of its scores depend on the batch; here they do not.
"""

import texts
import work

TITLE = 'BERTScore, MiniLM (6 x 384), layer 6'
UNIT = 'pairs'
OURS = {'here': 'ours'}
PEERS = {'bert-score': 'peer'}
TOLERANCE = 1e-3
MEASURE = 'seconds'
GOALS = {'bert-score': 2}
SHORT = (
  'the peer encodes each text once as well, and its share of the matrix peak, '
  'below, says how much is left above it'
)


def prepare(folder, size):
  """Ten systems' outputs and the references they share."""
  from t5score_jax.checkpoints import kinds
  from t5score_jax.checkpoints.formats.huggingface import encoders

  model = kinds.folder('minilm')
  segments, systems = (2, 2) if size['quick'] else (40, 10)
  found = texts.wmt(segments, systems, size['data'])
  hypotheses, references = found.pairs()
  return {
    'items': len(hypotheses),
    'texts': found.origin,
    'hypotheses': hypotheses,
    'references': references,
    'model': str(model),
    'flops': work.of_texts(
      encoders.load_encoder(model), {*hypotheses, *references}
    ),
    **size,
  }


def ours(job):
  """The metric."""
  from t5score_jax.metrics import registry

  metric = registry.load_metric('bertscore', model=job['model'], layer=6)
  texts_of = job['hypotheses'], job['references']
  return lambda: work.with_padding(lambda: metric.score(*texts_of).values)


def peer(job):
  """The published package, its batches sorted by length as it does itself."""
  import bert_score

  scorer = bert_score.BERTScorer(
    model_type=job['model'],
    num_layers=6,
    device='cuda' if job['platform'] == 'gpu' else 'cpu',
  )
  texts_of = job['hypotheses'], job['references']
  return lambda: {'scores': scorer.score(*texts_of)[2].numpy()}
