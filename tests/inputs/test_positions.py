"""A SeqIO pipeline continues at its saved position, with the same batches."""

import itertools

import fake_training
import numpy as np
import pytest

pytest.importorskip('seqio')

from t5score_jax.inputs import datasets, positions, shares

BATCH = 8
LENGTHS = {'inputs': 32, 'targets': 32}


@pytest.fixture(scope='module', autouse=True)
def made_up():
  from t5score_jax.tasks import made_up

  return made_up


@pytest.fixture(scope='module')
def cache(made_up, tmp_path_factory):
  from t5score_jax.tasks import caching

  folder = tmp_path_factory.mktemp('cache')
  caching.cache_task('made_up', folder, shards=4)
  return folder


def _task(**options):
  return datasets.SeqioDataset(
    'made_up',
    LENGTHS,
    'encoder_decoder',
    BATCH,
    # Of 90 examples, which are 11.25 batches.
    split='validation',
    **options,
  )


class _Plain(datasets.SeqioDataset):
  """A pipeline that is opened sooner than a task's: 90 random examples."""

  def __init__(self, batch_size=BATCH, data=0, lazy=False, **options):
    super().__init__(
      'made_up', LENGTHS, 'encoder_decoder', batch_size, **options
    )
    self._data = np.random.default_rng(data).normal(size=(90, 8)).astype('f4')
    self._lazy = lazy

  def _dataset(self, num_epochs, share=shares.WHOLE):
    import tensorflow as tf

    examples = tf.data.Dataset.from_tensor_slices(self._data)
    if self._lazy:
      examples = tf.data.Dataset.from_generator(
        lambda: iter(self._data), output_signature=examples.element_spec
      )
    return (
      examples.repeat(num_epochs)
      .shuffle(20, seed=self._seed)
      .map(
        lambda x: {'x': x, 'y': x[:2], 'weights': tf.constant(1.0)},
        num_parallel_calls=tf.data.AUTOTUNE,
      )
    )


def _read(dataset, start, stop, position=None, share=shares.WHOLE):
  batches = dataset.batches(start, share, position)
  return list(itertools.islice(batches, stop - start))


def _write(folder, position, step):
  folder.mkdir(exist_ok=True)
  for name, content in position.at(step).items():
    (folder / name).write_bytes(content)


def _assert_same(batches, expected):
  assert len(batches) == len(expected)
  for ours, theirs in zip(batches, expected, strict=True):
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
      np.testing.assert_array_equal(ours[key], value)


@pytest.fixture
def skipped(monkeypatch):
  """Numbers of batches that datasets read and drop."""
  counts = []
  skip = datasets.skipping.skip

  def counted(batches, count):
    counts.append(count)
    return skip(batches, count)

  monkeypatch.setattr(datasets.skipping, 'skip', counted)
  return counts


@pytest.mark.parametrize(
  ('cached', 'keep_order', 'share'),
  [
    (False, True, shares.WHOLE),
    pytest.param(True, True, shares.WHOLE, marks=pytest.mark.slow),
    (True, False, shares.Share((1,), 2, 1, 2)),
  ],
)
def test_tasks_continue_with_the_same_batches(
  tmp_path, cache, skipped, cached, keep_order, share
):
  dataset = _task(
    seed=5,
    use_cached=cached,
    keep_order=keep_order,
    cache_dirs=[str(cache)] if cached else [],
  )
  # Beyond the end of the first epoch.
  position = positions.Positions([8])
  unbroken = _read(dataset, 0, 20, position, share)
  assert position.at(7) == {}
  _write(tmp_path / 'saved', position, 10)
  skipped.clear()
  again = positions.Positions([16], tmp_path / 'saved', pytest.fail)
  _assert_same(_read(dataset, 10, 20, again, share), unbroken[10:])
  assert skipped == [2]
  # Stopped before the next state: the restored one is saved once more.
  assert again.at(15) == position.at(15) != again.at(16)


def test_saving_changes_nothing_and_restores_at_any_step(tmp_path):
  dataset = _Plain(seed=5)
  expected = _read(dataset, 0, 30)
  position = positions.Positions([1])
  _assert_same(_read(dataset, 0, 30, position), expected)
  for step in (1, 11, 12, 29):
    _write(tmp_path / 'saved', position, step)
    again = positions.Positions([], tmp_path / 'saved', pytest.fail)
    _assert_same(_read(dataset, step, 30, again), expected[step:])


def test_a_position_of_something_else_is_not_used(tmp_path):
  position = positions.Positions([2])
  _read(_Plain(seed=5), 0, 2, position)
  _write(tmp_path / 'saved', position, 2)
  [path] = (tmp_path / 'saved').iterdir()
  whole = path.read_bytes()

  def resumed(dataset):
    notes = []
    again = positions.Positions([9], tmp_path / 'saved', notes.append)
    batches = _read(dataset, 2, 4, again)
    _assert_same(batches, _read(dataset, 2, 4))
    # What is not used is not saved again.
    assert again.at(3) == {}
    [note] = notes
    assert str(path) in note
    return note

  note = resumed(_Plain(seed=6, batch_size=4))
  assert 'seed 5 there, 6 here' in note
  assert 'batch size 8 there, 4 here' in note
  assert 'first batch' in resumed(_Plain(seed=5, data=1))
  _read(_Plain(seed=5), 0, 4, later := positions.Positions([4]))
  _write(tmp_path / 'saved', later, 4)
  assert 'of step 4, the checkpoint of step 2' in resumed(_Plain(seed=5))
  broken = bytearray(whole)
  broken[len(whole) // 2] ^= 255
  for content in (whole[: len(whole) // 2], bytes(broken), b''):
    path.write_bytes(content)
    resumed(_Plain(seed=5))


def test_a_generator_is_read_again():
  notes = []
  position = positions.Positions([2], None, notes.append)
  _read(_Plain(lazy=True), 0, 6, position)
  assert position.at(4) == {}
  [note] = notes
  assert 'cannot be saved' in note and 'cache_tasks.py' in note


def test_states_between_checkpoints(monkeypatch):
  position = positions.Positions([100], seconds=0.0)
  monkeypatch.setattr(positions, '_RARE', 0.0)
  _read(_Plain(), 0, 5, position)
  first, later = position.at(2), position.at(4)
  assert first.keys() == later.keys() == {'whole.zip'}
  assert first != later
  assert positions.Positions([100]).at(4) is None


@pytest.mark.parametrize(
  'damaged', [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_resumed_run_ends_as_one_without_a_stop(
  tmp_path, skipped, capsys, damaged
):
  def train(name, steps):
    fake_training.train(
      tmp_path / name, steps, dataset=dataset, quiet=False, keep_checkpoints=2
    )
    return tmp_path / name

  dataset = _Plain()
  unbroken = train('unbroken', 12)
  stopped = train('stopped', 7)
  files = sorted((stopped / 'run').glob('checkpoint_*/data_position/*.zip'))
  assert [path.parts[-3:] for path in files] == [
    (f'checkpoint_{step}', 'data_position', 'whole.zip') for step in (4, 7)
  ]
  if damaged:
    files[-1].write_bytes(b'')
    # Digests, which old checkpoints lack, would name it as damage.
    (files[-1].parents[1] / 'digests.json').unlink()
  capsys.readouterr()
  train('stopped', 12)
  # Step 7 is the end of the first part, at which no checkpoint was due.
  assert skipped[-1] == (7 if damaged else 3)
  printed = capsys.readouterr()
  assert ('is not used' in printed.out + printed.err) == damaged
  assert fake_training.losses(stopped) == fake_training.losses(unbroken)
