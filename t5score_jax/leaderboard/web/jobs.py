"""The queue of submissions to a board, and the worker process that runs them.

A submission is a job in the board's file; one worker at a time runs jobs in
order. The scores and the new status of a job are one transaction, which is why
the queue is not that of a library: a killed worker leaves the board unchanged
and its job is run again, but nothing is stored twice. `python -m
t5score_jax.leaderboard.web.jobs BOARD.db` is the worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from t5score_jax import errors
from t5score_jax.leaderboard import renewal, submissions
from t5score_jax.leaderboard.entries import BoardError, Generator, Metric, now
from t5score_jax.leaderboard.store import Store

#: A job fails after the worker has died this many times while running it.
ATTEMPTS = 3


class QuotaError(BoardError):
  """Waiting uploads take too much space, or the disk is full."""


@dataclasses.dataclass(frozen=True)
class Job:
  """A submission; while 'stored', it is on the board, not yet in rankings."""

  id: int
  kind: Literal['generator', 'metric', 'human']
  name: str
  settings: Mapping[str, Any]
  upload: str | None
  submitter: str
  status: Literal['queued', 'running', 'stored', 'done', 'failed']
  attempts: int
  message: str
  created: str
  started: str | None
  finished: str | None

  @property
  def waiting(self) -> bool:
    """Whether the job is neither done nor failed."""
    return self.status not in ('done', 'failed')


#: Fields of a job that are not shown to others.
PRIVATE = ('settings', 'upload', 'attempts')
_COLUMNS = ', '.join(field.name for field in dataclasses.fields(Job))


def _jobs(store: Store, query: str, *values: Any) -> list[Job]:
  return [
    Job(number, kind, name, json.loads(settings), *rest)
    for number, kind, name, settings, *rest in store.rows(
      f'SELECT {_COLUMNS} FROM job {query}', values
    )
  ]


def get(store: Store, number: int) -> Job | None:
  """A job by its number."""
  return next(iter(_jobs(store, 'WHERE id = ?', number)), None)


def recent(store: Store, count: int = 100) -> list[Job]:
  """The newest jobs, newest first."""
  return _jobs(store, 'ORDER BY id DESC LIMIT ?', count)


def uploads(store: Store) -> Path:
  """The folder of uploads, beside the board."""
  return store.path.with_name(store.path.name + '.uploads')


def save(store: Store, source: IO[bytes], quota: int) -> str:
  """Saves an upload under a random name.

  Args:
    store: The board.
    source: The upload, at its beginning.
    quota: Largest total size of all uploads, in bytes.

  Returns:
    The name in the folder of uploads.

  Raises:
    QuotaError: There is no space; nothing is saved.
  """
  folder = uploads(store)
  folder.mkdir(exist_ok=True)
  space = quota - sum(p.stat().st_size for p in folder.iterdir())
  path = folder / secrets.token_hex(16)
  try:
    with open(path, 'xb') as out:
      while chunk := source.read(1 << 20):
        space -= len(chunk)
        if space < 0:
          raise QuotaError(
            'waiting uploads take all the space they may; try again when the'
            ' queue is shorter'
          )
        out.write(chunk)
      out.flush()
      os.fsync(out.fileno())
  except BaseException as error:
    path.unlink(missing_ok=True)
    if isinstance(error, OSError):
      raise QuotaError(
        f'the upload cannot be saved: {error.strerror}'
      ) from error
    raise
  return path.name


def queue(
  store: Store,
  kind: str,
  name: str,
  settings: Mapping[str, Any],
  upload: str | None,
  submitter: str,
) -> int:
  """Appends a job to the queue; returns its number."""
  row = {
    'kind': kind,
    'name': name,
    'settings': json.dumps(dict(settings)),
    'upload': upload,
    'submitter': submitter,
    'status': 'queued',
    'attempts': 0,
    'message': '',
    'created': now(),
  }
  with store.transaction():
    return store.insert('job', row)


def _set(store: Store, number: int, status: str, message: str = '') -> None:
  finished = now() if status in ('done', 'failed') else None
  with store.transaction():
    store.run(
      'UPDATE job SET status = ?, message = ?, finished = ? WHERE id = ?',
      (status, message[:4000], finished, number),
    )


def recover(store: Store) -> None:
  """Requeues the job of a worker that died, or fails it after `ATTEMPTS`."""
  with store.transaction():
    store.run(
      "UPDATE job SET status = 'failed', finished = ?, message ="
      " 'the worker died ' || attempts || ' times during this job; the board is"
      " unchanged' WHERE status = 'running' AND attempts >= ?",
      (now(), ATTEMPTS),
    )
    store.run("UPDATE job SET status = 'queued' WHERE status = 'running'")


def work(store: Store) -> bool:
  """Runs the next job; returns whether there was one."""
  with store.transaction():
    jobs = _jobs(
      store,
      "WHERE status IN ('stored', 'queued')"
      " ORDER BY status = 'queued', id LIMIT 1",
    )
    if not jobs:
      return False
    (job,) = jobs
    if job.status == 'queued':
      store.run(
        "UPDATE job SET status = 'running', attempts = attempts + 1,"
        ' started = ? WHERE id = ?',
        (now(), job.id),
      )
  upload = uploads(store) / (job.upload or ' ')
  try:
    if job.status == 'stored':
      submissions.complete(store)
      renewal.renew(store, f'{job.kind} {job.name}')
    else:
      _submit(store, job, upload)
    _set(store, job.id, 'done', _result(store, job))
  except (BoardError, ValueError, OSError) as error:
    # The submitter does not know the upload's random name.
    _set(store, job.id, 'failed', str(error).replace(str(upload), 'file'))
  except Exception as error:  # A defect must not stop the queue.
    _set(store, job.id, 'failed', f'{type(error).__name__}: {error}')
    raise
  finally:
    ended = get(store, job.id)
    if ended is not None and not ended.waiting:
      upload.unlink(missing_ok=True)
  return True


def _submit(store: Store, job: Job, upload: Path) -> None:
  settings = job.settings
  also: Callable[[], None] = lambda: _set(store, job.id, 'stored')  # noqa: E731
  names = ('description', 'seconds', 'parameters', 'negated')
  fields = {n: settings[n] for n in names if n in settings}
  if job.kind == 'generator':
    generator = Generator(job.name, settings['human'], **fields)
    submissions.add_generator(store, generator, upload, also=also)
    return
  column = settings['column'] or None
  if job.kind == 'human':
    submissions.add_human(store, upload, job.name, column, also=also)
    return
  if settings['type'] == 'library':
    metric = submissions.library_metric(
      settings['library'], title=job.name, **fields
    )
    submissions.add_metric(store, metric, also=also)
  elif settings['type'] == 'scores':
    metric = Metric(job.name, 'column', **fields)
    submissions.add_score_file(store, metric, upload, column, also=also)
  else:
    program = upload.read_bytes()
    metric = submissions.command_metric(
      job.name,
      program,
      references=not settings['referenceless'],
      several=settings['several'],
      **fields,
    )
    submissions.add_metric(store, metric, program, also=also)


def _result(store: Store, job: Job) -> str:
  """The message of a finished job."""
  value = renewal.current(store)
  if job.kind == 'human':
    return f'{value["board"]["rated"]} outputs are rated now'
  entries = value['generators' if job.kind == 'generator' else 'metrics']
  text = renewal.placed(entries, job.name)
  failed = store.failures_of(job.name) if job.kind == 'generator' else []
  return '; '.join([text, *failed])


@contextlib.contextmanager
def only_worker(path: str | os.PathLike[str]) -> Iterator[None]:
  """Holds the lock of a board's worker; waits for another worker to end."""
  with open(f'{os.fspath(path)}.worker', 'w') as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      print(
        f'{path}: another worker runs the jobs of this board; waiting for its'
        ' end',
        file=sys.stderr,
        flush=True,
      )
      fcntl.flock(lock, fcntl.LOCK_EX)
    yield


def run_worker(path: str | os.PathLike[str], pause: float = 0.5) -> None:
  """Runs jobs for ever, waiting `pause` seconds when the queue is empty."""
  with only_worker(path), Store(path) as store:
    recover(store)
    while True:
      if not work(store):
        time.sleep(pause)


def _end_with(server: IO[bytes]) -> None:
  """Ends this process, a job included, when its server closes the pipe."""
  server.read()
  os._exit(0)


def main() -> int:
  """The worker; standard input is a pipe that its server holds open."""
  threading.Thread(
    target=_end_with, args=[sys.stdin.buffer], daemon=True
  ).start()
  try:
    run_worker(sys.argv[1])
  except Exception as error:
    code = errors.report('t5score board serve: worker', error)
    if code is None:
      raise
    return code
  return 0


if __name__ == '__main__':
  sys.exit(main())
