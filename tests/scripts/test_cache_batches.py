import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('seqio')

from t5score_jax.inputs import datasets  # noqa: E402
from t5score_jax.tasks import judged, made_up, parallel  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / 'tests' / 'samples'
_PATH = ROOT / 'scripts' / 'prepare' / 'cache_batches.py'


@pytest.fixture(scope='module')
def script():
  spec = importlib.util.spec_from_file_location('cache_batches_script', _PATH)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope='module', autouse=True)
def tasks():
  # Names of their own: other tests register the same samples.
  parallel.register(SAMPLES / 'parallel', name='cb_parallel')
  judged.register(SAMPLES / 'judged', name='cb_judged')


def _arguments(task, output, *more):
  # The samples are registered by the fixture; any module may be named.
  return [task, '-o', str(output), '--import', 't5score_jax.tasks', *more]


def _decode(ids):
  return bytes(int(i) - 3 for i in ids if i > 2).decode()


def test_texts_of_a_task(script, tmp_path, capsys):
  folder = tmp_path / 'deep' / 'arrays'
  lengths = '--lengths=inputs=40,targets=48'
  assert not script.main(_arguments('cb_parallel_toy', folder, lengths))
  assert '3 examples' in capsys.readouterr().out
  # What follows from the targets is not stored, and bytes fit into 16 bits.
  assert sorted(p.name for p in folder.iterdir()) == [
    'decoder_target_tokens.npy',
    'encoder_input_tokens.npy',
    'info.json',
  ]
  stored = np.load(folder / 'encoder_input_tokens.npy')
  assert stored.shape == (3, 40) and stored.itemsize <= 2
  info = json.loads((folder / datasets.INFO_FILE).read_text())
  assert info[datasets.IDS]['encoder_input_tokens'] == [0, stored.max()]

  dataset = datasets.ArrayDataset(folder, 3, shuffle=False)
  batch = next(dataset.epoch())
  texts = {
    (_decode(x), _decode(y))
    for x, y in zip(
      batch['encoder_input_tokens'],
      batch['decoder_target_tokens'],
      strict=True,
    )
  }
  assert ('He said "no" twice.', 'Twice he said "no".') in texts
  assert ('Der Regen hört auf.', 'The rain is stopping.') in texts
  assert len(texts) == 3
  info = dataset.info
  assert info['task'] == 'cb_parallel_toy' and info['examples'] == 3
  assert info['lengths'] == {'inputs': 40, 'targets': 48}
  assert info['vocab_sizes'] == {'inputs': 384, 'targets': 384}


@pytest.mark.parametrize(
  ('task', 'converter', 'more', 'shuffle'),
  [
    # Repeated examples fill a shuffle buffer of 20,000: once is enough.
    ('made_up', 'encoder_decoder', {}, True),
    pytest.param('made_up_pairs', 'pair', {}, False, marks=pytest.mark.slow),
    pytest.param(
      'made_up_groups',
      'group',
      {'ratings': 3},
      False,
      marks=pytest.mark.slow,
    ),
  ],
)
def test_batches_equal_those_of_seqio(
  script, tmp_path, task, converter, more, shuffle
):
  lengths = {'inputs': 48, 'targets': 48, **more}
  text = ','.join(f'{name}={n}' for name, n in lengths.items())
  options = ['--features', converter, '--lengths', text, '--seed', '7']
  options.append('--split=validation')
  if not shuffle:
    options.append('--no-shuffle')
  arguments = _arguments(task, tmp_path / 'a', '--examples', '40', *options)
  assert not script.main(arguments)
  arrays = datasets.ArrayDataset(tmp_path / 'a', 20, shuffle=False)
  seqio = datasets.SeqioDataset(
    task,
    lengths,
    converter,
    20,
    split='validation',
    seed=7,
    shuffle=shuffle,
  )
  pairs = list(zip(arrays.epoch(), seqio.batches(), strict=False))
  assert len(pairs) == 2
  for ours, theirs in pairs:
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
      np.testing.assert_array_equal(ours[key], value, err_msg=key)
      if not key.endswith('weights'):
        assert ours[key].dtype == value.dtype, key


def test_epochs_and_splits(script, tmp_path):
  held_out = len(made_up.meanings('validation'))
  options = ['--lengths=inputs=48,targets=48', '--split=validation']
  arguments = _arguments('made_up', tmp_path / 'a', *options, '--epochs=2')
  assert not script.main(arguments)
  stored = np.load(tmp_path / 'a' / 'encoder_input_tokens.npy')
  assert len(stored) == 2 * held_out
  _, counts = np.unique(stored, axis=0, return_counts=True)
  assert (counts == 2).all()


@pytest.mark.slow
def test_groups_are_dealt_anew_in_every_epoch(script, tmp_path):
  options = ['--features=group', '--lengths=inputs=48,targets=48,ratings=2']
  options += ['--split=validation', '--epochs=2', '--no-shuffle']
  arguments = _arguments('made_up_groups', tmp_path / 'a', *options)
  assert not script.main(arguments)
  ratings = np.load(tmp_path / 'a' / 'ratings.npy')
  assert ratings.dtype == np.float32  # 0.2 is not exact in 16 bits
  half = len(ratings) // 2
  assert half == 2 * len(made_up.meanings('validation'))
  assert (ratings[:half] != ratings[half:]).any()


@pytest.mark.slow
def test_ratings_that_are_given(script, tmp_path):
  options = ['--features=group', '--lengths=inputs=64,targets=64,ratings=4']
  task = 'cb_judged_2034_de_en_groups'
  assert not script.main(_arguments(task, tmp_path / 'a', *options))
  batch = next(datasets.ArrayDataset(tmp_path / 'a', 4).epoch())
  # Segment 2 has one rated hypothesis and makes no group.
  np.testing.assert_allclose(batch['ratings'], [[0.6, -0.4, 0.1, 0]])
  np.testing.assert_array_equal(batch['group_mask'], [[1, 1, 1, 0]])
  assert batch['group_mask'].dtype == np.float32
  assert _decode(batch['shared_tokens'][0]) == 'The stove is warm.'


def test_smallest_types_keep_all_values(script, tmp_path):
  generator = np.random.default_rng(0)
  columns = {
    'small': generator.integers(0, 256, (2500, 2)).astype(np.int32),
    'signed': generator.integers(-5, 100, (2500,)).astype(np.int32),
    'mixed': np.r_[np.full(1250, -1), np.full(1250, 200)].astype(np.int32),
    'words': generator.integers(0, 2**16, (2500, 3)).astype(np.int32),
    'large': generator.integers(0, 250_112, (2500, 3)).astype(np.int32),
    'mask': generator.integers(0, 2, (2500, 4)).astype(np.float32),
    'ratings': generator.normal(size=(2500, 4)).astype(np.float32),
  }
  batches = [
    {key: value[start : start + 700] for key, value in columns.items()}
    for start in range(0, 2500, 700)
  ]
  info = script.write(tmp_path / 'a', batches, {})
  assert info['arrays'] == {
    'small': 'uint8',
    'signed': 'int8',
    'mixed': 'int16',
    'words': 'uint16',
    'large': 'int32',
    'mask': 'float16',
    'ratings': 'float32',
  }
  [batch] = datasets.ArrayDataset(tmp_path / 'a', 2500).epoch()
  for key, value in columns.items():
    np.testing.assert_array_equal(batch[key], value)
    assert batch[key].dtype == value.dtype


def test_weights_of_their_own_are_kept(script, tmp_path):
  targets = np.array([[5, 6, 1, 0]] * 4)
  weights = np.array([[0, 1, 1, 0]] * 4)
  batch = {'decoder_target_tokens': targets, 'decoder_loss_weights': weights}
  script.write(tmp_path / 'a', [batch], {})
  [found] = datasets.ArrayDataset(tmp_path / 'a', 4).epoch()
  np.testing.assert_array_equal(found['decoder_loss_weights'], weights)
  np.testing.assert_array_equal(
    found['decoder_input_tokens'], [[0, 5, 6, 1]] * 4
  )


def test_nothing_half_written_stays(script, tmp_path):
  folder = tmp_path / 'a'
  old = {'x': np.zeros((2, 3), np.int32)}
  script.write(folder, [old], {'first': True})

  def broken():
    yield old
    raise OSError('the disk is gone')

  with pytest.raises(OSError, match='disk'):
    script.write(folder, broken(), {}, overwrite=True)
  assert json.loads((folder / 'info.json').read_text())['first']
  assert os.listdir(tmp_path) == ['a']
  script.write(folder, [old], {'second': True}, overwrite=True)
  assert json.loads((folder / 'info.json').read_text())['second']
  assert os.listdir(tmp_path) == ['a']


@pytest.mark.parametrize(
  ('task', 'more', 'words'),
  [
    ('cb_parallel_nosuch', [], 'no SeqIO task or mixture'),
    ('cb_parallel_toy', ['--split=test'], "no split 'test'"),
    ('cb_parallel', [], 'how many --examples'),
    ('cb_parallel_toy', ['--import', 'no.such.module'], "No module named 'no'"),
  ],
)
def test_errors_are_one_line(script, tmp_path, capsys, task, more, words):
  assert script.main(_arguments(task, tmp_path / 'a', *more)) == 1
  error = capsys.readouterr().err
  assert error.startswith('error: ') and words in error
  assert error.count('\n') == 1
  assert not any(tmp_path.iterdir())


def test_folder_is_not_replaced_unasked(script, tmp_path, capsys):
  (tmp_path / 'a').mkdir()
  assert script.main(_arguments('cb_parallel_toy', tmp_path / 'a')) == 1
  assert '--overwrite' in capsys.readouterr().err


@pytest.mark.parametrize(
  'bad', ['--lengths=inputs', '--lengths=inputs=0', '--epochs=0']
)
def test_wrong_usage(script, tmp_path, bad):
  with pytest.raises(SystemExit) as stopped:
    script.main(_arguments('cb_parallel_toy', tmp_path / 'a', bad))
  assert stopped.value.code == 2


@pytest.mark.slow
def test_from_a_shell(tmp_path):
  done = subprocess.run(
    [
      *(sys.executable, _PATH, 'parallel_toy', '-o', tmp_path / 'a'),
      *('--import', 't5score_jax.tasks.parallel'),
    ],
    env={**os.environ, 'T5SCORE_DATA': str(SAMPLES)},
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  assert datasets.ArrayDataset(tmp_path / 'a', 1).num_examples == 3
