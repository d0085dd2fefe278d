"""The word mover's metric beside NumPy states and POT."""

import numpy as np
import ot
import pytest
import tiny_encoder

from t5score_jax.checkpoints.bundle import save_bundle
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.crosslingual import pseudo_references, remap
from t5score_jax.data import vocab
from t5score_jax.errors import InputError, OptionError
from t5score_jax.metrics import registry
from tests.conftest import make_bundle

SOURCES = ['the green bird sat.', 'unaffordable hills', '. ,']
HYPOTHESES = ['a bird ran over the hill!', 'the hill', 'a dog']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny_encoder.make(tmp_path_factory.mktemp('wmd') / 'tiny')


@pytest.fixture(scope='module')
def short_translator(tmp_path_factory, sentencepiece_model):
  """The folder of a random model that reads eight tokens."""
  made = tmp_path_factory.mktemp('short') / 'model'
  vocabulary = vocab.SentencePieceVocabulary(sentencepiece_model)
  save_bundle(made, make_bundle(vocabulary, max_length=8), 'float32')
  return made


def _words(bundle, text, layer, mapped=lambda x: x):
  (encoded,) = bundle.tokenizer.encode_batch([text], 24)
  states = tiny_encoder.numpy_states(bundle.params, bundle.config, encoded.ids)[
    layer
  ]
  keep = [
    n
    for n, token in enumerate(encoded.tokens)
    if token not in ('[CLS]', '[SEP]', '.', ',', '!')
    and not token.startswith('##')
  ]
  unit = states[keep] / np.linalg.norm(states[keep], axis=1, keepdims=True)
  return mapped(unit)


def _expected(bundle, layer=3, mapped=lambda x: x):
  for source, hypothesis in zip(SOURCES, HYPOTHESES, strict=True):
    x = _words(bundle, source, layer, mapped)
    y = _words(bundle, hypothesis, layer)
    if not len(x):
      yield -3.0
      continue
    costs = ((x[:, None] - y[None]) ** 2).sum(-1)
    yield 1 - ot.emd2(np.full(len(x), 1 / len(x)), [], costs)


def test_scores_are_one_minus_the_distance(folder):
  bundle = encoders.load_encoder(folder)
  for options, layer in (({}, 3), ({'layer': 1}, 1)):
    metric = registry.load(folder, metric='wmd', **options)
    scores = metric.score(HYPOTHESES, sources=SOURCES)
    np.testing.assert_allclose(
      scores.values, list(_expected(bundle, layer)), atol=2e-5
    )
    assert f'layer:{layer}' in scores.signature
  reference = registry.load(folder, metric='wmd', conditioning='reference')
  found = reference.score(HYPOTHESES, SOURCES)
  np.testing.assert_allclose(found.values, list(_expected(bundle)), atol=2e-5)
  assert 'nrefs:1' in found.signature


@pytest.mark.parametrize('method', remap.METHODS)
def test_a_map_moves_the_source(folder, tmp_path, method):
  bundle = encoders.load_encoder(folder)
  generator = np.random.default_rng(0)
  pairs = generator.normal(size=(2, 50, 16))
  pairs /= np.linalg.norm(pairs, axis=-1, keepdims=True)
  plain = registry.load(folder, metric='wmd')
  checkpoint = plain.signature().split('checkpoint:')[1].split('|')[0]
  made = remap.estimate(*pairs, method, checkpoint=checkpoint, layer=3)
  remap.save(made, tmp_path / 'a.map')
  metric = registry.load(folder, metric='wmd', remap=tmp_path / 'a.map')
  scores = metric.score(HYPOTHESES, sources=SOURCES)
  np.testing.assert_allclose(
    scores.values, list(_expected(bundle, mapped=made)), atol=2e-5
  )
  assert f'remap:{method}@{made.digest()}' in scores.signature
  with pytest.raises(remap.RemapError, match='layer 3'):
    registry.load(folder, metric='wmd', layer=2, remap=tmp_path / 'a.map')


def test_pseudo_references_are_references(folder, random_bundle, tmp_path):
  texts = pseudo_references.PseudoReferences(random_bundle)(SOURCES)
  assert any(texts)
  plain = registry.load(folder, metric='wmd', conditioning='reference')
  wanted = plain.score(HYPOTHESES, texts).values
  file = tmp_path / 'texts.tsv'
  rows = [('source', 'translation'), *zip(SOURCES, texts, strict=True)]
  file.write_text(''.join('\t'.join(row) + '\n' for row in rows))
  for origin in (random_bundle, file):
    metric = registry.load(
      folder, metric='wmd', conditioning='pseudo', pseudo_references=origin
    )
    # References are not read.
    scores = metric.score(HYPOTHESES, HYPOTHESES, sources=SOURCES)
    np.testing.assert_allclose(scores.values, wanted, atol=1e-5)
    assert 'conditioning:pseudo' in scores.signature
    assert f'pseudo:{origin.name}@' in scores.signature
    assert 'nrefs' not in scores.signature
  beams = registry.load(
    folder,
    metric='wmd',
    conditioning='pseudo',
    pseudo_references=random_bundle,
    pseudo_beams=3,
  )
  assert 'pseudo_beams:3' in beams.signature()


def test_empty_pseudo_references_have_a_score(folder, tmp_path):
  file = tmp_path / 'texts.tsv'
  file.write_text('source\ttranslation\na\t\nb\t. !\n')
  metric = registry.load(
    folder, metric='wmd', conditioning='pseudo', pseudo_references=file
  )
  # Nothing is at the largest distance of something, and like nothing.
  scores = metric.score(
    ['a cat', '', 'a cat', ', .', 'the', ''], sources=[*'aabb', '', '']
  )
  np.testing.assert_allclose(scores.values, [-3, 1, -3, 1, -3, 1], atol=1e-6)
  assert scores.notes == ('2 of 6 texts (33.3%) translated as nothing',)
  with pytest.raises(InputError, match="no translation of 'c'"):
    metric.score(['a'], sources=['c'])
  with pytest.raises(InputError, match='needs sources'):
    metric.score(['a'], ['b'])


@pytest.mark.slow
def test_sources_are_translated_once_and_cuts_are_noted(
  folder, short_translator
):
  calls = []

  class Translator(pseudo_references.PseudoReferences):
    def __call__(self, sources, progress=None):
      calls.append(list(sources))
      return super().__call__(sources, progress)

  metric = registry.load(
    folder,
    metric='wmd',
    conditioning='pseudo',
    pseudo_references=short_translator,
  )
  metric._pseudo.__class__ = Translator
  sources = ['the moon', 'the moon ' * 9, 'the moon']
  scores = metric.score(HYPOTHESES, sources=sources)
  (note,) = scores.notes
  assert note.startswith('1 of 2 texts') and 'cut' in note
  again = metric.score(HYPOTHESES, sources=[*sources[:2], 'a dog'])
  assert calls == [sources[:2], ['a dog']] and not again.notes
  np.testing.assert_array_equal(again.values[:2], scores.values[:2])


@pytest.mark.parametrize(
  'options',
  [
    {'conditioning': 'pseudo'},
    {'pseudo_references': 'x'},
    {'conditioning': 'reference', 'pseudo_beams': 2},
    {'conditioning': 'pseudo', 'pseudo_references': 'x', 'remap': 'y'},
  ],
)
def test_options_that_contradict_each_other(folder, options):
  with pytest.raises(OptionError, match='pseudo'):
    registry.load(folder, metric='wmd', **options)
