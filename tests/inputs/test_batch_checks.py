"""Batches that do not suit the model are named before they are trained on."""

import dataclasses
import itertools
import os

import fake_training
import jax
import numpy as np
import pytest

from t5score_jax.errors import InputError
from t5score_jax.inputs import batch_checks, bucketing, datasets
from t5score_jax.models import t5score
from t5score_jax.nn import t5
from t5score_jax.training import loop

CONFIG = t5.T5Config(
  vocab_size=32,
  emb_dim=8,
  num_heads=2,
  head_dim=4,
  mlp_dim=8,
  num_encoder_layers=1,
  num_decoder_layers=1,
)
MODELS = {
  'text': t5score.GenerativeModel(CONFIG),
  'pair': t5score.PairModel(CONFIG),
  'group': t5score.GroupModel(CONFIG),
}
SHAPES = {
  'text': {'encoder_input_tokens': (4,), 'decoder_target_tokens': (3,)},
  'pair': {
    'encoder_input_tokens': (2, 4),
    'decoder_target_tokens': (2, 3),
    'ratings': (2,),
  },
  'group': {
    'shared_tokens': (4,),
    'hypothesis_tokens': (3, 4),
    'ratings': (3,),
    'group_mask': (3,),
  },
}


def _batch(kind, size=2):
  batch = {}
  for key, shape in SHAPES[kind].items():
    dtype = np.int32 if key.endswith('tokens') else np.float32
    batch[key] = np.ones((size, *shape), dtype)
  if kind != 'text':
    batch['ratings'][:, 1:] = 0
  return batch


@pytest.mark.parametrize(
  ('arrays', 'model'), [*itertools.product(SHAPES, MODELS)]
)
def test_arrays_of_another_kind(arrays, model):
  model = MODELS[model]
  params = jax.eval_shape(model.init, jax.random.key(0))
  batch = _batch(arrays)
  if model is MODELS[arrays]:
    batch_checks.check_fit(batch, model, params)
    return
  with pytest.raises(InputError, match=type(model).__name__) as caught:
    batch_checks.check_fit(batch, model, params)
  assert '\n' not in str(caught.value)


def _save(folder, batch):
  folder.mkdir()
  for key, value in batch.items():
    np.save(folder / f'{key}.npy', value)
  return datasets.ArrayDataset(folder, 2)


@pytest.mark.parametrize('wrong', [32, -1, 250_000])
def test_ids_beyond_the_vocabulary_are_named(tmp_path, wrong):
  batch = _batch('group', 6)
  good = _save(tmp_path / 'good', batch)
  batch['hypothesis_tokens'][4, 1, 2] = wrong
  bad = _save(tmp_path / 'bad', batch)
  batch_checks.check_arrays(good, MODELS['group'])
  named = rf'bad/hypothesis_tokens.npy: example 4 .* {wrong}, .*0 to 31'
  for dataset in (
    bad,
    datasets.MixtureDataset([good, bad], [1, 1], 2),
    bucketing.BucketedDataset([good, bad]),
  ):
    with pytest.raises(InputError, match=named):
      batch_checks.check_arrays(dataset, MODELS['group'])
  # Batches of other datasets are checked as they come.
  del batch['ratings'], batch['group_mask']
  with pytest.raises(InputError, match=f'step 8, hypothesis_tokens.* {wrong}'):
    list(batch_checks.checked(iter([batch]), MODELS['text'], 7, print))


def test_ids_are_integers(tmp_path):
  batch = {k: v.astype(np.float32) for k, v in _batch('text', 6).items()}
  dataset = _save(tmp_path / 'arrays', batch)
  with pytest.raises(InputError, match='tokens.npy.*integers.*float32'):
    batch_checks.check_arrays(dataset, MODELS['text'])


def test_known_ranges_are_not_read(tmp_path, monkeypatch):
  batch = {k: v.astype(np.uint8) for k, v in _batch('text', 6).items()}
  dataset = _save(tmp_path / 'arrays', batch)
  read = []
  check = batch_checks._check_ids
  monkeypatch.setattr(
    batch_checks, '_check_ids', lambda *a: (read.append(a), check(*a))
  )

  def count(vocab_size):
    read.clear()
    config = dataclasses.replace(CONFIG, vocab_size=vocab_size)
    batch_checks.check_arrays(dataset, t5score.GenerativeModel(config))
    return len(read)

  # The ids of a type of 8 bits fit into 256, whatever they are.
  assert count(256) == 0 and count(255) == 2
  info = tmp_path / 'arrays' / datasets.INFO_FILE
  info.write_text('{"ids": {"encoder_input_tokens": [0, 31]}}')
  assert count(32) == 1 and count(31) == 2
  # What was replaced since is read.
  file = tmp_path / 'arrays' / 'encoder_input_tokens.npy'
  os.utime(file, (info.stat().st_mtime + 1,) * 2)
  assert count(32) == 2
  info.write_text('[]')
  assert count(32) == 2


def test_a_run_ends_before_it_begins(tmp_path):
  """Neither wrong ids nor arrays of another kind leave a MODEL_DIR."""
  batch = _batch('text', 4)
  batch['encoder_input_tokens'][3, 0] = 32
  ids = _save(tmp_path / 'ids', batch)
  pairs = _save(tmp_path / 'pairs', _batch('pair', 4))
  for dataset, named in ((ids, 'example 3'), (pairs, 'GenerativeModel')):
    with pytest.raises(InputError, match=named):
      loop.train(
        model=MODELS['text'],
        model_dir=tmp_path / 'run',
        dataset=dataset,
        optimizer=fake_training.adamw(),
        train_steps=1,
        quiet=True,
      )
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('kind', ['pair', 'group'])
def test_batches_without_a_pair(kind):
  ties = _batch(kind)
  ties['ratings'][:] = 1
  notes = []

  def run(batches):
    checked = batch_checks.checked(
      iter(batches), MODELS[kind], 10, notes.append
    )
    return len(list(checked))

  assert run([_batch(kind)] * 3) == 3 and not notes
  assert run([_batch(kind), ties, _batch(kind), ties]) == 4
  assert len(notes) == 1 and 'step 12 ' in notes[0]
  # One pair now and then is enough.
  assert run(([ties] * 99 + [_batch(kind)]) * 2) == 200
  with pytest.raises(InputError, match='step 110 '):
    run([ties] * 100)


def test_padding_makes_no_pair():
  batch = _batch('group')
  batch['group_mask'][:, 1:] = 0
  notes = []
  list(batch_checks.checked(iter([batch]), MODELS['group'], 0, notes.append))
  assert len(notes) == 1
  # Models that learn from texts alone need none.
  list(batch_checks.checked(iter([batch]), MODELS['text'], 0, notes.append))
  assert len(notes) == 1
