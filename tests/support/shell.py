"""Runs shell scripts whose `t5score` commands are answered by this process.

A block of a guide has many commands, and each would spend seconds on imports.
Here `t5score` is a small client, which passes its arguments, its folder and its
three standard streams over a socket; `cli.main` runs with them, one command at
a time. That a command works as a process of its own is `test_packaging.py`.
"""

import contextlib
import io
import json
import os
import pathlib
import select
import socket
import subprocess
import sys

from t5score_jax import cli

_CLIENT = """#!{python} -SE
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
call = json.dumps([os.getcwd(), sys.argv[1:]]).encode()
socket.send_fds(server, [call], [0, 1, 2])
for descriptor in range(3):
  os.close(descriptor)
os._exit(server.recv(1)[0])
"""


def run(
  script: str, folder: pathlib.Path, bin_folder: pathlib.Path
) -> subprocess.CompletedProcess:
  """Runs a bash script in a folder; stops at the first command that fails."""
  address = str(bin_folder / 'socket')
  client = bin_folder / 't5score'
  client.write_text(_CLIENT.format(python=sys.executable, address=address))
  client.chmod(0o755)
  with socket.socket(socket.AF_UNIX) as server:
    server.bind(address)
    server.listen()
    with open(bin_folder / 'output', 'w+') as output:
      shell = subprocess.Popen(
        ['bash', '-euo', 'pipefail', '-c', script],
        cwd=folder,
        env={
          **os.environ,
          'PATH': f'{bin_folder}:{pathlib.Path(sys.executable).parent}:'
          '/usr/bin:/bin',
          'HOME': str(folder),
        },
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
      )
      while shell.poll() is None:
        if select.select([server], [], [], 0.02)[0]:
          _answer(server)
      output.seek(0)
      printed = output.read()
  pathlib.Path(address).unlink()
  return subprocess.CompletedProcess(script, shell.returncode, printed)


def _answer(server: socket.socket) -> None:
  connection, _ = server.accept()
  with connection:
    call, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    folder, arguments = json.loads(call)
    code = _call(arguments, folder, descriptors)
    with contextlib.suppress(BrokenPipeError):
      connection.send(bytes([code & 255]))


def _call(arguments: list[str], folder: str, descriptors: list[int]) -> int:
  """`cli.main` in a folder, with the streams of another process."""
  kept, streams = os.getcwd(), (sys.stdin, sys.stdout, sys.stderr)
  files = [
    io.TextIOWrapper(os.fdopen(d, mode), encoding='utf-8', write_through=True)
    for d, mode in zip(descriptors, ('rb', 'wb', 'wb'), strict=True)
  ]
  os.chdir(folder)
  sys.stdin, sys.stdout, sys.stderr = files
  try:
    return cli.main(arguments)
  except SystemExit as end:
    return int(end.code or 0)
  finally:
    sys.stdin, sys.stdout, sys.stderr = streams
    os.chdir(kept)
    for file in files:
      with contextlib.suppress(BrokenPipeError):
        file.close()
