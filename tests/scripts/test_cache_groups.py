import importlib.util
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from t5score_jax.data import vocab
from t5score_jax.inputs import bucketing, datasets

_PATH = (
  Path(__file__).resolve().parents[2]
  / 'scripts'
  / 'prepare'
  / 'cache_groups.py'
)


@pytest.fixture(scope='module')
def script():
  spec = importlib.util.spec_from_file_location('cache_groups_script', _PATH)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _records(path, rows):
  with open(path, 'w', encoding='utf-8') as stream:
    for segment, reference, hypothesis, z in rows:
      row = {'segment': segment, 'hypothesis': hypothesis}
      row |= {'reference': reference} if reference else {}
      row |= {} if z is None else {'z': z}
      stream.write(json.dumps(row) + '\n')
  return path


@pytest.fixture
def records(tmp_path):
  return _records(
    tmp_path / 'groups.jsonl',
    [
      ('1', 'abc', 'abd', 0.5),
      ('2', 'long reference', 'short', 1.0),
      ('1', 'abc', 'xyz', -0.5),
      ('3', 'single', 'one only', 0.25),
      ('1', 'abc', 'unrated', None),
      ('4', None, 'no reference', 0.0),
      ('2', 'long reference', 'hyp', -1.0),
    ],
  )


def _run(script, records, output, *more):
  arguments = [str(records), '--vocabulary=bytes', '-o', str(output), *more]
  return script.main(arguments)


def _decode(ids):
  return bytes(int(i) - 3 for i in ids if i > 2).decode()


def _texts(folder):
  """{reference: {hypothesis: rating}} of a folder, by what the mask shows."""
  [batch] = datasets.ArrayDataset(folder, 1000, shuffle=False).epoch()
  return {
    _decode(shared): {
      _decode(hypothesis): float(rating)
      for hypothesis, rating, there in zip(
        hypotheses, ratings, mask, strict=True
      )
      if there
    }
    for shared, hypotheses, ratings, mask in zip(
      batch['shared_tokens'],
      batch['hypothesis_tokens'],
      batch['ratings'],
      batch['group_mask'],
      strict=True,
    )
  }


def test_buckets_by_longest_text_and_single_hypotheses(
  script, records, tmp_path, capsys
):
  out = tmp_path / 'arrays'
  assert not _run(script, records, out, '--lengths=16,10', '--size=3')
  assert sorted(f.name for f in out.iterdir()) == [
    'train_1_10',
    'train_3_10',
    'train_3_16',
  ]
  # Without a rating every text counts, and none has a value.
  assert _texts(out / 'train_3_10') == {
    'abc': {'abd': 0.0, 'xyz': 0.0, 'unrated': 0.0}
  }
  assert _texts(out / 'train_1_10') == {'single': {'one only': 0.0}}
  assert list(_texts(out / 'train_3_16')) == ['long reference']
  ids = np.load(out / 'train_3_16' / 'shared_tokens.npy')
  assert ids.shape == (1, 16) and ids.dtype == np.uint16
  # </s> ends every text.
  assert list(ids[0]) == [*(b + 3 for b in b'long reference'), 1, 0]
  assert capsys.readouterr().out.endswith(
    '0 texts cut to 16; 1 without a reference\n'
  )


def test_rated_groups(script, records, tmp_path):
  out = tmp_path / 'arrays'
  assert not _run(script, records, out, '--rating=z', '--lengths=16')
  [folder] = out.iterdir()
  assert folder.name == 'train_8_16'
  assert _texts(folder) == {
    'abc': {'abd': 0.5, 'xyz': -0.5},
    'long reference': {'short': 1.0, 'hyp': -1.0},
  }
  info = json.loads((folder / 'info.json').read_text())
  assert info['rating'] == 'z'
  assert info['vocabulary'] == vocab.ByteVocabulary().fingerprint()


def test_large_groups_are_cut_evenly(script, tmp_path):
  rows = [('1', 'ref', f'h{i}', float(i)) for i in range(9)]
  records = _records(tmp_path / 'g.jsonl', rows)
  out = tmp_path / 'arrays'
  options = '--rating=z', '--lengths=8', '--size=4'
  assert not _run(script, records, out, *options)
  ratings = np.load(out / 'train_4_8' / 'ratings.npy')
  mask = np.load(out / 'train_4_8' / 'group_mask.npy')
  assert list(mask.sum(axis=1)) == [3, 3, 3]
  assert sorted(ratings[mask > 0]) == list(range(9))
  # The seed says who meets whom.
  assert not _run(script, records, tmp_path / 'b', *options, '--seed=1')
  other = np.load(tmp_path / 'b' / 'train_4_8' / 'ratings.npy')
  assert (ratings != other).any()


def test_long_texts_are_cut_and_counted(script, tmp_path, capsys):
  rows = [('1', 'r' * 30, 'h' * 5, 1.0), ('1', 'r' * 30, 'h' * 31, 0.0)]
  out = tmp_path / 'arrays'
  records = _records(tmp_path / 'g.jsonl', rows)
  assert not _run(script, records, out, '--lengths=10', '--size=2')
  assert _texts(out / 'train_2_10') == {'r' * 9: {'h' * 5: 0.0, 'h' * 9: 0.0}}
  assert '2 texts cut to 10' in capsys.readouterr().out


def test_bucketing_reads_the_folders(script, records, tmp_path):
  out = tmp_path / 'arrays'
  assert not _run(script, records, out, '--lengths=10,16', '--size=3')
  dataset = bucketing.from_folder(out, 96)
  for batch in itertools.islice(dataset.batches(0), 10):
    assert set(batch) == {
      'shared_tokens',
      'hypothesis_tokens',
      'ratings',
      'group_mask',
    }
    assert batch['hypothesis_tokens'].size <= 96


def test_errors(script, records, tmp_path, capsys):
  assert _run(script, tmp_path / 'no.jsonl', tmp_path / 'a') == 1
  assert 'no.jsonl' in capsys.readouterr().err
  assert _run(script, records, tmp_path / 'a', '--rating=da') == 1
  error = capsys.readouterr().err
  assert error.startswith('error: ') and error.count('\n') == 1
  assert not (tmp_path / 'a').exists()
  with pytest.raises(SystemExit) as stopped:
    _run(script, records, tmp_path / 'a', '--lengths=ten')
  assert stopped.value.code == 2


def test_replaces_arrays_and_nothing_else(script, records, tmp_path, capsys):
  out = tmp_path / 'out'
  assert not _run(script, records, out, '--lengths=16')
  made = sorted(out.iterdir())
  assert not _run(script, records, out, '--lengths=16')
  assert sorted(out.iterdir()) == made
  for file in made[0].iterdir():
    file.unlink()
  precious = made[0] / 'thesis.txt'
  precious.write_text('years of work')
  capsys.readouterr()
  assert _run(script, records, out, '--lengths=16') == 1
  error = capsys.readouterr().err
  assert error.startswith(f'error: {made[0]}: ') and error.count('\n') == 1
  assert precious.read_text() == 'years of work'
