"""Text files, read line by line and written atomically.

Everything that reads or writes UTF-8 lines, compressed or not, uses this
module. The meaning of the lines is up to `data/records.py`.

Rules for reading:

- A line ends at LF or CR LF only. Other characters that some programs take for
  line ends (a lone CR, VT, FF, U+0085, U+2028, U+2029) are text.
- A byte order mark at the start of the file is dropped.
- The last line may lack its line end.
- gzip is recognised by its first two bytes, whatever the file is called.
- `-` is standard input (or output).
- A line that inflates to more than 256 MiB is an error: a small compressed file
  must not fill the memory.
- Invalid UTF-8 and NUL are errors that name the line; nothing is replaced.
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

from t5score_jax.errors import T5ScoreError, UsageError

_GZIP_MAGIC = b'\x1f\x8b'
#: Bytes of a line that is inflated.
MAX_INFLATED_LINE = 256 << 20


class RecordError(T5ScoreError, ValueError):
  """An input or output file has invalid content.

  Attributes:
    path: The file, or `-` for standard input or output; None if unknown.
    line: The line, counted from 1; None for the whole file.
    field: The field or column; None for the whole line.
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


class OverwriteError(UsageError):
  """An output would overwrite one of the inputs."""


@contextlib.contextmanager
def open_text(path: str | os.PathLike[str]) -> Iterator[Iterator[str]]:
  """Opens a text file as an iterator over its lines, without line ends.

  The file is read lazily; the module's docstring gives the rules.

  Args:
    path: A file, compressed with gzip or not, or `-` for standard input.

  Yields:
    The iterator over the lines.

  Raises:
    RecordError: During iteration: invalid UTF-8, NUL, damaged gzip data.
    OSError: The file cannot be opened or read.
  """
  path = os.fspath(path)
  with contextlib.ExitStack() as stack:
    if path == '-':
      stream = _standard_input()
    else:
      stream = stack.enter_context(open(path, 'rb'))
    if stream.peek(2)[:2] == _GZIP_MAGIC:
      inflated = stack.enter_context(gzip.GzipFile(fileobj=stream))
      yield _lines(_bounded(inflated, path), path)
    else:
      yield _lines(stream, path)


def read_lines(path: str | os.PathLike[str]) -> list[str]:
  """Reads all lines of a text file; see `open_text`."""
  with open_text(path) as lines:
    return list(lines)


def _standard_input() -> Any:
  """Standard input as bytes; it belongs to the process and stays open."""
  if sys.stdin is None:
    raise RecordError('is closed; give a file, or redirect one', path='-')
  raw = getattr(sys.stdin, 'buffer', None)
  if raw is None:  # a text stream of a test or a notebook
    data = sys.stdin.read().encode('utf-8', 'surrogatepass')
  elif hasattr(raw, 'peek'):
    return raw
  else:
    data = raw.read()
  return io.BufferedReader(io.BytesIO(data))


def _bounded(stream: gzip.GzipFile, path: str) -> Iterator[bytes]:
  """Yields the lines of a compressed stream, with their ends."""
  number = 0
  while line := stream.readline(MAX_INFLATED_LINE + 1):
    number += 1
    if len(line) > MAX_INFLATED_LINE:
      raise RecordError(
        f'the line inflates to more than {MAX_INFLATED_LINE >> 20} MiB;'
        ' decompress the file first if this is intended',
        path=path,
        line=number,
      )
    yield line


def _lines(stream: Iterable[bytes], path: str) -> Iterator[str]:
  """Decodes a byte stream line by line, so that errors name the line."""
  number = 0
  try:
    # Iteration over bytes splits at LF only.
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
          f'NUL character at position {line.index(chr(0)) + 1}; remove it'
          ' (is this a text file?)',
          path=path,
          line=number,
        )
      yield line
  except (EOFError, zlib.error, gzip.BadGzipFile) as error:
    raise RecordError(
      f'the gzip data is damaged or truncated ({error}); fetch or compress'
      ' the file again',
      path=path,
      line=number + 1,
    ) from error


@contextlib.contextmanager
def named(path: str | os.PathLike[str]) -> Iterator[None]:
  """Adds a path to operating system errors without one, as for a full disk."""
  try:
    yield
  except OSError as error:
    if error.filename is not None or error.errno is None:
      raise
    raise OSError(error.errno, error.strerror, os.fspath(path)) from error


@contextlib.contextmanager
def write_atomically(
  path: str | os.PathLike[str], mode: str = 'w'
) -> Iterator[IO[Any]]:
  """Opens a file that appears under its name only when it is complete.

  The bytes are written to a temporary file in the same folder, which is renamed
  when the block ends. If the block raises, the temporary file is removed and an
  earlier file is unchanged. A symbolic link stays a link; a pipe or device
  (`/dev/null`) is written directly.

  Args:
    path: The file. In text mode a name in `.gz` is compressed (equal texts give
      equal bytes: the header has no time), and `-` is standard output.
    mode: `'w'` for UTF-8 text with LF line ends, `'wb'` for bytes.

  Yields:
    The open file.

  Raises:
    FileNotFoundError: The folder does not exist.
    OSError: The file cannot be written.
  """
  assert mode in ('w', 'wb'), mode
  path = os.fspath(path)
  if path == '-':
    with named('standard output'), _standard_output(mode) as out:
      yield out
    return
  target = os.path.realpath(path)
  compress = mode == 'w' and path.endswith('.gz')
  if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
    # Opening a folder raises an error that names it.
    with named(path), open(target, 'wb') as raw:
      with _layer(raw, mode, compress) as out:
        yield out
    return
  folder, name = os.path.split(target)
  if not os.path.isdir(folder):
    raise FileNotFoundError(
      f'cannot write {path}: there is no folder {folder}; create it first'
    )
  partial = os.path.join(folder, f'.{name[:200]}.{secrets.token_hex(4)}.part')
  # os.open, not tempfile: the file gets the permissions of the umask.
  descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
  try:
    with named(path), open(descriptor, 'wb') as raw:
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
  """Checks that an output is not one of the inputs.

  Args:
    output: The output file or `-`.
    inputs: Paths of inputs; anything else (None, the name of a model, `-`) is
      ignored.
    flag: The output's flag, for the message.

  Raises:
    OverwriteError: Output and input are one regular file, by any name or link.
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
          f'{flag} {os.fspath(output)}: is an input too{same} and would be '
          'overwritten; choose another name'
        )


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
  """Writes lines of text atomically, for `read_lines`.

  Args:
    path: The file; see `write_atomically` for `-` and `.gz`.
    lines: Texts without line ends.

  Raises:
    RecordError: A text contains a line end, NUL or an unpaired surrogate, or
      the first one begins with U+FEFF, so that it could not be read back.
    OSError: The file cannot be written.
  """
  with write_atomically(path) as out:
    for number, line in enumerate(lines, 1):
      check_writable(line, '\r\n\0', path=path, line=number)
      if number == 1 and line.startswith('\ufeff'):
        raise RecordError(
          'the text begins with U+FEFF, which would be read as a byte order'
          ' mark; remove it',
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
  """Checks that a text can be written and read back.

  Args:
    text: The text.
    forbidden: Characters that the format cannot represent.
    path: The file, for the message.
    line: The line, for the message.
    field: The field, for the message.

  Raises:
    RecordError: The text contains a forbidden character or an unpaired
      surrogate.
  """
  if path == '-':
    path = 'standard output'
  for character in forbidden:
    if character in text:
      raise RecordError(
        f'the text contains {character!r}, which this format cannot hold; write'
        ' JSONL instead, or replace it'
        if character != '\0'
        else 'the text contains a NUL character; remove it',
        path=path,
        line=line,
        field=field,
      )
  if not text.isascii():
    try:
      text.encode('utf-8')
    except UnicodeEncodeError as error:
      raise RecordError(
        f'unpaired surrogate (U+{ord(text[error.start]):04X}) at position'
        f' {error.start + 1}, which is not a character: replace it',
        path=path,
        line=line,
        field=field,
      ) from error


@contextlib.contextmanager
def _layer(raw: BinaryIO, mode: str, compress: bool) -> Iterator[IO[Any]]:
  """Wraps a byte stream, which stays open, in gzip and a text encoding."""
  with contextlib.ExitStack() as stack:
    stream: Any = raw
    if compress:
      stream = stack.enter_context(
        gzip.GzipFile(filename='', mode='wb', fileobj=raw, mtime=0)
      )
    if mode == 'w':
      stream = io.TextIOWrapper(stream, encoding='utf-8', newline='\n')
      # Detached, not closed: closing would close the byte stream as well.
      stack.callback(stream.detach)
    yield stream


@contextlib.contextmanager
def _standard_output(mode: str) -> Iterator[IO[Any]]:
  """Standard output as UTF-8 in any locale; stays open."""
  if sys.stdout is None:
    raise RecordError('standard output is closed; write to a file')
  sys.stdout.flush()
  raw = getattr(sys.stdout, 'buffer', None)
  if raw is None:  # a notebook's output has no byte stream
    yield sys.stdout
    return
  with _layer(raw, mode, compress=False) as out:
    yield out
  raw.flush()
