"""Files: lines, compression, standard input, and writing whole or not."""

import gzip
import io
import json
import os
import pathlib
import pickle
import stat
import sys

import pytest

from t5score_jax.data import files, records
from t5score_jax.data.files import RecordError

# Characters that str.splitlines, but no file format here, takes for line ends.
OTHER_LINE_ENDS = '\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029'


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


# Lines.


@pytest.mark.parametrize(
  ('content', 'lines'),
  [
    (b'', []),
    (b'\n', ['']),
    (b'a\nb\n', ['a', 'b']),
    (b'a\nb', ['a', 'b']),
    (b'a\r\nb\r\n', ['a', 'b']),
    (b'a\r\n\r\nb\r', ['a', '', 'b']),
    (b'a\rb\n', ['a\rb']),
    (b' a \n\tb\n', [' a ', '\tb']),
    (b'\xef\xbb\xbfa\n\xef\xbb\xbfb\n', ['a', '\ufeffb']),
    (b'\xef\xbb\xbf', ['']),
  ],
)
def test_lines_end_at_lf_or_crlf_only(folder, content, lines):
  assert files.read_lines(put('t', content)) == lines
  assert files.read_lines(put('t.gz', content)) == lines


def test_unicode_line_ends_are_text(folder):
  text = f'a{OTHER_LINE_ENDS}b'
  assert files.read_lines(put('t', text + '\nc\n')) == [text, 'c']
  put('t.tsv', f'hypothesis\tsystem\n{text}\tA\n')
  assert records.read_records('t.tsv')[0].hypothesis == text
  put('t.jsonl', json.dumps({'hypothesis': text}, ensure_ascii=False))
  assert records.read_records('t.jsonl')[0].hypothesis == text


def test_gzip_is_found_by_content_not_by_name(folder):
  put('plain', gzip.compress(b'a\n'))
  assert files.read_lines('plain') == ['a']
  with open('text.gz', 'wb') as file:
    file.write(b'a\n')
  assert files.read_lines('text.gz') == ['a']


def test_a_small_file_does_not_fill_the_memory(folder, monkeypatch):
  monkeypatch.setattr(files, 'MAX_INFLATED_LINE', 1 << 20)
  whole = 'a' * ((1 << 20) - 1)
  put('a', gzip.compress(f'{whole}\nb\n'.encode()))
  assert list(files.read_lines('a')) == [whole, 'b']
  put('b', gzip.compress(b'b\n' + b'a' * (1 << 26)))
  with pytest.raises(files.RecordError) as error:
    files.read_lines('b')
  assert error.value.line == 2 and 'inflates' in str(error.value)
  # What is not inflated is as large as the file is.
  put('c', b'a' * (1 << 21))
  assert len(files.read_lines('c')[0]) == 1 << 21


@pytest.mark.parametrize('damage', [lambda d: d[:-9], lambda d: d[:12]])
def test_a_cut_gzip_file_is_an_error_not_a_short_file(folder, damage):
  data = gzip.compress(b''.join(b'line %d\n' % n for n in range(1000)))
  put('t', damage(data))
  error = error_of(files.read_lines, 't')
  assert 'gzip' in str(error)
  assert error.path == 't'


def test_invalid_utf8_names_line_and_byte(folder):
  error = error_of(files.read_lines, put('t', b'good\nb\xe4d\n'))
  assert (error.path, error.line) == ('t', 2)
  assert 'byte 2' in str(error)
  assert '0xe4' in str(error)


def test_utf16_is_named(folder):
  error = error_of(files.read_lines, put('t', 'abc'.encode('utf-16')))
  assert 'UTF-16' in str(error)
  assert error.line == 1


def test_nul_names_line(folder):
  error = error_of(files.read_lines, put('t', b'a\nb\0c\n'))
  assert error.line == 2
  assert 'NUL' in str(error)


def test_standard_input(folder, monkeypatch):
  set_stdin(monkeypatch, 'ä\nb\n'.encode())
  assert files.read_lines('-') == ['ä', 'b']
  assert not sys.stdin.closed
  set_stdin(monkeypatch, gzip.compress('ä\n'.encode()))
  assert files.read_lines('-') == ['ä']
  monkeypatch.setattr(sys, 'stdin', io.StringIO('ö\n'))
  assert files.read_lines('-') == ['ö']
  set_stdin(monkeypatch, b'\xff\n')
  assert 'standard input, line 1' in str(error_of(files.read_lines, '-'))


def test_reading_is_lazy(folder):
  put('t', b'first\n\xff\n')
  with files.open_text('t') as lines:
    assert next(lines) == 'first'


def test_a_missing_file_is_an_os_error(folder):
  with pytest.raises(FileNotFoundError, match='nowhere'):
    files.read_lines('nowhere')


# Writing.


def test_an_output_that_is_an_input_is_found(folder):
  for name in 'abc':
    put(name, b'x')
  pathlib.Path('soft').symlink_to('a')
  pathlib.Path('hard').hardlink_to('a')
  for output in ('a', './a', 'soft', 'hard', folder / 'a'):
    with pytest.raises(files.OverwriteError, match='--plot .*is an input too'):
      files.check_not_input(output, ['b', None, 7, 'a'], '--plot')
  for output in ('c', 'new', '-', os.devnull, '.'):
    files.check_not_input(output, ['a', 'b', '-', os.devnull, 'absent', '.'])


def test_what_fails_leaves_the_old_file_and_nothing_else(folder):
  put('out', 'old')
  with pytest.raises(KeyboardInterrupt), files.write_atomically('out') as out:
    out.write('new')
    raise KeyboardInterrupt
  assert open('out').read() == 'old'
  assert os.listdir() == ['out']


def test_nothing_is_there_before_the_end(folder):
  with files.write_atomically('out') as out:
    out.write('new')
    out.flush()
    assert not os.path.exists('out')
  assert open('out').read() == 'new'
  assert os.listdir() == ['out']


def test_permissions_are_those_of_a_new_file_or_of_the_old_one(folder):
  old = os.umask(0o027)
  try:
    files.write_lines('new', ['a'])
  finally:
    os.umask(old)
  assert stat.S_IMODE(os.stat('new').st_mode) == 0o640
  os.chmod('new', 0o604)
  files.write_lines('new', ['b'])
  assert stat.S_IMODE(os.stat('new').st_mode) == 0o604


def test_a_symbolic_link_stays_one(folder):
  put('real', 'old')
  os.symlink('real', 'link')
  files.write_lines('link', ['new'])
  assert os.path.islink('link')
  assert files.read_lines('real') == ['new']


def test_devices_and_folders(folder):
  files.write_lines('/dev/null', ['a'])
  assert not stat.S_ISREG(os.stat('/dev/null').st_mode)
  with pytest.raises(IsADirectoryError):
    files.write_lines(str(folder), ['a'])
  with pytest.raises(FileNotFoundError, match='no folder'):
    files.write_lines('nowhere/out', ['a'])


def test_gzip_is_written_by_name_and_the_same_every_time(folder):
  files.write_lines('a.gz', ['ä', 'b'])
  files.write_lines('b.gz', ['ä', 'b'])
  assert open('a.gz', 'rb').read(2) == b'\x1f\x8b'
  assert open('a.gz', 'rb').read() == open('b.gz', 'rb').read()
  assert files.read_lines('a.gz') == ['ä', 'b']


def test_bytes(folder):
  with files.write_atomically('out.gz', 'wb') as out:
    out.write(b'\xff\x00')
  assert open('out.gz', 'rb').read() == b'\xff\x00'


def test_standard_output_is_utf8_and_stays_open(capfdbinary):
  with files.write_atomically('-') as out:
    out.write('ä\u2028\n')
  print('more')
  assert capfdbinary.readouterr().out == 'ä\u2028\nmore\n'.encode()


@pytest.mark.parametrize('text', ['a\nb', 'a\rb', 'a\0b', 'a\ud800'])
def test_what_would_not_read_back_is_not_written(folder, text):
  error = error_of(files.write_lines, 'out', ['good', text])
  assert (error.path, error.line) == ('out', 2)
  assert os.listdir() == []


def test_a_byte_order_mark_as_text_is_not_written(folder):
  assert error_of(files.write_lines, 'out', ['\ufeffa']).line == 1
  files.write_lines('out', ['a', '\ufeffb'])
  assert files.read_lines('out') == ['a', '\ufeffb']


def test_record_error_has_its_place_and_pickles():
  error = RecordError('wrong', path='f', line=3, field='x')
  assert str(error) == "f, line 3, field 'x': wrong"
  copy = pickle.loads(pickle.dumps(error))
  assert (str(copy), copy.path, copy.line, copy.field) == (
    str(error),
    'f',
    3,
    'x',
  )
