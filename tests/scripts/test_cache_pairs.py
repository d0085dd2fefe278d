"""`scripts/prepare/cache_pairs.py`: annotated and judged pairs as arrays."""

import importlib.util
import json
import pathlib
import sys

import numpy as np
import pytest
import tiny_encoder

from t5score_jax import cli
from t5score_jax.data import pair_shards, records, subwords
from t5score_jax.data.records import Segment
from t5score_jax.inputs import datasets

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = 'the a cat dog sat ran on over mat hill small green bird'.split()


@pytest.fixture(scope='module')
def script():
  path = ROOT / 'scripts' / 'prepare' / 'cache_pairs.py'
  spec = importlib.util.spec_from_file_location('cache_pairs_script', path)
  module = importlib.util.module_from_spec(spec)
  # Dataclasses look their module up.
  sys.modules[spec.name] = module
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """An encoder's folder, records, pairs, and their annotations by chrF1."""
  folder = tmp_path_factory.mktemp('cache_pairs')
  tiny_encoder.make(folder / 'encoder')
  rng = np.random.default_rng(0)

  def text(low=1):
    return ' '.join(rng.choice(WORDS, size=rng.integers(low, 12)))

  segments = [
    Segment(
      text(),
      references=(reference,),
      segment=str(n),
      system=f's{k}',
      ratings={'z': float(rng.normal())} if k else {},
    )
    for n in range(40)
    for reference in [text(4)]
    for k in range(4)
  ]
  records.write_records(folder / 'in.jsonl', segments)
  for arguments in (
    ['pairs', '--input', 'in.jsonl', '--shard-size', '100', '-o', 'pairs'],
    ['annotate', 'pairs', '-m', 'chrf', '--option', 'beta=1', '-o', 'scored'],
    ['annotate', 'pairs', '-m', 'chrf', '-o', 'skewed'],
  ):
    paths = [
      str(folder / a) if (folder / a).exists() or before == '-o' else a
      for before, a in zip(['', *arguments], arguments, strict=False)
    ]
    assert not cli.main(paths)
  return folder


def _cache(script, made, out, *arguments):
  words = [str(made / a) if (made / a).exists() else a for a in arguments]
  return script.main(
    [*words, '--tokenizer', str(made / 'encoder'), '-o', str(out)]
  )


def _decode(row, pad=0):
  return [tiny_encoder.PIECES[i] for i in row if i != pad]


def _rows(folder):
  shards = pair_shards.complete(folder, 'annotations')
  return [
    row for n in range(len(shards)) for row in pair_shards.read_rows(folder, n)
  ]


def test_arrays_are_the_pairs(script, made, tmp_path, capsys):
  out = tmp_path / 'out'
  assert not _cache(script, made, out, 'scored', '--max-length', '16')
  rows = _rows(made / 'scored')
  tokenizer = subwords.load_tokenizer(made / 'encoder')
  wanted = tokenizer.encode_pairs(
    [(r['hypothesis'], r['reference']) for r in rows], 16
  )
  tokens, types = np.load(out / 'tokens.npy'), np.load(out / 'token_types.npy')
  assert tokens.shape == types.shape == (len(rows), 16)
  assert tokens.dtype == np.int16 and types.dtype == np.int8
  for row, encoded in enumerate(wanted):
    length = len(encoded.ids)
    assert tokens[row].tolist() == encoded.ids + [0] * (16 - length)
    assert types[row].tolist() == encoded.types + [0] * (16 - length)
  # The longer text is cut first.
  cut = [n for n, e in enumerate(wanted) if e.cut]
  assert cut and f'{len(cut)} of them cut' in capsys.readouterr().out
  for n in cut:
    halves = np.bincount(types[n][tokens[n] != 0], minlength=2)
    words = [len(rows[n][k].split()) for k in ('hypothesis', 'reference')]
    assert (halves[0] - 2 < words[0]) <= (words[0] >= 6)
    assert (halves[1] - 1 < words[1]) <= (words[1] >= 6)
  np.testing.assert_array_equal(
    np.load(out / 'ratings.npy'), np.float32([r['score'] for r in rows])
  )
  info = json.loads((out / 'info.json').read_text())
  assert info['examples'] == len(rows) and info['cut'] == len(cut)
  assert 'metric:chrF' in info['signature'] and 'beta:1' in info['signature']
  # What training reads.
  dataset = datasets.ArrayDataset(out, 8, shuffle=False)
  batch = next(dataset.batches())
  assert {k: (v.dtype, v.shape) for k, v in batch.items()} == {
    'tokens': (np.int32, (8, 16)),
    'token_types': (np.int32, (8, 16)),
    'ratings': (np.float32, (8,)),
  }


def test_parts_share_no_source_and_are_standardised(script, made, tmp_path):
  out = tmp_path / 'out'
  assert not _cache(
    script, made, out, 'scored', '--held-out-share', '0.25', '--standardise'
  )
  train, held = (
    {k: np.load(out / part / f'{k}.npy') for k in ('tokens', 'ratings')}
    for part in ('train', 'held_out')
  )
  rows = _rows(made / 'scored')
  assert len(train['ratings']) + len(held['ratings']) == len(rows)
  assert 0.1 < len(held['ratings']) / len(rows) < 0.4
  assert train['ratings'].mean() == pytest.approx(0, abs=1e-5)
  assert train['ratings'].std() == pytest.approx(1, abs=1e-5)
  info = json.loads((out / 'held_out' / 'info.json').read_text())
  restored = np.concatenate(
    [x['ratings'] * info['deviation'] + info['mean'] for x in (train, held)]
  )
  np.testing.assert_allclose(
    np.sort(restored), np.sort([r['score'] for r in rows]), atol=1e-3
  )
  # By source: the words of a pair lead back to its segment.
  of = {}
  tokenizer = subwords.load_tokenizer(made / 'encoder')
  for row, e in zip(
    rows,
    tokenizer.encode_pairs(
      [(r['hypothesis'], r['reference']) for r in rows], 128
    ),
    strict=True,
  ):
    of.setdefault(tuple(e.ids), set()).add(row['segment'])
  parts = [
    set().union(*(of[tuple(i for i in t if i)] for t in x['tokens'].tolist()))
    for x in (train, held)
  ]
  assert not parts[0] & parts[1]
  # Another seed holds out others.
  _cache(
    script, made, tmp_path / 'b', 'scored', '--held-out-share', '0.25',
    '--seed', '1',
  )  # fmt: skip
  other = np.load(tmp_path / 'b' / 'held_out' / 'tokens.npy')
  assert other.shape != held['tokens'].shape or (other != held['tokens']).any()


def test_pairs_the_other_way_round(script, made, tmp_path, capsys):
  out = tmp_path / 'out'
  assert not _cache(script, made, out, 'scored', '--swap')
  tokens, ratings = (np.load(out / f'{k}.npy') for k in ('tokens', 'ratings'))
  assert (ratings[::2] == ratings[1::2]).all()
  one, other = _decode(tokens[0]), _decode(tokens[1])
  place = one.index('[SEP]')
  assert other == ['[CLS]', *one[place + 1 : -1], *one[place:place + 1],
                   *one[1:place], '[SEP]']  # fmt: skip
  assert _cache(script, made, tmp_path / 'x', 'skewed', '--swap') == 1
  assert 'not symmetric' in capsys.readouterr().err
  assert not (tmp_path / 'x').exists()


def test_human_ratings(script, made, tmp_path, capsys):
  segments = records.read_records(made / 'in.jsonl', ratings=('z',))
  # A hypothesis that occurs twice has the mean of its ratings.
  rated = [s for s in segments if s.ratings]
  twice = Segment(
    rated[0].hypothesis, references=rated[0].references, ratings={'z': 9.0}
  )
  records.write_records(tmp_path / 'more.jsonl', [twice])
  out = tmp_path / 'out'
  assert not script.main(
    ['--input', str(made / 'in.jsonl'), 'z=z', '--input']
    + [str(tmp_path / 'more.jsonl'), '--rating', 'z', '-o', str(out)]
    + ['--tokenizer', str(made / 'encoder')]
  )
  assert '40 records left out' in capsys.readouterr().out
  wanted = {}
  for s in [*rated, twice]:
    pair = s.hypothesis, s.references[0]
    wanted.setdefault(pair, []).append(s.ratings['z'])
  np.testing.assert_allclose(
    np.load(out / 'ratings.npy'), [np.mean(v) for v in wanted.values()], 1e-6
  )
  assert len(wanted[twice.hypothesis, twice.references[0]]) >= 2
  info = json.loads((out / 'info.json').read_text())
  assert info['signature'] is None and info['rating'] == 'z'


def test_errors_say_what_to_do(script, made, tmp_path, capsys):
  out = tmp_path / 'out'
  for arguments, message in (
    ((), 'give either'),
    (('scored', '--input', 'in.jsonl'), 'give either'),
    (('scored', '--rating', 'x'), "are called 'score'"),
    (('scored', 'skewed'), 'unlike metrics'),
    (('pairs',), "holds 'pairs'"),
    (('--input', 'in.jsonl', '--rating', 'y'), "no column 'y'"),
    (('scored', '--held-out-share', '1e-9'), 'no example'),
  ):
    assert _cache(script, made, out, *arguments) == 1
    assert message in capsys.readouterr().err
    assert not out.exists() or not list(out.iterdir())
  with pytest.raises(SystemExit):
    _cache(script, made, out, 'scored', '--max-length', '2')
  (made / 'skewed' / 'part-00001.json').rename(tmp_path / 'kept')
  assert _cache(script, made, out, 'skewed') == 1
  assert 'part-00001.jsonl.gz' in capsys.readouterr().err
  (tmp_path / 'kept').rename(made / 'skewed' / 'part-00001.json')
  assert not _cache(script, made, out, 'skewed')
  assert _cache(script, made, out, 'skewed') == 1
  assert 'already' in capsys.readouterr().err
  assert not _cache(script, made, out, 'skewed', '--overwrite')


def _names(folder):
  return sorted(
    str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()
  )


def test_what_is_replaced_goes_whole(script, made, tmp_path, capsys):
  whole, out = tmp_path / 'whole', tmp_path / 'out'
  assert not _cache(script, made, whole, 'scored')
  flat = _names(whole)
  assert flat == [
    'info.json', 'ratings.npy', 'token_types.npy', 'tokens.npy'
  ]  # fmt: skip
  split = [f'{part}/{n}' for part in ('held_out', 'train') for n in flat]
  share = ('--held-out-share', '0.25')
  out.mkdir()  # empty, so free
  for more, names in (((), flat), (share, split), (share, split), ((), flat)):
    assert not _cache(script, made, out, 'scored', *more, '--overwrite')
    assert _names(out) == names
  # Nothing is changed before all is there, nor is what is not ours replaced.
  before = (out / 'tokens.npy').read_bytes()
  capsys.readouterr()
  command = made, out, 'scored', *share
  assert _cache(script, *command) == 1
  assert 'out: ' in capsys.readouterr().err
  (out / 'train').mkdir()
  (out / 'train' / 'notes.txt').write_text('mine')
  assert _cache(script, *command, '--overwrite') == 1
  err = capsys.readouterr().err
  assert 'train/notes.txt is none of' in err and err.count('\n') == 1
  (out / 'train' / 'notes.txt').unlink()

  def fail(self, pairs):
    raise OSError('no space left')

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(script.Tokens, '__call__', fail)
    assert _cache(script, *command, '--overwrite') == 1
  assert _names(out) == flat and (out / 'tokens.npy').read_bytes() == before
  assert sorted(p.name for p in tmp_path.iterdir()) == ['out', 'whole']


@pytest.mark.filterwarnings('error')
def test_ratings_beyond_single_precision(script, made, tmp_path, capsys):
  ratings = (1.0, 3.4e38, -1e300)
  segments = [
    Segment('a', references=(f'{n}',), system='s', ratings={'z': rating})
    for n, rating in enumerate(ratings)
  ]
  path = tmp_path / 'z.jsonl'
  records.write_records(path, segments)
  command = '--input', str(path), '--rating', 'z'
  assert _cache(script, made, tmp_path / 'out', *command) == 1
  err = capsys.readouterr().err
  assert f'{path}, record 3: the rating -1e+300' in err
  assert err.count('\n') == 1 and not (tmp_path / 'out').exists()
  records.write_records(path, segments[:2])
  assert not _cache(script, made, tmp_path / 'out', *command)
