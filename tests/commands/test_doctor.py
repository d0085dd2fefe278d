"""`t5score doctor`: what it finds here, and what it calls broken."""

import importlib.metadata
import json
import shutil

import pytest

from t5score_jax import cli
from t5score_jax.checkpoints import kinds
from t5score_jax.runtime import compilation_cache, installation
from t5score_jax.version import __version__


@pytest.fixture
def findings(capsys, monkeypatch, tmp_path):
  """Runs the verb; returns its findings by (section, name)."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))

  def call(*arguments, code=0):
    capsys.readouterr()
    assert cli.main(['doctor', '--format', 'json', *arguments]) == code
    rows = json.loads(capsys.readouterr().out)
    return {(row['section'], row['name']): row for row in rows}

  return call


def _requires(monkeypatch, *lines):
  """Changes what the metadata of the installation asks for."""
  real = importlib.metadata.requires
  monkeypatch.setattr(
    importlib.metadata,
    'requires',
    lambda name: (
      list(lines) if name == installation.DISTRIBUTION else real(name)
    ),
  )
  monkeypatch.setattr(installation, 'extras', lambda: ['plot'])


@pytest.fixture
def no_models(monkeypatch, tmp_path):
  monkeypatch.setattr(kinds, 'PRETRAINED', tmp_path / 'none')


def test_what_it_finds_here(findings):
  seen = findings()
  assert seen['versions', 't5score-jax']['detail'] == __version__
  numpy = importlib.metadata.version('numpy')
  assert seen['versions', 'numpy']['detail'] == numpy
  assert any(section == 'devices' for section, _ in seen)
  assert (
    '2,558,592 parameters; scores' in (seen['models', 't5score-tiny']['detail'])
  )


def test_caches(findings, monkeypatch, no_models, tmp_path):
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR', raising=False)
  monkeypatch.setenv(compilation_cache.VARIABLE, str(tmp_path))
  folder = compilation_cache.folder()
  folder.mkdir()
  (folder / 'one').write_bytes(bytes(2048))
  seen = findings()
  assert seen['caches', 'compiled programs']['detail'] == (
    f'{folder}: 1 files, 2.0 KiB'
  )
  assert seen['caches', 'encoders']['detail'].endswith('0 files, 0 B')
  monkeypatch.setattr('os.access', lambda *_: False)
  seen = findings()['caches', 'compiled programs']
  assert seen['state'] == 'note' and 'cannot be written' in seen['detail']


def test_missing_and_old_packages(findings, monkeypatch, no_models):
  _requires(
    monkeypatch,
    'numpy>=1.26',
    'scipy>=999.0',
    'not-there-at-all>=1.0',
    'neither-this; extra == "plot"',
  )
  seen = findings(code=1)
  assert seen['versions', 'numpy']['state'] == 'ok'
  old = seen['versions', 'scipy']
  assert old['state'] == 'broken'
  assert old['detail'].endswith("pip install -U 'scipy>=999.0'")
  assert seen['versions', 'not-there-at-all']['state'] == 'broken'
  # An extra that is missing is nobody's fault.
  extra = seen['extras', 'plot']
  assert extra['state'] == 'note'
  assert extra['detail'] == (
    "missing: neither-this; pip install 't5score-jax[plot]'"
  )


def test_an_extra_is_checked_with_the_extras_of_its_packages(monkeypatch):
  real = importlib.metadata.requires
  lines = {
    installation.DISTRIBUTION: ['numpy[x]>=1; extra == "plot"'],
    'numpy': ['scipy; extra == "x"', 'absent; extra == "y"'],
  }
  monkeypatch.setattr(
    importlib.metadata, 'requires', lambda n: lines.get(n) or real(n)
  )
  assert [p.name for p in installation.packages('plot')] == ['numpy', 'scipy']
  assert installation.packages() == []


def test_a_package_that_cannot_be_imported(findings, monkeypatch, no_models):
  _requires(monkeypatch, 'numpy>=1.0; extra == "plot"')
  assert findings('--imports')['extras', 'plot']['state'] == 'ok'
  monkeypatch.setattr(installation, '_modules', lambda name: ['no_such_module'])
  seen = findings('--imports', code=1)['extras', 'plot']
  assert seen['state'] == 'broken'
  assert (
    "numpy: ModuleNotFoundError: No module named 'no_such" in (seen['detail'])
  )


def test_modules_of_a_distribution():
  assert installation._modules('PyYAML') == ['_yaml', 'yaml']
  assert installation._modules('scikit-learn') == ['sklearn']
  assert installation._modules('numpy') == ['numpy']


def test_a_damaged_model(findings, monkeypatch, tmp_path):
  models = tmp_path / 'models'
  shutil.copytree(kinds.PRETRAINED / 'frugalscore-tiny', models / 'mine')
  (models / 'mine' / 'model.safetensors').write_bytes(b'short')
  monkeypatch.setattr(kinds, 'PRETRAINED', models)
  seen = findings(code=1)
  assert seen['models', 'mine']['state'] == 'broken'


def test_an_error_of_a_section_is_a_finding(
  findings, monkeypatch, no_models, capsys
):
  def fails():
    raise OSError('no disk')

  monkeypatch.setattr(compilation_cache, 'folder', fails)
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR', raising=False)
  seen = findings(code=1)
  assert seen['caches', 'OSError']['detail'] == 'no disk'
  assert ('versions', 'numpy') in seen
  assert cli.main(['doctor']) == 1
  shown = capsys.readouterr().out
  assert '  OSError  ' in shown and 'BROKEN: no disk' in shown
  assert shown.endswith('\n1 broken\n')
