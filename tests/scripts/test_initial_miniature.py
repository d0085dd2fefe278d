"""`initial_miniature.py`: the folders, tokenizers and numbers it takes."""

import dataclasses
import importlib.util
import pathlib

import pytest
import tiny_encoder

from t5score_jax.checkpoints import cross_encoders
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.metrics import registry

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def main():
  path = ROOT / 'scripts' / 'reproduce' / 'initial_miniature.py'
  spec = importlib.util.spec_from_file_location('initial_miniature', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.main


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """Encoders: BERT's with a list, the same without, and XLM-R's kind."""
  folder = tmp_path_factory.mktemp('initial')
  tiny_encoder.make(folder / 'encoder')
  bundle = encoders.load_encoder(folder / 'encoder')
  encoders.save_encoder(bundle, folder / 'json')
  assert not (folder / 'json' / 'vocab.txt').exists()
  config = dataclasses.replace(tiny_encoder.CONFIG, position_offset=2, pad_id=1)
  tiny_encoder.make(folder / 'offset', config)
  (folder / 'texts.txt').write_text('the cat sat .\na dog ran !\n')
  (folder / 'empty.txt').write_text('')
  (folder / 'blank.txt').write_text('\n  \n')
  return folder


def _files(folder):
  return {
    p.relative_to(folder): p.read_bytes()
    for p in folder.rglob('*')
    if p.is_file()
  }


TRUNCATED = ['--start', 'truncated', '--layers', '1']


@pytest.mark.parametrize('place', ['encoder', 'encoder/new', 'taken', 'file'])
def test_what_is_there_is_left_as_it_is(main, made, tmp_path, place, capsys):
  tiny_encoder.make(tmp_path / 'encoder')
  (tmp_path / 'taken').mkdir()
  (tmp_path / 'taken' / 'config.json').write_text('mine')
  (tmp_path / 'file').write_text('mine')
  before = _files(tmp_path)
  encoder, out = str(tmp_path / 'encoder'), str(tmp_path / place)
  assert main([encoder, '-o', out, *TRUNCATED]) == 1
  err = capsys.readouterr().err
  assert place in err and 'choose another' in err and err.count('\n') == 1
  assert _files(tmp_path) == before


def test_a_failure_leaves_nothing(main, made, tmp_path, monkeypatch, capsys):
  def save(self, folder):
    raise OSError('no space left')

  tokenizer = encoders.load_encoder(made / 'encoder').tokenizer
  monkeypatch.setattr(type(tokenizer), 'save', save)
  out = tmp_path / 'out'
  assert main([str(made / 'encoder'), '-o', str(out), *TRUNCATED]) == 1
  assert 'no space left' in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('encoder', ['encoder', 'json'])
def test_truncated_needs_no_list_of_pieces(main, made, tmp_path, encoder):
  out = tmp_path / 'out'
  out.mkdir()  # empty, so free
  assert not main([str(made / encoder), '-o', str(out), *TRUNCATED])
  found = cross_encoders.load(out)
  # The encoder has 24 positions, fewer than the usual 128.
  assert found.settings == {'name': 'out', 'max_length': 24}
  tokenizer = encoders.load_encoder(made / encoder).tokenizer
  assert found.tokenizer.fingerprint() == tokenizer.fingerprint()
  scores = registry.load_metric('frugalscore', model=str(out)).score(
    ['the cat sat ' * 20], ['a dog']
  )
  assert len(scores.values) == 1


TEXTS = ['--texts', 'texts.txt']


@pytest.mark.parametrize(
  ('encoder', 'arguments', 'code', 'message'),
  [
    ('encoder', [*TRUNCATED, '--positions', '25'], 1, '--positions 25'),
    ('encoder', [*TRUNCATED, '--positions', '4'], 1, 'at least 8'),
    ('json', TEXTS, 1, 'vocab.txt: is not there'),
    ('json', [*TRUNCATED, *TEXTS, '--vocabulary', '20'], 1, 'vocab.txt'),
    ('offset', TRUNCATED, 1, 'can only be a BERT'),
    ('encoder', [*TEXTS, '--heads', '0'], 2, '--heads: 0: a whole number'),
    ('encoder', [*TEXTS, '--limit', '0'], 2, '--limit'),
    ('encoder', [*TEXTS, '--width=-64'], 2, '--width: -64'),
    ('encoder', [*TEXTS, '--width', '8'], 1, '--width 8 with --heads 2'),
    ('encoder', ['--texts', 'empty.txt'], 1, 'empty.txt: there is no text'),
    ('encoder', ['--texts', 'blank.txt'], 1, 'blank.txt: there is no text'),
  ],
)
def test_one_line_says_what_is_wrong(
  main, made, tmp_path, encoder, arguments, code, message, capsys
):
  words = [str(made / a) if a.endswith('.txt') else a for a in arguments]
  command = [str(made / encoder), '-o', str(tmp_path / 'out'), *words]
  if code == 2:
    with pytest.raises(SystemExit) as caught:
      main(command)
    assert caught.value.code == 2
  else:
    assert main(command) == code
  err = capsys.readouterr().err
  assert message in err and 'Traceback' not in err
  assert code == 2 or err.count('\n') == 1
  assert not list(tmp_path.iterdir())
