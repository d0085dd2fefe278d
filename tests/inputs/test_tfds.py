"""TFDS builders from local files, and tasks cached offline."""

import contextlib
import json
import pathlib

import numpy as np
import pytest

tf = pytest.importorskip('tensorflow')
seqio = pytest.importorskip('seqio')

from t5score_jax.tasks import (  # noqa: E402
  caching,
  datasets,
  denoising,
  judged,
  mixtures,
  wmt_da,
)

SAMPLES = pathlib.Path(__file__).parents[1] / 'samples'
LENGTHS = {'inputs': 64, 'targets': 64}


@pytest.fixture(scope='module', autouse=True)
def _clean_registries():
  yield
  for registry in (seqio.TaskRegistry, seqio.MixtureRegistry):
    for name in list(registry.names()):
      if name.startswith('tfds_'):
        registry.remove(name)


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('tfds')
  datasets.build(SAMPLES / 'wmt_da', folder)
  return folder


@pytest.fixture(scope='module')
def tasks(data_dir):
  """Tasks of the files and of the dataset, by key and kind."""
  return (
    wmt_da.register(SAMPLES / 'wmt_da', name='tfds_files'),
    datasets.register(data_dir, name='tfds_built'),
  )


def _examples(name, **options):
  dataset = seqio.get_mixture_or_task(name).get_dataset(
    LENGTHS, split='train', shuffle=False, **options
  )
  # Ragged rows come as an array of arrays.
  found = [
    {
      name: [np.array(row).tolist() for row in value]
      for name, value in x.items()
    }
    for x in dataset.as_numpy_iterator()
  ]
  return sorted(found, key=json.dumps)


@contextlib.contextmanager
def _cache(folder):
  """A folder of caches, for SeqIO to look into."""
  before = seqio.get_global_cache_dirs()
  seqio.set_global_cache_dirs([str(folder)])
  yield
  seqio.set_global_cache_dirs(before)


def test_splits_are_years_language_pairs_and_sides(data_dir):
  builder = datasets.WmtDa(config='z', data_dir=str(data_dir))
  counts = {k: v.num_examples for k, v in builder.info.splits.items()}
  assert counts == {
    '2031_de_en_reference': 2,
    '2031_de_en_source': 2,
    '2031_en_fi_reference': 1,
    '2031_en_fi_source': 1,
    '2032_de_en_reference': 1,
    '2032_de_en_source': 1,
    '2033_de_en_reference': 1,
    '2033_de_en_source': 1,
  }
  (example,) = builder.as_dataset(split='2033_de_en_source')
  assert example['shared'].numpy().decode() == 'Der Zug kommt spät.'
  assert example['systems'].numpy().tolist() == [b'alpha', b'beta']


@pytest.mark.parametrize(
  ('year', 'kind'), [('2031', 'pairs'), ('2033', 'groups_source')]
)
def test_tasks_of_the_dataset_equal_those_of_the_files(tasks, year, kind):
  files, built = tasks
  assert files.keys() == built.keys()
  key = (year, 'de-en')
  source = seqio.TaskRegistry.get(built[key][kind]).source
  assert isinstance(source, seqio.TfdsDataSource)
  made = _examples(built[key][kind])
  assert made
  assert made == _examples(files[key][kind])


def test_mixtures_of_the_dataset(tasks):
  def names(prefix):
    return {
      name.removeprefix(prefix)
      for name in seqio.MixtureRegistry.names()
      if name.startswith(prefix)
    }

  assert names('tfds_built') == names('tfds_files')
  mixture = seqio.MixtureRegistry.get('tfds_built_2031_groups')
  rates = sorted(mixture.get_rate(task) for task in mixture.tasks)
  # 1 group and 2 groups.
  assert rates == pytest.approx([1 / (1 + 2**0.5), 2**0.5 / (1 + 2**0.5)])


def test_building_again_does_nothing_and_raw_is_another(data_dir):
  path = next(data_dir.rglob('*.tfrecord*'))
  before = path.stat().st_mtime_ns
  datasets.build(SAMPLES / 'wmt_da', data_dir)
  assert path.stat().st_mtime_ns == before
  raw = datasets.build(SAMPLES / 'wmt_da', data_dir, 'raw')
  (example,) = raw.as_dataset(split='2032_de_en_reference')
  assert example['ratings'].numpy().tolist() == [77.0, 52.0]


def test_what_cannot_be_built_or_registered(tmp_path, data_dir):
  with pytest.raises(ValueError, match="not 'Z'"):
    datasets.build(SAMPLES / 'wmt_da', tmp_path, 'Z')
  with pytest.raises(FileNotFoundError, match='no NAME.csv'):
    datasets.build(tmp_path, tmp_path)
  assert not list(tmp_path.iterdir())
  with pytest.raises(FileNotFoundError, match='run scripts/prepare/wmt_da.py'):
    datasets.register(tmp_path, name='tfds_none')
  with pytest.raises(ValueError, match='register the files'):
    datasets.register(
      data_dir, name='tfds_x', options=judged.Options(merge_identical=True)
    )


@pytest.mark.parametrize(
  'kind', [pytest.param('pairs', marks=pytest.mark.slow), 'groups']
)
def test_a_cached_task_gives_the_same_examples(tasks, kind, tmp_path):
  name = tasks[0]['2031', 'de-en'][kind]
  stats = caching.cache_task(name, tmp_path, shards=2)
  assert stats['train']['examples'] == 2
  folder = tmp_path / name
  assert sorted(path.name for path in folder.iterdir()) == [
    'COMPLETED',
    'info.train.json',
    'stats.train.json',
    'train.tfrecord-00000-of-00002',
    'train.tfrecord-00001-of-00002',
  ]
  with _cache(tmp_path):
    task = seqio.TaskRegistry.get(name)
    assert task.cache_dir == str(folder)
    assert task.get_cached_stats('train') == stats['train']
    assert mixtures.count_examples(task) == 2
    assert _examples(name, use_cached=True) == _examples(name)


def test_caches_are_whole_and_not_overwritten_unasked(
  tasks, tmp_path, monkeypatch
):
  name = tasks[0]['2032', 'de-en']['pairs']
  caching.cache_task(name, tmp_path)
  with pytest.raises(FileExistsError, match='use overwrite'):
    caching.cache_task(name, tmp_path)
  before = sorted(path.name for path in (tmp_path / name).iterdir())
  caching.cache_task(name, tmp_path, overwrite=True, shards=1)
  after = sorted(path.name for path in (tmp_path / name).iterdir())
  assert (len(before), len(after)) == (19, 4)

  def fail(*unused):
    raise OSError('no space left')

  monkeypatch.setattr(seqio, 'dict_to_tfexample', fail)
  with pytest.raises(OSError, match='no space left'):
    caching.cache_task(name, tmp_path, overwrite=True)
  assert [path.name for path in tmp_path.iterdir()] == [name]
  assert sorted(path.name for path in (tmp_path / name).iterdir()) == after


def test_what_cannot_be_cached(tasks, tmp_path):
  with pytest.raises(ValueError, match='must be at least 1'):
    caching.cache_task('x', tmp_path, shards=0)
  seqio.TaskRegistry.add(
    'tfds_uncached',
    source=seqio.FunctionDataSource(
      lambda split, shuffle_files, seed=None: tf.data.Dataset.range(1),
      splits=['train'],
    ),
    preprocessors=[],
    output_features={},
  )
  with pytest.raises(ValueError, match='cannot be cached'):
    caching.cache_task('tfds_uncached', tmp_path)


@pytest.mark.slow
def test_denoising_draws_anew_from_a_cache(tmp_path):
  (name,) = denoising.register(SAMPLES / 'denoising', name='tfds_denoising')
  caching.cache_task(name, tmp_path, shards=1)
  with _cache(tmp_path):
    draws = [_examples(name, use_cached=True, seed=seed) for seed in (0, 0, 1)]
  assert draws[0] == draws[1] != draws[2]
