"""Batches of whole documents: the same loss, every text encoded once."""

import dataclasses
import itertools
import shutil

import jax
import numpy as np
import pytest
import tiny_encoder

from t5score_jax.inputs import datasets, documents, shares, texts
from t5score_jax.models import regression
from t5score_jax.nn import heads
from t5score_jax.training import regression_evaluators

TEXTS, WIDTH = 30, 12
# Instances of a document: [hypotheses, references, people].
DOCUMENTS = ((2, 2, 2), (3, 1, 1), (1, 2, 3), (2, 3, 1), (1, 1, 1))


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  folder = tmp_path_factory.mktemp('documents')
  rng = np.random.default_rng(0)
  (folder / 'texts').mkdir()
  (folder / 'rows').mkdir()
  lengths = rng.integers(3, WIDTH + 1, TEXTS)
  tokens = rng.integers(5, tiny_encoder.CONFIG.vocab_size, (TEXTS, WIDTH))
  tokens[np.arange(WIDTH) >= lengths[:, None]] = tiny_encoder.CONFIG.pad_id
  np.save(folder / 'texts' / 'tokens.npy', tokens)
  np.save(folder / 'texts' / 'lengths.npy', lengths)
  rows, free = [], iter(range(TEXTS))
  for hypotheses, references, people in DOCUMENTS:
    source = next(free)
    several = [next(free) for _ in range(references)]
    for hypothesis in [next(free) for _ in range(hypotheses)]:
      rows += [(hypothesis, source, r) for r in several for _ in range(people)]
  rows = rng.permutation(np.array(rows))
  for column, role in enumerate(texts.ROLES):
    np.save(folder / 'rows' / f'{role}.npy', rows[:, column])
  ratings = rng.normal(size=(len(rows), 2)).astype(np.float32)
  ratings[3, 1] = np.nan
  np.save(folder / 'rows' / 'ratings.npy', ratings)
  return folder / 'rows', folder / 'texts'


@pytest.fixture(scope='module')
def model():
  config = heads.RegressorConfig(
    dataclasses.replace(tiny_encoder.CONFIG, num_layers=1, dropout_rate=0.0),
    outputs=('a', 'b'),
    hidden_sizes=(8,),
    dropout_rate=0.0,
  )
  return regression.RegressorModel(config)


@pytest.fixture(scope='module')
def run(model):
  """Loss, weight and gradient of a batch; one program a shape."""
  params = jax.jit(model.init)(jax.random.key(0))

  @jax.jit
  def program(batch):
    (loss, aux), grad = jax.value_and_grad(model.loss_fn, has_aux=True)(
      params, batch, None
    )
    return loss, aux['weight'], grad

  return program


@pytest.fixture(scope='module')
def by_instance(folders, run):
  (whole,) = texts.TextsDataset(*folders, 64, shuffle=False).epoch()
  return run(whole)


def _full_width(batch):
  """Widths vary between batches, and each would be a program of its own."""
  return {
    name: np.pad(array, ((0, 0), (0, WIDTH - array.shape[1])))
    if name.endswith('_tokens')
    else array
    for name, array in batch.items()
  }


@pytest.mark.parametrize(
  'count',
  [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 5, 7))],
)
def test_loss_and_gradients_are_those_of_single_instances(
  folders, run, by_instance, count
):
  dataset = documents.DocumentsDataset(*folders, count, shuffle=False)
  batches = list(dataset.epoch())
  assert {b['ratings'].shape for b in batches} == {(8 * count, 2)}
  # Sums over all documents, as over all instances.
  sums = jax.tree.map(
    lambda *x: sum(x), *[run(_full_width(batch)) for batch in batches]
  )
  rated = 2 * sum(a * b * c for a, b, c in DOCUMENTS) - 1
  assert float(by_instance[1]) == rated
  for ours, theirs in zip(
    jax.tree.leaves(sums), jax.tree.leaves(by_instance), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_each_text_stands_in_a_batch_once(folders):
  dataset = documents.DocumentsDataset(*folders, shuffle=False)
  for batch in dataset.epoch():
    assert batch['source_tokens'].shape[0] == 1
    assert batch['hypothesis_tokens'].shape[0] == 3
    assert batch['reference_tokens'].shape[0] == 3
    used = np.unique(batch['hypothesis_rows'])
    tokens = batch['hypothesis_tokens'][used]
    assert len(np.unique(tokens, axis=0)) == len(used)


def test_texts_are_as_wide_as_the_batch_needs(folders):
  rows, table = folders
  tokens = np.load(table / 'tokens.npy')
  widths = set()
  for batch in documents.DocumentsDataset(rows, table, shuffle=False).epoch():
    for role in texts.ROLES:
      found = batch[f'{role}_tokens']
      assert found.shape[1] in (WIDTH, 0.75 * WIDTH)
      for row in found:
        whole = np.pad(row, (0, WIDTH - len(row)))
        assert (tokens == whole).all(axis=1).any()
      widths.add(found.shape[1])
  assert len(widths) > 1


def test_systems_come_with_their_instances(folders, tmp_path):
  rows = shutil.copytree(folders[0], tmp_path / 'rows')
  systems = np.load(rows / 'hypothesis.npy') + 5
  np.save(rows / 'system.npy', systems)
  table = np.load(folders[1] / 'tokens.npy')
  for batch in documents.DocumentsDataset(rows, folders[1], 2, seed=1).epoch():
    used = ~np.isnan(batch['ratings'][:, 0])
    tokens = batch['hypothesis_tokens'][batch['hypothesis_rows']]
    expected = table[batch['system'][used] - 5, : tokens.shape[1]]
    np.testing.assert_array_equal(tokens[used], expected)


@pytest.mark.slow
def test_correlation_is_that_of_single_instances(folders, model):
  params = jax.jit(model.init)(jax.random.key(1))
  numbers = [
    regression_evaluators.PearsonEvaluator(model, dataset).evaluate(params)
    for dataset in (
      documents.DocumentsDataset(*folders, 2, shuffle=False),
      texts.TextsDataset(*folders, 16, shuffle=False),
    )
  ]
  for name, value in numbers[0].items():
    assert value == pytest.approx(numbers[1][name], abs=1e-5)


def test_processes_have_the_texts_of_their_documents(folders):
  dataset = documents.DocumentsDataset(*folders, 4, seed=1)
  whole = list(itertools.islice(dataset.batches(), 3))
  parts = [
    list(
      itertools.islice(dataset.batches(share=shares.Share((n,), 2, n, 2)), 3)
    )
    for n in range(2)
  ]
  for batch, first, second in zip(whole, *parts, strict=True):
    for key, value in batch.items():
      joined = np.concatenate([first[key], second[key]])
      if key.endswith('_rows'):
        # Places without an instance name the first text of their process.
        rated = ~np.isnan(batch['ratings'][:, 0])
        np.testing.assert_array_equal(joined[rated], value[rated])
      else:
        np.testing.assert_array_equal(joined, value)


def test_order_is_that_of_the_seed_and_goes_on(folders):
  dataset = documents.DocumentsDataset(*folders, 2, seed=3)
  batches = list(itertools.islice(dataset.batches(), 10))
  for a, b in zip(
    batches[4:], itertools.islice(dataset.batches(4), 6), strict=True
  ):
    np.testing.assert_array_equal(a['source_tokens'], b['source_tokens'])
  # Ten steps of two are four epochs of five documents.
  sources = [b['source_tokens'] for b in batches]
  seen = np.concatenate(
    [np.pad(s, ((0, 0), (0, WIDTH - s.shape[1]))) for s in sources]
  )
  for epoch in seen.reshape(4, 5, -1):
    assert len(np.unique(epoch, axis=0)) == 5


def test_steps(folders):
  assert documents.steps(folders[0], 1, 2) == 10
  assert documents.steps(folders[0], 2, 1) == 3
  assert documents.steps(folders[0], 2, 0) == 0
  for name, bad in (('epochs', -1), ('documents', 0)):
    with pytest.raises(datasets.DatasetError, match=name):
      documents.steps(folders[0], **{'documents': 1, name: bad})
  with pytest.raises(datasets.DatasetError, match='no such array'):
    documents.steps(folders[1], 1)
  with pytest.raises(datasets.DatasetError, match='documents'):
    documents.DocumentsDataset(*folders, 0)
