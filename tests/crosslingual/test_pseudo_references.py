"""Translations of sources, by a model and from a file."""

import json
import shutil

import pytest

from t5score_jax import cli
from t5score_jax.checkpoints.bundle import load_bundle, save_bundle
from t5score_jax.crosslingual.pseudo_references import PseudoReferences
from t5score_jax.data.files import RecordError
from t5score_jax.errors import InputError, OptionError
from t5score_jax.inference import generation
from t5score_jax.inference.search import Method

SOURCES = ['the cat sees music.', '', 'a dog follows the moon.', ' \t']


@pytest.mark.parametrize('beams', [1, 3])
def test_a_model_translates_each_distinct_source_once(random_bundle, beams):
  method = Method(max_tokens=6, beams=beams)
  generator = generation.Generator(load_bundle(random_bundle), method)
  words = [SOURCES[0], SOURCES[2]]
  one, two = (x[0].text for x in generator.generate(words).outputs)
  assert one or two
  translate = PseudoReferences(str(random_bundle), beams=beams, max_tokens=6)
  seen = []
  found = translate(
    SOURCES * 2, progress=lambda done, total: seen.append((done, total))
  )
  assert found == [one, '', two, ''] * 2
  assert seen[-1] == (2, 2)
  assert translate([]) == [] and translate(['']) == ['']
  identity = translate.identity()
  assert identity['pseudo_beams'] == str(beams)
  assert identity['pseudo'].startswith('random@')
  plain = PseudoReferences(random_bundle, max_tokens=6).identity()
  assert (identity == plain) == (beams == 1)


def test_a_model_of_lower_case_reads_lower_case(
  random_bundle, random_model, tmp_path
):
  folder = tmp_path / 'lower'
  random_model.settings['lowercase'] = True
  try:
    save_bundle(folder, random_model, 'float32')
  finally:
    del random_model.settings['lowercase']
  lower, plain = (
    PseudoReferences(path, max_tokens=6) for path in (folder, random_bundle)
  )
  assert lower(['The Cat SEES music.']) == plain(['the cat sees music.'])
  assert plain(['The Cat SEES music.']) != plain(['the cat sees music.'])


def test_a_file(tmp_path, random_bundle):
  path = tmp_path / 'a.tsv'
  rows = ['source\ttranslation', 'ein Hund\ta dog', 'zwei\ttwo', 'leer\t']
  path.write_text('\n'.join(rows) + '\n')
  translate = PseudoReferences(path)
  assert translate(['zwei', '', 'ein  Hund ', 'zwei', 'leer']) == [
    *('two', '', 'a dog', 'two', ''),
  ]
  # The digest is of the translations, not of their order, and not of the name.
  other = tmp_path / 'b.jsonl'
  lines = [
    json.dumps({'inputs': source, 'prediction': text})
    for source, text in (('leer', ''), ('zwei', 'two'), ('ein Hund', 'a dog'))
  ]
  other.write_text('\n'.join(lines) + '\n')
  digests = [PseudoReferences(p).identity()['pseudo'] for p in (path, other)]
  assert digests[0].partition('@')[0] == 'a.tsv'
  assert digests[0].partition('@')[2] == digests[1].partition('@')[2]
  path.write_text(path.read_text().replace('a dog', 'the dog'))
  changed = PseudoReferences(path).identity()['pseudo']
  assert changed != digests[0]


def test_a_file_that_infer_wrote_is_the_model(tmp_path, random_bundle):
  inputs = tmp_path / 'in.txt'
  inputs.write_text('\n'.join(SOURCES[::2]) + '\n')
  made = tmp_path / 'made.jsonl'
  shutil.copytree(random_bundle, tmp_path / 'model')
  command = ['infer', '-m', str(tmp_path / 'model'), '--inputs', str(inputs)]
  assert cli.main([*command, '-o', str(made), '--max-tokens', '6']) == 0
  model = PseudoReferences(random_bundle, max_tokens=6)
  assert PseudoReferences(made)(SOURCES) == model(SOURCES)


def test_what_is_wrong_with_a_file(tmp_path):
  path = tmp_path / 'a.tsv'
  path.write_text('source\ttranslation\na\tx\nb\ty\na\tx\n')
  translate = PseudoReferences(path)
  with pytest.raises(InputError, match=r"no translation of 'c' and 1 other"):
    translate(['a', 'c', 'd'])
  path.write_text('source\ttranslation\na\tx\nb\ty\n a\tz\n')
  with pytest.raises(RecordError, match='another translation') as caught:
    PseudoReferences(path)
  assert caught.value.line == 4
  with pytest.raises(OptionError, match='beams are for a model'):
    PseudoReferences(path, beams=2)
  with pytest.raises(FileNotFoundError, match='no model'):
    PseudoReferences(tmp_path / 'missing')
