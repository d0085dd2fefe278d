"""Text files: read line by line, written whole or not at all.

For everything that reads or writes UTF-8 lines, compressed or not. What the
lines mean (records, fields) is for `records`.

Rules for reading, the same everywhere:

- A line ends at LF or at CR LF, and nowhere else. Other characters that some
  programs take for line ends (a lone CR, VT, FF, U+0085, U+2028, U+2029) are
  text and stay in the line.
- A byte order mark at the start of the file is dropped.
- The last line may lack its line end.
- gzip is recognised by its first two bytes, whatever the file is called.
- `-` is standard input (or output).
- Invalid UTF-8 and NUL are errors that name the line: nothing is replaced.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import os
import secrets
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, BinaryIO

from t5score_jax.errors import T5ScoreError

_GZIP_MAGIC = b'\x1f\x8b'


class RecordError(T5ScoreError, ValueError):
  """Something in an input or output file is not as it must be.

  Attributes:
    path: The file, or `-` for standard input or output; None if unknown.
    line: The line, counted from 1; None where the whole file is meant.
    field: The field or column; None where the whole line is meant.
  """

  def __init__(
    self,
    problem: str,
    *,
    path: str | os.PathLike[str] | None = None,
    line: int | None = None,
    field: str | None = None,
  ):
    """Composes the message from the place and the problem."""
    self.path = None if path is None else os.fspath(path)
    self.line = line
    self.field = field
    place = []
    if self.path is not None:
      place.append('standard input' if self.path == '-' else self.path)
    if line is not None:
      place.append(f'line {line}')
    if field is not None:
      place.append(f'field {field!r}')
    super().__init__(f'{", ".join(place)}: {problem}' if place else problem)


class OverwriteError(T5ScoreError, ValueError):
  """An output is one of the inputs too, which would be lost."""

  exit_code = 2


@contextlib.contextmanager
def open_text(path: str | os.PathLike[str]) -> Iterator[Iterator[str]]:
  r"""Opens a text file for reading, as an iterator over its lines.

  Lines come without their line ends, as the file is read: a file larger than
  memory is no problem. See the module's docstring for the rules.

  >>> with open_text('hypotheses.txt.gz') as lines:  # doctest: +SKIP
  ...   first = next(lines)

  Args:
    path: A file, compressed with gzip or not, or `-` for standard input.

  Yields:
    The iterator over the lines.

  Raises:
    RecordError: While iterating: invalid UTF-8, NUL, damaged gzip data.
    OSError: The file can't be opened or read.
  """
  path = os.fspath(path)
  with contextlib.ExitStack() as stack:
    if path == '-':
      stream = _standard_input()
    else:
      stream = stack.enter_context(open(path, 'rb'))
    if stream.peek(2)[:2] == _GZIP_MAGIC:
      stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
    yield _lines(stream, path)


def read_lines(path: str | os.PathLike[str]) -> list[str]:
  """Reads all lines of a text file; `open_text` says how and what it raises."""
  with open_text(path) as lines:
    return list(lines)


def _standard_input() -> Any:
  """Standard input as bytes. It belongs to the process: never closed."""
  raw = getattr(sys.stdin, 'buffer', None)
  if raw is None:  # text that a test or a notebook put in its place
    data = sys.stdin.read().encode('utf-8', 'surrogatepass')
  elif hasattr(raw, 'peek'):
    return raw
  else:
    data = raw.read()
  return io.BufferedReader(io.BytesIO(data))


def _lines(stream: BinaryIO, path: str) -> Iterator[str]:
  """Decodes a byte stream line by line, so that errors can name the line."""
  number = 0
  try:
    # Iterating over bytes splits at LF only; text would need care.
    for number, raw in enumerate(stream, 1):
      if number == 1:
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
          raise RecordError(
            'this is UTF-16, not UTF-8; convert it with'
            ' `iconv -f UTF-16 -t UTF-8`',
            path=path,
            line=1,
          )
        raw = raw.removeprefix(codecs.BOM_UTF8)
      raw = raw.removesuffix(b'\n').removesuffix(b'\r')
      try:
        line = raw.decode('utf-8')
      except UnicodeDecodeError as error:
        raise RecordError(
          f'invalid UTF-8 at byte {error.start + 1} of the line'
          f' (0x{raw[error.start]:02x}); convert the file to UTF-8, for'
          ' example with `iconv -f LATIN1 -t UTF-8`',
          path=path,
          line=number,
        ) from error
      if '\0' in line:
        raise RecordError(
          f'a NUL character at position {line.index(chr(0)) + 1}; remove it'
          ' (is this a text file?)',
          path=path,
          line=number,
        )
      yield line
  except (EOFError, zlib.error, gzip.BadGzipFile) as error:
    raise RecordError(
      f'the gzip data is damaged or cut short ({error}); fetch or compress'
      ' the file again',
      path=path,
      line=number + 1,
    ) from error


@contextlib.contextmanager
def write_atomically(
  path: str | os.PathLike[str], mode: str = 'w'
) -> Iterator[IO[Any]]:
  """Opens a file that appears under its name only when it is complete.

  The bytes go into a temporary file in the same folder, which takes the name
  when the block ends. If the block raises, the temporary file is removed and
  whatever had the name before is still there. A symbolic link stays a link;
  a pipe or device (`/dev/null`) is written directly.

  Args:
    path: Where to write. In text mode a name that ends in `.gz` is compressed
      (same text, same bytes: the header carries no time), and `-` is standard
      output.
    mode: `'w'` for UTF-8 text with LF line ends, `'wb'` for bytes.

  Yields:
    The open file.

  Raises:
    ValueError: The mode is another one.
    FileNotFoundError: The folder doesn't exist.
    OSError: The file can't be written.
  """
  if mode not in ('w', 'wb'):
    raise ValueError(f"mode must be 'w' or 'wb', not {mode!r}")
  path = os.fspath(path)
  if path == '-':
    with _standard_output(mode) as out:
      yield out
    return
  target = os.path.realpath(path)
  compress = mode == 'w' and path.endswith('.gz')
  if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
    # A folder fails here with the error that names it.
    with open(target, 'wb') as raw, _layer(raw, mode, compress) as out:
      yield out
    return
  folder, name = os.path.split(target)
  if not os.path.isdir(folder):
    raise FileNotFoundError(
      f'cannot write {path}: there is no folder {folder}; create it first'
    )
  partial = os.path.join(folder, f'.{name[:200]}.{secrets.token_hex(4)}.part')
  # os.open, not tempfile: a new file gets the permissions that umask gives.
  descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
  try:
    with open(descriptor, 'wb') as raw:
      with _layer(raw, mode, compress) as out:
        yield out
      raw.flush()
      os.fsync(raw.fileno())
    if os.path.exists(target):
      os.chmod(partial, stat.S_IMODE(os.stat(target).st_mode))
    os.replace(partial, target)
  except BaseException:
    with contextlib.suppress(OSError):
      os.unlink(partial)
    raise


def check_not_input(
  output: str | os.PathLike[str], inputs: Iterable[object], flag: str = '-o'
) -> None:
  """Finds out, before anything is read, whether an output is an input too.

  Args:
    output: Where something is to be written, perhaps `-`.
    inputs: Paths that are read; what is not the path of a file (None, the name
      of a model, `-`) is passed over.
    flag: Of the output, for the message.

  Raises:
    OverwriteError: Both are one regular file, by whatever name or link.
  """
  if os.fspath(output) == '-' or not os.path.isfile(output):
    return
  for path in inputs:
    if not isinstance(path, (str, os.PathLike)) or os.fspath(path) == '-':
      continue
    with contextlib.suppress(OSError):
      if os.path.samefile(output, path):
        same = '' if os.fspath(output) == os.fspath(path) else f' ({path})'
        raise OverwriteError(
          f'{flag} {os.fspath(output)}: is an input too{same}, which would be '
          'lost; choose another name'
        )


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
  """Writes lines of text, atomically; `read_lines` gives them back.

  Args:
    path: Where to write: `write_atomically` says what `-` and `.gz` do.
    lines: One text a line, without line ends.

  Raises:
    RecordError: A text holds a line end, NUL or half a surrogate pair, or
      is the first and begins with U+FEFF: it could not be read back.
    OSError: The file can't be written.
  """
  with write_atomically(path) as out:
    for number, line in enumerate(lines, 1):
      check_writable(line, '\r\n\0', path=path, line=number)
      if number == 1 and line.startswith('\ufeff'):
        raise RecordError(
          'the text begins with U+FEFF, which a reader would take for a byte'
          ' order mark; remove it',
          path=path,
          line=1,
        )
      out.write(line + '\n')


def check_writable(
  text: str,
  forbidden: str,
  *,
  path: str | os.PathLike[str],
  line: int,
  field: str | None = None,
) -> None:
  """Raises RecordError if a text can't be written so that it reads back.

  Args:
    text: The text.
    forbidden: The characters that the format has no way to write.
    path: The file, for the message.
    line: The line, for the message.
    field: The field, for the message.

  Raises:
    RecordError: The text holds a forbidden character or half a surrogate pair.
  """
  for character in forbidden:
    if character in text:
      raise RecordError(
        f'the text holds {character!r}, which this format cannot hold; write'
        ' JSONL instead, or replace it'
        if character != '\0'
        else 'the text holds a NUL character; remove it',
        path=path,
        line=line,
        field=field,
      )
  if not text.isascii():
    try:
      text.encode('utf-8')
    except UnicodeEncodeError as error:
      raise RecordError(
        f'half a surrogate pair (U+{ord(text[error.start]):04X}) at position'
        f' {error.start + 1}; it is not a character: replace it',
        path=path,
        line=line,
        field=field,
      ) from error


@contextlib.contextmanager
def _layer(raw: BinaryIO, mode: str, compress: bool) -> Iterator[IO[Any]]:
  """Puts gzip and text encoding over a byte stream, which stays open."""
  with contextlib.ExitStack() as stack:
    stream: Any = raw
    if compress:
      stream = stack.enter_context(
        gzip.GzipFile(filename='', mode='wb', fileobj=raw, mtime=0)
      )
    if mode == 'w':
      stream = io.TextIOWrapper(stream, encoding='utf-8', newline='\n')
      # Detached, not closed: closing would close the bytes beneath as well.
      stack.callback(stream.detach)
    yield stream


@contextlib.contextmanager
def _standard_output(mode: str) -> Iterator[IO[Any]]:
  """Standard output as UTF-8 whatever the locale; stays open."""
  sys.stdout.flush()
  raw = getattr(sys.stdout, 'buffer', None)
  if raw is None:  # a notebook's output has no bytes beneath
    yield sys.stdout
    return
  with _layer(raw, mode, compress=False) as out:
    yield out
  raw.flush()
