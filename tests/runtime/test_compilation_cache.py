"""Where compiled programs are kept, and that they are found again."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from t5score_jax.runtime import compilation_cache


@pytest.fixture
def environment(monkeypatch, tmp_path):
  monkeypatch.delenv(compilation_cache.VARIABLE, raising=False)
  monkeypatch.delenv('XDG_CACHE_HOME', raising=False)
  monkeypatch.setenv('HOME', str(tmp_path))
  # The tests' own cache would go before any other.
  kept = jax.config.jax_compilation_cache_dir
  jax.config.update('jax_compilation_cache_dir', None)
  yield monkeypatch
  jax.config.update('jax_compilation_cache_dir', kept)


def test_folder(environment, tmp_path):
  found = compilation_cache.folder()
  assert found.parent == tmp_path / '.cache' / 't5score-jax'
  assert found.name.startswith('xla-')
  environment.setenv('XDG_CACHE_HOME', str(tmp_path / 'x'))
  assert compilation_cache.folder().parent == tmp_path / 'x' / 't5score-jax'
  environment.setenv('XDG_CACHE_HOME', 'relative')
  assert compilation_cache.folder() == found
  environment.setenv(compilation_cache.VARIABLE, '/mine')
  assert compilation_cache.folder() == Path('/mine') / found.name


@pytest.mark.parametrize('value', ['off', 'OFF', '0', 'no', 'false'])
def test_no_cache(environment, value):
  environment.setenv(compilation_cache.VARIABLE, value)
  assert compilation_cache.folder() is None
  compilation_cache.enable()
  assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_that_cannot_be_made_is_named_once(
  environment, tmp_path, caplog
):
  (tmp_path / 'file').touch()
  environment.setenv(compilation_cache.VARIABLE, str(tmp_path / 'file'))
  for _ in range(2):
    compilation_cache.enable()
  assert jax.config.jax_compilation_cache_dir is None
  (record,) = caplog.records
  assert str(tmp_path / 'file') in record.getMessage()
  assert compilation_cache.VARIABLE in record.getMessage()


def test_a_failed_write_leaves_nothing_and_is_named_once(
  tmp_path, monkeypatch, caplog
):
  def replace(source, target):
    raise OSError(errno.ENOSPC, 'No space left on device')

  cache = compilation_cache.ProgramCache(tmp_path)
  cache.put('whole', b'program')
  monkeypatch.setattr(os, 'replace', replace)
  for key in 'ab':
    cache.put(key, b'program')
  assert cache.get('a') is None and cache.get('whole') == b'program'
  assert len(list(tmp_path.iterdir())) == 1
  (record,) = caplog.records
  assert f'{tmp_path}: No space left' in record.getMessage()


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_damage_heals(
  random_bundle, tmp_path
):
  program = (
    'import logging, sys\n'
    'import jax\n'
    'from t5score_jax import load\n'
    'update = jax.config.update\n'
    # Programs as small as these are not worth keeping otherwise.
    'jax.config.update = lambda name, value: update(\n'
    "  name, 0.0 if 'secs' in name else value)\n"
    'hits = []\n'
    'jax.monitoring.register_event_listener(\n'
    "  lambda name, **kw: hits.append(name.rsplit('/', 1)[1]))\n"
    f"load({str(random_bundle)!r}).score(['a cat'], ['the cat'])\n"
    "print(hits.count('cache_hits'), hits.count('cache_misses'))\n"
  )
  environment = {
    **{k: v for k, v in os.environ.items() if not k.startswith('JAX_')},
    compilation_cache.VARIABLE: str(tmp_path),
    'JAX_PLATFORMS': 'cpu',
  }

  def run():
    done = subprocess.run(
      [sys.executable, '-c', program],
      capture_output=True,
      text=True,
      env=environment,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [int(word) for word in done.stdout.split()]

  hits, misses = run()
  assert hits == 0 and misses >= 2  # encoder and decoder
  assert run() == [misses, 0]
  first, second, *rest = entries = [
    path for path in tmp_path.glob('xla-*/*') if path.is_file()
  ]
  assert len(entries) == misses
  # As a full disk, a killed process and a bad disk leave them.
  first.write_bytes(b'')
  second.write_bytes(second.read_bytes()[:-100])
  for path in rest:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
  assert run() == [0, misses]
  assert run() == [misses, 0]
