"""The queue of submissions to a board, in its file, and the process that works.

A submission becomes a job; one worker at a time takes jobs in order. A worker
that is killed leaves the board as it was, and its job begins again; what a job
has stored already is not stored twice. `python -m
t5score_jax.leaderboard.web.jobs BOARD.db` is the worker. Not here: HTTP
(`server`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from t5score_jax.leaderboard import renewal, submissions
from t5score_jax.leaderboard.entries import BoardError, Generator, Metric, now
from t5score_jax.leaderboard.store import Store

#: After so many deaths of the worker a job is given up.
ATTEMPTS = 3
_COLUMNS = (
  'id, kind, name, settings, upload, submitter, status, attempts, message,'
  ' created, started, finished'
)


class QuotaError(BoardError):
  """Uploads that wait take too much room, or the disk is full."""


@dataclasses.dataclass(frozen=True)
class Job:
  """A submission on its way; `status` is queued, running, stored, done, failed.

  A stored job's submission is on the board, and analyses are being renewed.
  """

  id: int
  kind: str
  name: str
  settings: Mapping[str, Any]
  upload: str | None
  submitter: str
  status: str
  attempts: int
  message: str
  created: str
  started: str | None
  finished: str | None

  @property
  def waiting(self) -> bool:
    """Whether there is more to come."""
    return self.status not in ('done', 'failed')


def _job(row: tuple[Any, ...]) -> Job:
  number, kind, name, settings, *rest = row
  return Job(number, kind, name, json.loads(settings), *rest)


def get(store: Store, number: int) -> Job | None:
  """A job by its number."""
  row = store.connection.execute(
    f'SELECT {_COLUMNS} FROM job WHERE id = ?', (number,)
  ).fetchone()
  return None if row is None else _job(row)


def recent(store: Store, count: int = 100) -> list[Job]:
  """The newest jobs, the newest first."""
  return [
    _job(row)
    for row in store.connection.execute(
      f'SELECT {_COLUMNS} FROM job ORDER BY id DESC LIMIT ?', (count,)
    )
  ]


def uploads(store: Store) -> Path:
  """The folder of uploads, beside the board."""
  return store.path.with_name(store.path.name + '.uploads')


def save(store: Store, source: IO[bytes], quota: int) -> str:
  """Keeps an upload under a name of its own, whatever the submitter called it.

  Args:
    store: The board.
    source: The upload, from its beginning.
    quota: Bytes that all uploads together may take.

  Returns:
    The name in the folder of uploads.

  Raises:
    QuotaError: There is no room; nothing is kept.
  """
  folder = uploads(store)
  folder.mkdir(exist_ok=True)
  room = quota - sum(p.stat().st_size for p in folder.iterdir())
  name = secrets.token_hex(16)
  path = folder / name
  try:
    with open(path, 'xb') as out:
      while chunk := source.read(1 << 20):
        room -= len(chunk)
        if room < 0:
          raise QuotaError(
            'the uploads that wait take all the room that they may; try again'
            ' when the queue is shorter'
          )
        out.write(chunk)
      out.flush()
      os.fsync(out.fileno())
  except BaseException as error:
    path.unlink(missing_ok=True)
    if isinstance(error, OSError):
      raise QuotaError(
        f'the upload cannot be kept: {error.strerror}'
      ) from error
    raise
  return name


def queue(
  store: Store,
  kind: str,
  name: str,
  settings: Mapping[str, Any],
  upload: str | None,
  submitter: str,
) -> int:
  """Puts a job at the end of the queue; returns its number."""
  with store.transaction():
    cursor = store.connection.execute(
      'INSERT INTO job (kind, name, settings, upload, submitter, status,'
      " attempts, message, created) VALUES (?, ?, ?, ?, ?, 'queued', 0, '', ?)",
      (kind, name, json.dumps(dict(settings)), upload, submitter, now()),
    )
    return int(cursor.lastrowid or 0)


def _set(store: Store, number: int, status: str, message: str = '') -> None:
  finished = now() if status in ('done', 'failed') else None
  with store.transaction():
    store.connection.execute(
      'UPDATE job SET status = ?, message = ?, finished = ? WHERE id = ?',
      (status, message[:4000], finished, number),
    )


def recover(store: Store) -> None:
  """After the death of a worker: its job begins again, or is given up."""
  with store.transaction():
    store.connection.execute(
      "UPDATE job SET status = 'failed', finished = ?, message ="
      " 'the worker was ended ' || attempts || ' times during this job; the"
      " board is as it was' WHERE status = 'running' AND attempts >= ?",
      (now(), ATTEMPTS),
    )
    store.connection.execute(
      "UPDATE job SET status = 'queued' WHERE status = 'running'"
    )


def work(store: Store) -> bool:
  """Does the next job, if there is one.

  Returns:
    Whether there was one.
  """
  with store.transaction():
    row = store.connection.execute(
      f"SELECT {_COLUMNS} FROM job WHERE status IN ('stored', 'queued')"
      " ORDER BY status = 'queued', id LIMIT 1"
    ).fetchone()
    if row is None:
      return False
    job = _job(row)
    if job.status == 'queued':
      store.connection.execute(
        "UPDATE job SET status = 'running', attempts = attempts + 1,"
        ' started = ? WHERE id = ?',
        (now(), job.id),
      )
  try:
    if job.status == 'stored':
      submissions.complete(store)
      renewal.renew(store, f'{job.kind} {job.name}')
    else:
      _submit(store, job)
    _set(store, job.id, 'done', _result(store, job))
  except (BoardError, ValueError, OSError) as error:
    # Uploads have names of their own, which would tell the submitter nothing.
    text = str(error).replace(str(uploads(store) / (job.upload or ' ')), 'file')
    _set(store, job.id, 'failed', text)
  except Exception as error:  # a defect must not stop the queue
    _set(store, job.id, 'failed', f'{type(error).__name__}: {error}')
    raise
  finally:
    found = get(store, job.id)
    if job.upload and found is not None and not found.waiting:
      (uploads(store) / job.upload).unlink(missing_ok=True)
  return True


def _submit(store: Store, job: Job) -> None:
  settings = dict(job.settings)
  also: Callable[[], None] = lambda: _set(store, job.id, 'stored')  # noqa: E731
  path = uploads(store) / (job.upload or ' ')
  told = {
    'description': settings.get('description', ''),
    'seconds': settings.get('seconds'),
    'parameters': settings.get('parameters'),
  }
  if job.kind == 'generator':
    generator = Generator(job.name, bool(settings.get('human')), **told)
    submissions.add_generator(store, generator, path, also=also)
  elif job.kind == 'human':
    submissions.add_human(
      store, path, job.name, settings.get('column'), also=also
    )
  elif settings.get('library'):
    metric = submissions.library_metric(
      settings['library'], title=job.name, **_with(settings, told)
    )
    submissions.add_metric(store, metric, also=also)
  elif settings.get('scores'):
    metric = Metric(job.name, 'column', **_with(settings, told))
    submissions.add_score_file(
      store, metric, path, settings.get('column'), also=also
    )
  else:
    program = path.read_bytes()
    metric = submissions.command_metric(
      job.name,
      program,
      references=not settings.get('referenceless'),
      several=settings.get('several', 'max'),
      **_with(settings, told),
    )
    submissions.add_metric(store, metric, program, also=also)


def _with(
  settings: Mapping[str, Any], told: Mapping[str, Any]
) -> dict[str, Any]:
  return {'negated': bool(settings.get('negated')), **told}


def _result(store: Store, job: Job) -> str:
  """What a finished job tells."""
  value = renewal.current(store)
  if job.kind == 'human':
    return f'{value["board"]["rated"]} outputs are rated now'
  entries = value['generators' if job.kind == 'generator' else 'metrics']
  entry = next((e for e in entries if e['name'] == job.name), None)
  if entry is None or entry['rank'] is None:
    return 'on the board; not ranked, as scores or ratings are missing'
  text = f'rank {entry["rank"]} of {len(entries)}'
  names = {m.id: m.name for m in store.metrics()}
  keys = {g.id: g.name for g in store.generators()}
  failed = [
    f'{names[m]} failed: {message}'
    for (m, g, _), message in store.failures().items()
    if job.kind == 'generator' and keys.get(g) == job.name
  ]
  return '; '.join([text, *failed])


@contextlib.contextmanager
def only_worker(path: str | os.PathLike[str]) -> Iterator[None]:
  """Holds the lock of a board's worker, which dies with its process.

  Raises:
    BoardError: Another worker is there.
  """
  with open(f'{os.fspath(path)}.worker', 'w') as held:
    try:
      fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      raise BoardError(f'{path}: another worker is there') from error
    yield


def run_worker(path: str | os.PathLike[str], pause: float = 0.5) -> None:
  """Works until the process that started it is gone.

  Args:
    path: The board.
    pause: Seconds between looks into an empty queue.

  Raises:
    BoardError: Another worker is there.
  """
  parent = os.getppid()
  with only_worker(path), Store(path) as store:
    recover(store)
    while os.getppid() == parent:
      if not work(store):
        time.sleep(pause)


if __name__ == '__main__':
  run_worker(sys.argv[1])
