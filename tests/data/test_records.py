"""Records: what is read, what is refused and where the error points."""

import gzip
import io
import os
import pickle
import sys
import types

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from t5score_jax.data import records, tables
from t5score_jax.data.files import RecordError
from t5score_jax.data.records import Segment


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  return tmp_path


def put(name, content):
  data = content if isinstance(content, bytes) else content.encode('utf-8')
  with open(name, 'wb') as file:
    file.write(gzip.compress(data) if name.endswith('.gz') else data)
  return name


def set_stdin(monkeypatch, data):
  stream = io.TextIOWrapper(io.BytesIO(data), encoding='ascii')
  monkeypatch.setattr(sys, 'stdin', stream)


def error_of(function, *args, **kwargs):
  with pytest.raises(RecordError) as caught:
    function(*args, **kwargs)
  return caught.value


# Segments.


def test_segment_is_hashable_picklable_and_strict():
  segment = Segment('h', references=['a', 'b'], ratings={'da': 1.0})
  assert segment.references == ('a', 'b')
  assert pickle.loads(pickle.dumps(segment)) == segment
  assert len({segment, Segment('h', references=('a', 'b'))}) == 2
  with pytest.raises(TypeError, match='one string'):
    Segment('h', references='abc')


# Parallel text.


def test_parallel_text_with_systems_and_references(folder):
  put('a', 'a1\na2\n')
  put('b.gz', 'b1\n\n')
  put('r1', 'r1\nr2\n')
  put('r2', 's1\ns2')
  put('src', 'q1\nq2\n')
  segments = records.read_parallel(
    {'A': 'a', 'B': 'b.gz'}, ['r1', 'r2'], source='src'
  )
  assert segments == [
    Segment('a1', 'q1', ('r1', 's1'), system='A', segment='1'),
    Segment('a2', 'q2', ('r2', 's2'), system='A', segment='2'),
    Segment('b1', 'q1', ('r1', 's1'), system='B', segment='1'),
    Segment('', 'q2', ('r2', 's2'), system='B', segment='2'),
  ]


def test_parallel_text_without_references(folder):
  put('a', 'a1\n')
  assert records.read_parallel({'A': 'a'}) == [
    Segment('a1', system='A', segment='1')
  ]
  put('empty', '')
  assert records.read_parallel({'A': 'empty'}, ['empty']) == []


def test_the_same_file_as_hypothesis_and_reference(folder):
  put('a', 'a1\n')
  assert records.read_parallel({'A': 'a'}, ['a'])[0].references == ('a1',)


@pytest.mark.parametrize('short', ['a', 'b', 'r', 'src'])
def test_unequal_line_counts(folder, short):
  for name in ('a', 'b', 'r', 'src'):
    put(name, 'x\ny\n' if name == short else 'x\ny\nz\n')
  error = error_of(
    records.read_parallel, {'A': 'a', 'B': 'b'}, ['r'], source='src'
  )
  assert (error.path, error.line) == (short, 3)
  assert 'after 2 lines' in str(error)
  assert 'has 3' in str(error)


def test_parallel_text_refuses_nonsense(folder):
  with pytest.raises(ValueError, match='no hypotheses'):
    records.read_parallel({})
  with pytest.raises(ValueError, match='standard input'):
    records.read_parallel({'A': '-'}, ['-'])


# TSV and JSONL.

ROWS = [
  Segment('h1', 's1', ('r1', 'q1'), 'A', 'd', '1', 'zh-en', {'da': -1.5}),
  Segment('', None, ('r2',), 'A', None, '2', 'zh-en', {}),
  Segment('"h\u2028', None, (), None, None, None, None, {'da': 0.25, 'x': 3}),
]


@pytest.mark.parametrize(
  'name', ['t.tsv', 't.jsonl', 't.tsv.gz', 't.jsonl.gz', 't.JSONL']
)
def test_records_read_back(folder, name):
  records.write_records(name, ROWS)
  assert records.read_records(name, ratings=['da', 'x']) == ROWS


@pytest.mark.parametrize('format', ['tsv', 'jsonl'])
def test_records_go_through_pipes(folder, monkeypatch, capfdbinary, format):
  records.write_records('-', ROWS, format)
  data = capfdbinary.readouterr().out
  set_stdin(monkeypatch, data)
  # The format is seen from the first line.
  assert records.read_records('-', ratings=['da', 'x']) == ROWS


def test_tsv_as_written(folder):
  records.write_records('t.tsv', ROWS)
  assert open('t.tsv', encoding='utf-8').read() == (
    'source\thypothesis\treference\treference_2\tsystem\tdocument\tsegment'
    '\tlanguage_pair\tda\tx\n'
    's1\th1\tr1\tq1\tA\td\t1\tzh-en\t-1.5\t\n'
    '\t\tr2\t\tA\t\t2\tzh-en\t\t\n'
    '\t"h\u2028\t\t\t\t\t\t\t0.25\t3.0\n'
  )


def test_jsonl_as_written(folder):
  records.write_records('t.jsonl', ROWS[:1], fields=('segment', 'system'))
  assert (
    open('t.jsonl').read() == '{"segment": "1", "system": "A", "da": -1.5}\n'
  )


TEXT = strategies.text(
  strategies.characters(exclude_characters='\0', exclude_categories=['Cs']),
  max_size=8,
)
MAYBE = strategies.none() | TEXT
SEGMENT = strategies.builds(
  Segment,
  TEXT,
  MAYBE,
  strategies.lists(TEXT, max_size=3).map(tuple),
  MAYBE,
  MAYBE,
  MAYBE,
  MAYBE,
  strategies.dictionaries(
    strategies.sampled_from(['da', 'mqm']),
    strategies.floats(allow_nan=False, allow_infinity=False),
  ),
)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(strategies.lists(SEGMENT, min_size=1, max_size=4))
def test_every_segment_reads_back_from_jsonl(tmp_path_factory, segments):
  path = tmp_path_factory.getbasetemp() / 'any.jsonl'
  ratings = {name for segment in segments for name in segment.ratings}
  records.write_records(path, segments)
  assert records.read_records(path, ratings=sorted(ratings)) == segments


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(strategies.lists(SEGMENT, min_size=1, max_size=4))
def test_tsv_reads_back_or_says_that_it_cannot(tmp_path_factory, segments):
  path = tmp_path_factory.getbasetemp() / 'any.tsv'
  ratings = {name for segment in segments for name in segment.ratings}
  texts = [
    (name, text)
    for s in segments
    for name, text in [
      ('hypothesis', s.hypothesis),
      *(('reference', reference) for reference in s.references),
      *((name, getattr(s, name)) for name in ('source', 'system')),
      *((name, getattr(s, name)) for name in ('document', 'segment')),
      ('language_pair', s.language_pair),
    ]
    if text is not None
  ]
  fits = not any(
    set(text) & set('\t\r\n') or (not text and name != 'hypothesis')
    for name, text in texts
  )
  if fits:
    records.write_records(path, segments)
    assert records.read_records(path, ratings=sorted(ratings)) == segments
  else:
    assert 'JSONL' in str(error_of(records.write_records, path, segments))


def test_columns_are_renamed(folder):
  put('t.tsv', 'src\tref_A\tref_B\thyp\tsys\tda_z\ns\ta\tb\th\tX\t-1e-1\n')
  assert records.read_records(
    't.tsv',
    columns={
      'source': 'src',
      'reference': 'ref_A',
      'reference_2': 'ref_B',
      'hypothesis': 'hyp',
      'system': 'sys',
      'da': 'da_z',
    },
    ratings=['da'],
  ) == [Segment('h', 's', ('a', 'b'), 'X', ratings={'da': -0.1})]


def test_a_column_serves_one_field(folder):
  put('t.tsv', 'hypothesis\treference\treference_2\nh\ta\tb\n')
  columns = {'hypothesis': 'reference_2'}
  assert records.read_records('t.tsv', columns=columns) == [
    Segment('b', references=('a',))
  ]
  columns = {'reference': 'reference_2', 'reference_2': 'reference'}
  assert records.read_records('t.tsv', columns=columns) == [
    Segment('h', references=('b', 'a'))
  ]


def test_a_renamed_field_is_never_read_from_its_own_name(folder):
  put(
    't.jsonl',
    '{"hypothesis": "h", "reference": "old", "new": "a"}\n'
    '{"hypothesis": "h", "reference": "old"}\n',
  )
  segments = records.read_records('t.jsonl', columns={'reference': 'new'})
  assert [segment.references for segment in segments] == [('a',), ()]


def test_jsonl_values(folder):
  put(
    't.jsonl',
    '{"hypothesis": "", "reference": ["a", ""], "segment": 7, "source": null,'
    ' "da": 3, "x": null}\n'
    '{"hypothesis": "h", "reference": "a", "reference_2": "b", "x": 1e2}\n',
  )
  assert records.read_records('t.jsonl', ratings=['da', 'x']) == [
    Segment('', references=('a', ''), segment='7', ratings={'da': 3.0}),
    Segment('h', references=('a', 'b'), ratings={'x': 100.0}),
  ]


def test_csv_quoting(folder):
  put(
    't.tsv',
    'hypothesis\treference\n"a ""b""\tc"\td\n"two\r\nlines"\t""\nplain\te\n',
  )
  assert records.read_records('t.tsv', quoting='csv') == [
    Segment('a "b"\tc', references=('d',)),
    Segment('two\nlines'),
    Segment('plain', references=('e',)),
  ]
  # By default a quotation mark is text.
  put('t.tsv', 'hypothesis\treference\n"a ""b"""\t"d\n')
  assert records.read_records('t.tsv') == [
    Segment('"a ""b"""', references=('"d',))
  ]


def test_csv_quoting_errors_name_the_first_line_of_the_record(folder):
  put('t.tsv', 'hypothesis\treference\n"a\nb"\tc\n"d"e\tf\n')
  error = error_of(records.read_records, 't.tsv', quoting='csv')
  assert (error.path, error.line) == ('t.tsv', 4)
  put('t.tsv', 'hypothesis\treference\n"a\nb"\tc\n"d\n')
  assert error_of(records.read_records, 't.tsv', quoting='csv').line == 4


HEADER = 'hypothesis\treference\treference_2\tda\n'


@pytest.mark.parametrize(
  ('content', 'line', 'field', 'words'),
  [
    ('', None, None, 'empty'),
    ('hyp\tref\n', 1, 'hypothesis', "no column 'hypothesis'.*hyp, ref"),
    ('hypothesis\ta\ta\n', 1, 'a', '2 times'),
    ('hypothesis\treference_2\n', 1, 'reference_2', 'number 1 is missing'),
    ('hypothesis\treference_1\n', 1, 'reference_1', 'must be called'),
    (
      'hypothesis\treference\treference_3\n',
      1,
      'reference_3',
      'number 2 is missing',
    ),
    ('hypothesis\treference\nh\tr\n', None, 'da', "no column 'da'"),
    (HEADER + 'h\tr\n', 2, 'reference_2', '2 fields where the header has 4'),
    (HEADER + 'h\tr\tq\t1\t\n', 2, None, '5 fields .* has 4'),
    (HEADER + 'h\tr\tq\t1\n\n', 3, 'reference', 'line is empty'),
    (HEADER + 'h\t\tq\t1\n', 2, 'reference', "one in 'reference_2'"),
    *(
      (HEADER + f'h\tr\tq\t{number}\n', 2, 'da', 'not a finite number')
      for number in (
        'x',
        'nan',
        'inf',
        '-inf',
        '1,5',
        '1_0',
        ' 1',
        '1e999',
        '٣',
      )
    ),
  ],
)
def test_tsv_errors(folder, content, line, field, words):
  put('t.tsv', content)
  ratings = ['da'] if content else []
  if content.startswith(('hyp\t', 'hypothesis\ta', 'hypothesis\treference_')):
    ratings = []
  if 'reference_3' in content:
    ratings = []
  error = error_of(records.read_records, 't.tsv', ratings=ratings)
  assert (error.path, error.line, error.field) == ('t.tsv', line, field)
  with pytest.raises(RecordError, match=words):
    raise error


@pytest.mark.parametrize(
  ('content', 'line', 'field', 'words'),
  [
    ('{"hypothesis": "h"}\n{"hypothesis": "h"', 2, None, 'not JSON'),
    ('{"hypothesis": "h"}\n\n{"hypothesis": "h"}', 2, None, 'line is empty'),
    ('["h"]', 1, None, 'list, not an object'),
    ('{"hypothesis": null}', 1, 'hypothesis', 'null'),
    ('{"hyp": "h"}', 1, 'hypothesis', 'no column'),
    ('{"hypothesis": 3}', 1, 'hypothesis', 'not a text'),
    ('{"hypothesis": ["h"]}', 1, 'hypothesis', 'not a text'),
    ('{"hypothesis": "h", "source": 3}', 1, 'source', 'not a text'),
    ('{"hypothesis": "h", "segment": true}', 1, 'segment', 'not a text'),
    ('{"hypothesis": "h", "segment": 1.5}', 1, 'segment', 'not a text'),
    ('{"hypothesis": "h", "reference": [1]}', 1, 'reference', 'not a text'),
    ('{"hypothesis": "h", "reference": [null, "a"]}', 1, 'reference', 'first'),
    ('{"hypothesis": "h", "hypothesis": "i"}', 1, 'hypothesis', 'twice'),
    ('{"hypothesis": "a\\u0000"}', 1, 'hypothesis', 'NUL'),
    ('{"hypothesis": "a\\ud800"}', 1, 'hypothesis', 'surrogate'),
    ('{"hypothesis": "h", "reference": ["\\ud800"]}', 1, 'reference', 'surro'),
    *(
      (f'{{"hypothesis": "h", "da": {value}}}', 1, 'da', 'not a finite')
      for value in ('NaN', 'Infinity', 'true', '"x"', '[1]', '1e999', '9' * 400)
    ),
  ],
)
def test_jsonl_errors(folder, content, line, field, words):
  put('t.jsonl', content)
  ratings = ['da'] if '"da"' in content else []
  error = error_of(records.read_records, 't.jsonl', ratings=ratings)
  assert (error.path, error.line, error.field) == ('t.jsonl', line, field)
  with pytest.raises(RecordError, match=words):
    raise error


def test_escaped_surrogate_pairs_are_characters(folder):
  put('t.jsonl', '{"hypothesis": "\\ud83d\\ude00"}')
  assert records.read_records('t.jsonl')[0].hypothesis == '\U0001f600'


def test_a_column_that_no_jsonl_record_has(folder):
  put('t.jsonl', '{"hypothesis": "h", "ref_A": "a"}\n')
  error = error_of(
    records.read_records, 't.jsonl', columns={'reference': 'ref_a'}
  )
  assert error.field == 'ref_a'
  assert "did you mean 'ref_A'" in str(error)
  assert error_of(records.read_records, 't.jsonl', ratings=['da']).field == 'da'


def test_arguments_are_checked(folder):
  put('t.tsv', 'hypothesis\nh\n')
  read = records.read_records
  with pytest.raises(ValueError, match="did you mean 'reference'"):
    read('t.tsv', columns={'refrence': 'a'})
  with pytest.raises(ValueError, match='one string'):
    read('t.tsv', ratings='da')
  with pytest.raises(ValueError, match='field'):
    read('t.tsv', ratings=['source'])
  with pytest.raises(ValueError, match='quoting'):
    read('t.tsv', quoting='yes')
  with pytest.raises(ValueError, match='format'):
    read('t.tsv', format='csv')


def test_records_are_streamed(folder):
  put('t.jsonl', '{"hypothesis": "h"}\nbroken\n')
  stream = records.stream_records('t.jsonl')
  assert isinstance(stream, types.GeneratorType)
  assert next(stream) == Segment('h')
  with pytest.raises(RecordError):
    next(stream)


def test_a_header_alone_is_no_records(folder):
  records.write_records('t.tsv', [])
  assert records.read_records('t.tsv') == []


def test_values_beside_the_segments(folder):
  score = np.array([0.1, -2.0, 1e-7], np.float32)
  records.write_records('t.jsonl', ROWS, values={'score': score})
  back = records.read_records('t.jsonl', ratings=['score'])
  assert [np.float32(s.ratings['score']) for s in back] == score.tolist()
  assert '"score": 0.1}' in open('t.jsonl', encoding='utf-8').readline()
  write = records.write_records
  with pytest.raises(ValueError, match='2 values'):
    write('u.jsonl', ROWS, values={'score': score[:2]})
  with pytest.raises(ValueError, match='4 values'):
    write('u.jsonl', ROWS, values={'score': [0, 0, 0, 0]})
  for name in ('da', 'source', 'reference_2'):
    with pytest.raises(ValueError, match='twice'):
      write('u.jsonl', ROWS, values={name: score})
  with pytest.raises(ValueError, match='format'):
    write('u.txt', ROWS)
  with pytest.raises(ValueError, match="did you mean 'source'"):
    write('u.tsv', ROWS, fields=('sorce',))
  error = error_of(write, 'u.jsonl', ROWS, values={'score': [0, np.nan, 0]})
  assert (error.line, error.field) == (2, 'score')
  assert os.listdir() == ['t.jsonl']


def test_format_is_clear_from_the_name():
  assert tables.format_of('a.b.TSV.GZ') == 'tsv'
  assert tables.format_of('a.jsonl') == 'jsonl'
  assert tables.format_of('-') is None


def test_where_chooses_rows(tmp_path):
  path = tmp_path / 'x.tsv'
  path.write_text(
    'hypothesis\tyear\tlp\na\t2015\tcs-en\nb\t2016\ten-cs\nc\t2017\tde-en\n'
  )

  def read(**where):
    return [s.hypothesis for s in records.read_records(path, where=where)]

  assert read() == ['a', 'b', 'c']
  assert read(year=['2015', '2017']) == ['a', 'c']
  assert read(year=['2015', '2016'], lp=['*-en']) == ['a']
  assert read(lp=['x']) == []
  with pytest.raises(
    RecordError, match="no column 'yer'.*mean 'year'"
  ) as error:
    read(yer=['2015'])
  assert (error.value.line, error.value.field) == (2, 'yer')
