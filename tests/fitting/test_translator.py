"""Training of a translator on pairs: what it learns, resuming, errors."""

import dataclasses
import json
import signal

import numpy as np
import pytest

from t5score_jax.checkpoints.bundle import load_bundle
from t5score_jax.crosslingual.pseudo_references import PseudoReferences
from t5score_jax.data.runs import RunError
from t5score_jax.errors import InputError, OptionError
from t5score_jax.fitting import fit, translator
from t5score_jax.fitting.translator import Settings
from t5score_jax.training import evaluators

# 'b.' for 'a b.': a model that only copies or only repeats is wrong.
LETTERS = 'abcdefgh'
PAIRS = [(f'{x}{y}', f'{y}.') for x in LETTERS for y in LETTERS]
SETTINGS = Settings(
  epochs=40, batch_size=16, learning_rate=2e-2, dropout_rate=0.0, held_out=0.2
)


FEW = dataclasses.replace(SETTINGS, epochs=5)


@pytest.fixture(scope='module')
def trained(tmp_path_factory, bytes_bundle):
  folder = tmp_path_factory.mktemp('translator') / 'model'
  lines = []
  result = translator.train(
    PAIRS + PAIRS[:5], bytes_bundle, folder, FEW, say=lines.append
  )
  return result, lines


def test_what_is_trained_on_is_noted(trained):
  result, lines = trained
  assert (result.pairs, result.held_out, result.cut) == (64, 13, 0)
  assert '64 pairs, 13 of them held out' in lines[0]
  assert f'held-out loss {result.loss:.4f}' in lines[-1]


@pytest.mark.slow
def test_it_translates_pairs_that_it_has_not_seen(tmp_path, bytes_bundle):
  result = translator.train(PAIRS, bytes_bundle, tmp_path / 'model', SETTINGS)
  assert result.loss is not None and result.loss < 0.2
  sources, targets = zip(*PAIRS, strict=True)
  found = PseudoReferences(result.folder, max_tokens=4)(sources)
  assert np.mean(np.array(found) == targets) > 0.9
  before = PseudoReferences(bytes_bundle, max_tokens=4)(sources)
  assert np.mean(np.array(before) == targets) < 0.1


def test_the_folder_is_a_bundle_with_its_name(trained, bytes_bundle):
  folder = trained[0].folder
  bundle, start = load_bundle(folder), load_bundle(bytes_bundle)
  assert bundle.settings == {**start.settings, 'name': 'model'}
  assert bundle.config == dataclasses.replace(start.config, dropout_rate=0.0)
  assert sorted(path.name for path in folder.parent.iterdir()) == ['model']


def test_the_same_call_trains_once_and_another_one_is_refused(
  trained, bytes_bundle, monkeypatch
):
  result, _ = trained
  monkeypatch.setattr(translator.loop, 'train', None)
  again = translator.train(PAIRS, bytes_bundle, result.folder, FEW)
  assert again == result
  for pairs, change in ((PAIRS[1:], {}), (PAIRS, {'seed': 1})):
    with pytest.raises(RunError, match='another run'):
      translator.train(
        pairs,
        bytes_bundle,
        result.folder,
        dataclasses.replace(FEW, **change),
      )


def test_a_stopped_run_resumes_with_the_same_weights(
  trained, bytes_bundle, tmp_path, monkeypatch
):
  evaluate = evaluators.EvaluationLoss.evaluate
  calls = []

  def stop(self, params):
    calls.append(params)
    if len(calls) == 3:
      signal.raise_signal(signal.SIGTERM)
    return evaluate(self, params)

  monkeypatch.setattr(evaluators.EvaluationLoss, 'evaluate', stop)
  folder, work = tmp_path / 'model', tmp_path / 'work'
  with pytest.raises(fit.Stopped, match='resumes'):
    translator.train(PAIRS, bytes_bundle, folder, FEW, work=work)
  assert not folder.exists()
  with pytest.raises(RunError, match='another run'):
    translator.train(PAIRS[1:], bytes_bundle, folder, FEW, work=work)
  result = translator.train(PAIRS, bytes_bundle, folder, FEW, work=work)
  assert len(calls) > 3 and work.is_dir()
  whole, _ = trained
  assert (result.loss, result.step) == (whole.loss, whole.step)
  weights = [
    (path / 'model.safetensors').read_bytes() for path in (folder, whole.folder)
  ]
  assert weights[0] == weights[1]


def test_arrays_hold_the_pairs_in_buckets(tmp_path, random_model):
  long = ' '.join(['the moon'] * 30)
  pairs = [(f'a dog {n}', 'the moon') for n in range(19)] + [(long, 'a dog')]
  settings = Settings(held_out=0.1, max_length=40)
  counts = translator._write_arrays(
    tmp_path / 'a', pairs, random_model, settings
  )
  assert counts == {'pairs': 20, 'held_out': 2, 'cut': 1}
  rows = []
  vocabulary = random_model.vocabulary
  for folder in [
    *(tmp_path / 'a' / 'train').iterdir(),
    tmp_path / 'a' / 'held_out',
  ]:
    sides = [
      np.load(folder / f'{name}.npy')
      for name in ('encoder_input_tokens', 'decoder_target_tokens')
    ]
    if folder.name != 'held_out':
      assert {x.shape[1] for x in sides} == {int(folder.name)}
    for row in zip(*sides, strict=True):
      texts = []
      for ids in row:
        length = int(np.argmax(ids == 1)) + 1
        assert ids[length - 1] == 1 and not ids[length:].any()
        texts.append(vocabulary.decode(ids[:length]))
      rows.append(tuple(texts))
  assert len(rows) == 20
  short = {p for p in rows if p[1] == 'the moon'}
  assert short == {
    (vocabulary.decode(vocabulary.encode(s)), t) for s, t in pairs[:19]
  }


@pytest.mark.parametrize(
  ('pairs', 'message'),
  [
    ([], 'no sentence pairs'),
    ([('a', 'b'), ('a', ' ')], 'pair 2 has an empty'),
  ],
)
def test_pairs_that_cannot_be_learned(pairs, message, tmp_path, bytes_bundle):
  with pytest.raises(InputError, match=message):
    translator.train(pairs, bytes_bundle, tmp_path / 'm')
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'change',
  [
    {'epochs': 0},
    {'batch_size': 0},
    {'learning_rate': -1.0},
    {'optimizer': 'sgd'},
    {'held_out': 1.0},
    {'max_length': 1},
  ],
)
def test_settings_out_of_range(change):
  with pytest.raises(OptionError, match=next(iter(change))):
    Settings(**change)


def test_a_folder_of_something_else_is_left_alone(tmp_path, bytes_bundle):
  (tmp_path / 'm').mkdir()
  (tmp_path / 'm' / 'thesis.txt').write_text('mine')
  with pytest.raises(RunError, match='no translator.json'):
    translator.train(PAIRS, bytes_bundle, tmp_path / 'm')
  assert json.dumps((tmp_path / 'm' / 'thesis.txt').read_text()) == '"mine"'
