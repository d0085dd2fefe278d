"""COMET's regressor beside unbabel-comet, its cache of embeddings on.

The weights are random, of XLM-R's kind; COMET loads them from its own layout.
"""

import pathlib

import texts
import work

TITLE = 'COMET regressor, XLM-R shape (6 x 384)'
UNIT = 'segments'
OURS = {'here': 'ours'}
PEERS = {'unbabel-comet': 'peer'}
TOLERANCE = 1e-4
MEASURE = 'seconds'
GOALS = {'unbabel-comet': 5}
SHORT = (
  'with its cache on the peer encodes each text once as well, and its share of '
  'the matrix peak, below, says how much is left above it'
)


def prepare(folder, size):
  """A checkpoint in COMET's layout, and ten systems of shared sources."""
  segments, systems = (2, 2) if size['quick'] else (40, 10)
  return made(folder, size, texts.wmt(segments, systems, size['data']))


def made(folder, size, found):
  """A checkpoint with random weights, and a job of these texts."""
  import jax
  import sentencepiece

  from t5score_jax.checkpoints import regressors
  from t5score_jax.checkpoints.formats.comet import checkpoint
  from t5score_jax.checkpoints.formats.huggingface import encoders
  from t5score_jax.data import subwords
  from t5score_jax.nn import bert, heads

  hypotheses, references = found.pairs()
  corpus = texts.wmt(300, 1).references + found.sources + found.references
  folder = pathlib.Path(folder)
  (folder / 'pieces').mkdir(exist_ok=True)
  (folder / 'corpus').write_text('\n'.join(corpus), 'utf-8')
  sentencepiece.SentencePieceTrainer.train(
    input=str(folder / 'corpus'),
    model_prefix=str(folder / 'pieces' / 'sentencepiece.bpe'),
    vocab_size=1000,
    hard_vocab_limit=False,
    minloglevel=2,
  )
  tokenizer = subwords.load_tokenizer(folder / 'pieces')
  wide = {'emb_dim': 64, 'num_heads': 4, 'mlp_dim': 128, 'num_layers': 2}
  shape = bert.BertConfig(
    vocab_size=tokenizer.vocab_size,
    max_positions=514,
    position_offset=2,
    pad_id=1,
    type_vocab_size=1,
    norm_epsilon=1e-5,
    **(wide if size['quick'] else {}),
  )
  config = heads.RegressorConfig(shape, hidden_sizes=(1024, 512))
  key = jax.random.key(0)
  encoder = bert.init_params(shape, key)
  params = heads.init_params(config, key, encoder)
  model = regressors.Regressor(config, params, tokenizer)
  checkpoint.save_comet(model, folder / 'comet')
  bundle = encoders.EncoderBundle(shape, encoder, tokenizer, 'random')
  return {
    'items': len(hypotheses),
    'texts': found.origin,
    'sources': found.sources,
    'references': found.references,
    'outputs': found.outputs,
    'model': str(folder / 'comet'),
    'flops': work.of_texts(bundle, {*hypotheses, *references, *found.sources}),
    **size,
  }


def ours(job):
  """The metric, all systems in one call."""
  from t5score_jax.metrics import registry

  metric = registry.load_metric('comes', model=job['model'])
  systems = len(job['outputs'])
  hypotheses = [text for system in job['outputs'] for text in system]
  shared = job['references'] * systems, job['sources'] * systems
  return lambda: work.with_padding(
    lambda: metric.score(hypotheses, *shared).values
  )


def peer(job):
  """`predict` of one system after the other, as comet-score does."""
  import logging

  from comet import load_from_checkpoint
  from comet.models.base import CometModel

  logging.disable(logging.WARNING)
  model = load_from_checkpoint(f'{job["model"]}/checkpoints/model.ckpt')
  gpus = int(job['platform'] == 'gpu')

  def run():
    # An embedding that an earlier run has left is not this run's work.
    CometModel.retrieve_sentence_embedding.cache_clear()
    model.set_embedding_cache()
    scores = []
    for system in job['outputs']:
      columns = zip(job['sources'], system, job['references'], strict=True)
      samples = [{'src': s, 'mt': m, 'ref': r} for s, m, r in columns]
      found = model.predict(
        samples, batch_size=16, gpus=gpus, progress_bar=False, num_workers=0
      )
      scores += found.scores
    return {'scores': scores}

  return run
