"""Names on the Hugging Face Hub: what is downloaded, and what errors say."""

import sys

import pytest
import tiny_encoder

from t5score_jax.checkpoints import hub, kinds
from t5score_jax.metrics import registry

huggingface_hub = pytest.importorskip('huggingface_hub')


@pytest.fixture(autouse=True)
def _nothing_remembered():
  hub.folder.cache_clear()
  yield
  hub.folder.cache_clear()


def test_names():
  assert hub.is_name('google/mt5-base') and hub.is_name('a/b.c_d-e')
  for text in ('mt5-base', './a', 'a/b/c', '/a', 'a/', '../a', 'a//b', '~/a'):
    assert not hub.is_name(text)


def test_one_format_of_the_weights_is_downloaded():
  small = ['config.json', 'spiece.model', 'README.md', '1_Pooling/config.json']
  files = [
    *small,
    'model-00001-of-00002.safetensors',
    'model.safetensors.index.json',
    'pytorch_model.bin',
    'tf_model.h5',
    'flax_model.msgpack',
    'onnx/model.onnx',
    'onnx/config.json',
    '.gitattributes',
  ]
  assert set(hub.choose_files(files)) == {*files[:6]}
  assert set(hub.choose_files([*small, *files[6:]])) == {*small, files[6]}
  comet = ['hparams.yaml', 'checkpoints/model.ckpt', 'README.md']
  assert hub.choose_files(comet) == ['hparams.yaml', 'README.md', comet[1]]


def test_a_name_is_downloaded_once_and_loaded(tmp_path, monkeypatch):
  tiny_encoder.make(tmp_path / 'models' / 'tiny')
  asked = []

  def download(name, **options):
    asked.append(name)
    assert 'config.json' in options['allow_patterns']
    return str(tmp_path / 'models' / 'tiny')

  names = [path.name for path in (tmp_path / 'models' / 'tiny').iterdir()]
  monkeypatch.setattr(huggingface_hub, 'snapshot_download', download)
  monkeypatch.setattr(
    huggingface_hub.HfApi, 'list_repo_files', lambda self, name: names
  )
  monkeypatch.chdir(tmp_path)
  metric = registry.load('someone/tiny', metric='bertscore')
  assert 'model:tiny|' in metric.signature()
  assert asked == ['someone/tiny']
  # A folder of that name goes before.
  tiny_encoder.make(tmp_path / 'someone' / 'tiny')
  hub.folder.cache_clear()
  assert str(kinds.folder('someone/tiny')) == 'someone/tiny'


def test_offline_and_without_the_extra_errors_say_what_to_fetch(monkeypatch):
  with pytest.raises(hub.HubError, match='cannot be downloaded') as caught:
    kinds.folder('google/mt5-base')
  command = 'hf download google/mt5-base --local-dir mt5-base'
  assert command in str(caught.value)
  with pytest.raises(FileNotFoundError, match='hf download some/model'):
    kinds.folder('some/model')
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  with pytest.raises(hub.HubError, match=r't5score-jax\[hub\]') as caught:
    kinds.folder('google/mt5-base')
  assert command in str(caught.value)
