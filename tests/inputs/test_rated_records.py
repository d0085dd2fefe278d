"""Pairs and groups of a file of rated records."""

import json

import numpy as np
import pytest

from t5score_jax import cli
from t5score_jax.data import vocab
from t5score_jax.errors import T5ScoreError
from t5score_jax.inputs import datasets, rated_records, shares

_RATINGS = {'a': 1.0, 'b': 2.0, 'c': 2.0}
_LENGTHS = {'inputs': 16, 'targets': 12, 'ratings': 4}


def _parts(tmp_path, segments=6, change=lambda row: row, **options):
  path = tmp_path / 'rated.jsonl'
  rows = [
    change(
      {
        'system': system,
        'segment': n,
        'source': f's{n}',
        'reference': [f'r{n}', 'other'],
        'hypothesis': f'h{n}{system}',
        'rating': rating,
      }
    )
    for n in range(segments)
    for system, rating in _RATINGS.items()
  ]
  path.write_text('\n'.join(map(json.dumps, rows)))
  return rated_records.read_parts(str(path), 'rating', **options)


def _dataset(parts, kind, **options):
  arguments = {'batch_size': 4, 'task_feature_lengths': _LENGTHS, **options}
  return rated_records.RecordsDataset(
    parts, 'rating', vocab.load_vocabulary('bytes'), kind=kind, **arguments
  )


def _text(ids):
  return bytes(i - 3 for i in ids if i > 2).decode()


def test_parts_share_no_segment_and_hold_everything(tmp_path):
  parts = _parts(tmp_path, validation_share=0.3)
  kept = {s.source for s in parts.validation}
  assert len(kept) == 2
  assert not kept & {s.source for s in parts.train}
  assert len(parts.train) + len(parts.validation) == 18


def test_pairs_are_all_pairs_in_both_directions(tmp_path):
  dataset = _dataset(_parts(tmp_path, validation_share=0.3), 'pair')
  found = set()
  for batch in dataset.epoch():
    assert batch['ratings'].tolist() == [[2.0, 1.0]] * len(batch['ratings'])
    np.testing.assert_array_equal(
      batch['decoder_input_tokens'][..., 1:],
      batch['decoder_target_tokens'][..., :-1],
    )
    for row in range(len(batch['ratings'])):
      sides = [
        tuple(_text(ids) for ids in batch[key][row])
        for key in ('encoder_input_tokens', 'decoder_target_tokens')
      ]
      found.add(tuple(sides))
  segments = {s.segment for s in _parts(tmp_path, validation_share=0.3).train}
  expected = set()
  for n in segments:
    for better in 'bc':
      pair, shared = (f'h{n}{better}', f'h{n}a'), (f'r{n}',) * 2
      expected |= {(shared, pair), (pair, shared)}
  assert found == expected and dataset.num_examples == len(expected) == 16


def test_groups_hold_each_hypothesis_with_its_rating(tmp_path):
  lengths = {**_LENGTHS, 'ratings': 2}
  dataset = _dataset(
    _parts(tmp_path), 'group', task_feature_lengths=lengths, shared='source'
  )
  found = {}
  for batch in dataset.epoch():
    for row, mask in enumerate(batch['group_mask']):
      for column in np.flatnonzero(mask):
        texts = batch['hypothesis_tokens'][row, column]
        shared = _text(batch['shared_tokens'][row])
        found[shared, _text(texts)] = float(batch['ratings'][row, column])
      assert not batch['hypothesis_tokens'][row][mask == 0].any()
  assert len(found) == 15  # five of six segments
  for (shared, text), rating in found.items():
    assert shared == f's{text[1]}' and rating == _RATINGS[text[2]]


def test_batches_go_on_and_are_shared_like_those_of_arrays(tmp_path):
  dataset = _dataset(_parts(tmp_path), 'pair')
  stream = dataset.batches()
  batches = [next(stream) for _ in range(7)]
  resumed = next(dataset.batches(6))
  own = next(dataset.batches(6, shares.Share((1,), 2, 1, 2)))
  for key, value in batches[6].items():
    np.testing.assert_array_equal(resumed[key], value)
    np.testing.assert_array_equal(own[key], value[2:])
  arrays = tmp_path / 'arrays'
  arrays.mkdir()
  for key, value in next(
    _dataset(_parts(tmp_path), 'pair', batch_size=20).epoch()
  ).items():
    np.save(arrays / f'{key}.npy', value)
  same = datasets.ArrayDataset(arrays, 4).batches()
  for batch in batches:
    other = next(same)
    for key, value in batch.items():
      np.testing.assert_array_equal(other[key], value)


def test_long_texts_are_cut_and_counted(tmp_path):
  dataset = _dataset(
    _parts(tmp_path), 'group', task_feature_lengths={**_LENGTHS, 'targets': 3}
  )
  batch = next(dataset.epoch())
  assert batch['hypothesis_tokens'].shape == (4, 4, 3)
  assert (batch['hypothesis_tokens'][..., -1] == 1).sum() == 12  # </s>
  assert any('15 of 20 texts are cut' in note for note in dataset.notes)


@pytest.mark.parametrize(
  'change, options, words',
  [
    (lambda row: {**row, 'segment': row['hypothesis']}, {}, 't5score fit'),
    (lambda row: {**row, 'rating': 1}, {}, 'without a pair'),
    (lambda row: row, {'min_gap': 1.0}, 'more than 1'),
    (lambda row: {**row, 'system': 'Human'}, {}, 'by humans'),
    (lambda row: {**row, 'reference': []}, {}, 'without the shared text'),
  ],
)
def test_without_a_pair_the_error_says_why(tmp_path, change, options, words):
  parts = _parts(tmp_path, change=change)
  with pytest.raises(T5ScoreError, match=words):
    _dataset(parts, 'pair', **options)


@pytest.mark.parametrize(
  'flags, batch',
  [
    (['--gin_file=recipes/t5score_tiny_records.gin'], '(4, 4, '),
    (
      [
        '--gin_file=models/t5score_tiny.gin',
        '--gin_file=runs/train_pairs.gin',
        '--gin_file=runs/records.gin',
        "--gin.VOCABULARY='t5score-tiny'",
        '--gin.BATCH_SIZE=6',
      ],
      '(6, 2, ',
    ),
  ],
)
def test_gin_files_build_a_run_that_is_not_started(
  tmp_path, capsys, flags, batch
):
  _parts(tmp_path)
  code = cli.main(
    [
      'train',
      '--dry_run',
      *flags,
      f"--gin.RECORDS='{tmp_path / 'rated.jsonl'}'",
      "--gin.RATING='rating'",
      f"--gin.MODEL_DIR='{tmp_path / 'run'}'",
      '--gin.TRAIN_STEPS=2',
    ]
  )
  printed = capsys.readouterr().out
  assert code == 0 and batch in printed
  assert '15 records to train on, 3 for validation' in printed
  assert not (tmp_path / 'run').exists()
