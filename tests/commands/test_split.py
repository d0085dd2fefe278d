"""`t5score split`: what it reports, writes and refuses."""

import json

import pytest

from t5score_jax import cli
from t5score_jax.data import records


def _rows():
  return [
    {
      'system': system,
      'document': f'd{n % 5}',
      'segment': n,
      'reference': f'text {n}',
      'hypothesis': f'text {n} of {system}',
      'rating': 10 * n + len(system),
    }
    for n in range(20)
    for system in ('a', 'bb')
  ]


def test_penalties_without_an_error_are_zero(tmp_path, capsys):
  rows = [{**row, 'rating': -0.0 if n else -5} for n, row in enumerate(_rows())]
  path = _write(tmp_path / 'in.jsonl', rows)
  assert cli.main(['split', '--input', path, '--ratings', 'rating']) == 0
  assert 'rating: 40 rated, -5 to 0, mean' in capsys.readouterr().out


def _write(path, rows):
  path.write_text('\n'.join(map(json.dumps, rows)) + '\n')
  return str(path)


def test_files_hold_all_records_once_and_share_no_document(tmp_path, capsys):
  path = _write(tmp_path / 'in.jsonl', _rows())
  out = tmp_path / 'out'
  command = ['split', '--input', path, '--ratings', 'rating', '-o', str(out)]
  assert cli.main([*command, '--share', '0.4']) == 0
  parts = [
    records.read_records(out / f'{name}.jsonl', ratings=('rating',))
    for name in ('train', 'test')
  ]
  whole = records.read_records(path, ratings=('rating',))
  key = lambda s: (int(s.segment), s.system)  # noqa: E731
  assert sorted([*parts[0], *parts[1]], key=key) == sorted(whole, key=key)
  documents = [{s.document for s in part} for part in parts]
  assert not documents[0] & documents[1]
  assert [len(part) for part in documents] == [3, 2]
  printed = capsys.readouterr().out
  assert '40 records, 2 systems, 5 documents, 20 segments' in printed
  assert 'rating: 40 rated, 1 to 192' in printed
  assert '20 pairs' in printed and '20 groups' in printed
  assert '1 reference each' in printed and '(t5score fit)' in printed
  assert cli.main(command) == 2  # the folder is there


def test_columns_of_a_csv_file_get_their_proper_names(tmp_path, capsys):
  path = tmp_path / 'in.csv'
  path.write_text(
    'src,mt,adequacy\n"one, two",eins,1\nthree,"dr""ei",2.5\nfour,vier,\n'
  )
  assert not cli.main(
    ['split', '--input', str(path), 'source=src', 'hypothesis=mt']
    + ['--ratings', 'adequacy', '--share', '0.3', '-o', str(tmp_path / 'out')]
  )
  rows = [
    json.loads(line)
    for name in ('train', 'test')
    for line in open(tmp_path / 'out' / f'{name}.jsonl')
  ]
  assert sorted(rows, key=lambda row: row['hypothesis']) == [
    {'source': 'three', 'hypothesis': 'dr"ei', 'adequacy': 2.5},
    {'source': 'one, two', 'hypothesis': 'eins', 'adequacy': 1.0},
    {'source': 'four', 'hypothesis': 'vier'},
  ]
  assert 't5score fit' in capsys.readouterr().out


def test_what_looks_wrong_is_counted(tmp_path, capsys):
  rows = _rows()
  rows[0]['hypothesis'] = ' '
  rows[1]['hypothesis'] = rows[1]['reference']
  rows[2]['system'] = 'Human-A'
  rows.append(rows[-1])
  path = _write(tmp_path / 'in.jsonl', rows)
  assert cli.main(['split', '--input', path, '--ratings', 'rating']) == 0
  notes = [
    line
    for line in capsys.readouterr().out.splitlines()
    if line.startswith('note: ')
  ]
  assert [note.split()[1] for note in notes] == ['1', '1', '1', '1']
  assert list(tmp_path.iterdir()) == [tmp_path / 'in.jsonl']


@pytest.mark.parametrize(
  'change, words',
  [
    ({'rating': 'good'}, ['line 3', 'rating']),
    ({'hypothesis': None}, ['line 3', 'hypothesis']),
  ],
)
def test_a_bad_record_is_one_line_and_writes_nothing(
  tmp_path, capsys, change, words
):
  rows = _rows()
  rows[2].update(change)
  path = _write(tmp_path / 'in.jsonl', rows)
  out = tmp_path / 'out'
  command = ['split', '--input', path, '--ratings', 'rating', '-o', str(out)]
  assert cli.main(command) == 1
  message = capsys.readouterr().err
  assert all(word in message for word in words) and message.count('\n') == 1
  assert not out.exists()
