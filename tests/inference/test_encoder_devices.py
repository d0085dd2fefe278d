"""Metrics with encoders and language models on many devices and processes."""

import json
import shutil
import subprocess
import sys

import devices
import jax
import numpy as np
import pytest
import score_on_devices
import tiny_encoder
import tiny_gpt2
import tiny_unified

from t5score_jax.checkpoints import regressors
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.metrics import registry
from tests.checkpoints import test_cross_encoders as test_miniatures
from tests.inference import test_embedding as test_embedding
from tests.runtime import test_processes as test_processes

LONG = test_embedding.LONG
TEXTS = (
  ['the cat sat', LONG, '', 'a dog ran', 'green hill', 'the cat sat', LONG],
  ['a cat sat', 'the dogs', 'the mat', LONG, 'a hill', LONG, 'the dogs'],
  ['the mat', 'a hill', LONG, 'dog', 'cat .', 'the mat', 'a hill'],
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory, random_bundle):
  folder = tmp_path_factory.mktemp('models')
  tiny_encoder.make(folder / 'encoder')
  encoder = encoders.load_encoder(folder / 'encoder')
  regressors.save(test_embedding.make(encoder), folder / 'estimator')
  regressors.save(tiny_unified.make(encoder, xcomet=True), folder / 'xcomet')
  test_miniatures.make(folder)
  (folder / 'm').rename(folder / 'miniature')
  tiny_gpt2.make(folder / 'gpt2')
  shutil.copytree(random_bundle, folder / 'bundle')
  (folder / 'texts.json').write_text(json.dumps(TEXTS))
  return folder


@pytest.fixture(scope='module')
def expected(folder):
  found = {}
  for name, options in score_on_devices.METRICS.items():
    options = {**options, 'model': folder / options['model']}
    metric = registry.load_metric(score_on_devices.metric_of(name), **options)
    found[name] = metric.score(*TEXTS)
  return found


def _run(folder, count, *arguments):
  return subprocess.Popen(
    [sys.executable, score_on_devices.__file__, str(folder), *arguments],
    env=devices.environment(count),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _check(found, expected):
  for name, wanted in expected.items():
    for partitions in (1, 2):
      one = found[f'{name}-{partitions}']
      np.testing.assert_allclose(one['scores'], wanted.values, atol=1e-5)
      assert one['signature'] == wanted.signature
      assert one['truncated'] == [wanted.truncated, wanted.texts]
      width = 32 if name == 'lm-t5' else 24
      assert one['shard'] == [16, width // partitions]


@pytest.mark.slow
def test_four_devices_and_two_by_two(folder, expected):
  assert jax.local_device_count() == 1
  process = _run(folder, 4)
  _, error = process.communicate(timeout=300)
  assert process.returncode == 0, error
  found = json.loads((folder / 'found-0.json').read_text())
  assert found['devices'] == [1, 4]
  assert found['sent'] == []
  _check(found, expected)


@pytest.mark.slow
def test_two_processes(folder, expected):
  port = str(test_processes.free_port())
  running = [_run(folder, 2, port, str(index)) for index in range(2)]
  for process in running:
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
  sizes = []
  for index in range(2):
    found = json.loads((folder / f'found-{index}.json').read_text())
    assert found['devices'] == [2, 2]
    _check(found, expected)
    sizes.append(found['sent'])
    assert set(found['differ']) == set(expected)
    assert all(
      'processes differ in the texts' in w for w in (found['differ'].values())
    )
  # Each metric sends twice, and each process does a part of every one.
  assert [len(s) for s in sizes] == [14, 14]
  assert all(one > 0 for s in sizes for one in s)
