"""Numbers in files: what `float` accepts is not always one."""

import math

import pytest

from t5score_jax.data import numbers, records
from t5score_jax.data.files import RecordError

WRONG = [
  '1_0',
  ' 1',
  '1 ',
  '\u0661',
  '\uff11',
  'nan',
  'inf',
  '1e999',
  '0x1',
  '',
]


@pytest.mark.parametrize(
  ('text', 'value'),
  [('-1.5', -1.5), ('+2', 2), ('.5', 0.5), ('3.', 3), ('2e-3', 0.002)],
)
def test_numbers(text, value):
  assert numbers.parse(text) == value


@pytest.mark.parametrize(
  'value', [*WRONG, True, None, [1], math.nan, math.inf, 10**400]
)
def test_other_values_are_no_numbers(value):
  assert numbers.parse(value) is None
  with pytest.raises(RecordError, match='line 3') as caught:
    numbers.read(value, path='a.tsv', line=3, field='z')
  assert caught.value.field == 'z'


@pytest.mark.parametrize('cell', WRONG[:-1])
def test_readers_of_records_refuse_them(tmp_path, cell):
  path = tmp_path / 'a.tsv'
  path.write_text(f'hypothesis\tz\na\t1\nb\t{cell}\n', 'utf-8')
  with pytest.raises(RecordError) as caught:
    records.read_records(path, ratings=['z'])
  assert (caught.value.line, caught.value.field) == (3, 'z')
