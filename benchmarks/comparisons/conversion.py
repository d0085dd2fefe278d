"""Converting a T5 checkpoint beside copying its files, both to the disk.

A copy moves bytes. Conversion transposes every kernel, checks that weights are
finite, and reads them twice: one thread writes, another makes the digest that
is in signatures.
"""

import os
import pathlib
import shutil

TITLE = 'Conversion, bundle to Hugging Face'
UNIT = 'B'
OURS = {'here': 'ours', 'copy of the files': 'copy'}
PEERS = {}
TOLERANCE = 0.0
MEASURE = 'seconds'
GOALS = {'copy of the files': 1}
SHORT = (
  'of 2 s of a core per 0.9 GB 0.6 transpose, 0.5 make SHA-256, 0.45 read '
  'twice, 0.35 write and 0.1 check; next: a digest of each array, made as it '
  'is written, so that nothing is read twice (transposing in tiles saves 0.1)'
)


def prepare(folder, size):
  """A T5 of random weights, float32."""
  import jax

  from t5score_jax.checkpoints import bundle
  from t5score_jax.data import vocab
  from t5score_jax.nn import t5

  width, layers = (64, 1) if size['quick'] else (768, 8)
  vocabulary = vocab.ByteVocabulary()
  config = t5.T5Config(
    vocab_size=32128,
    emb_dim=width,
    num_heads=width // 64,
    mlp_dim=4 * width,
    num_encoder_layers=layers,
    num_decoder_layers=layers,
  )
  source = pathlib.Path(folder) / 'model'
  params = t5.init_params(config, jax.random.key(0))
  bundle.save_bundle(
    source, bundle.Bundle(config, params, vocabulary, {}), 'float32'
  )
  total = sum(file.stat().st_size for file in source.iterdir())
  return {'items': total, 'source': str(source), **size}


def ours(job):
  """What `t5score convert --to hf` does."""
  from t5score_jax.checkpoints import convert

  source = pathlib.Path(job['source'])
  output = source.with_name('converted')

  def run():
    shutil.rmtree(output, ignore_errors=True)
    convert.write(convert.open_source(source), output, 'hf')
    _to_disk(output)
    return {}

  return run


def copy(job):
  """The limit of the disk and the page cache."""
  source = pathlib.Path(job['source'])
  output = source.with_name('copied')

  def run():
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(source, output)
    _to_disk(output)
    return {}

  return run


def _to_disk(folder):
  for path in folder.iterdir():
    with path.open('rb') as file:
      os.fsync(file.fileno())
