"""Exported sentence encoders under `transformers` and sentence-transformers."""

import numpy as np
import pytest
import tiny_encoder

from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.crosslingual import corpus
from t5score_jax.fitting import contrastive
from t5score_jax.inference import encoding

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.parity

TEXTS = ['the cat sat on the mat .', 'a dog', 'unaffordable green birds ran !']


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp('trained')
  start = tiny_encoder.make(folder / 'start')
  training = contrastive.Training(learning_rate=1e-2, batch_size=4, epochs=4)
  pairs = [(text, text.replace('the', 'a')) for text in TEXTS]
  _, result = contrastive.fine_tune(folder / 'run', pairs, start, training)
  before, after = (
    encoders.load_encoder(path).params['layers_0']['wi']['kernel']
    for path in (start, result.folder)
  )
  assert np.abs(before - after).max() > 1e-3
  return result.folder


def _ours(folder):
  encoder = encoding.TextEncoder(encoders.load_encoder(folder))
  return corpus.sentence_vectors(encoder, TEXTS)


def test_transformers_gives_the_same_vectors(trained):
  tokenizer = transformers.AutoTokenizer.from_pretrained(trained)
  model = transformers.AutoModel.from_pretrained(trained).eval()
  batch = tokenizer(TEXTS, padding=True, return_tensors='pt')
  with torch.no_grad():
    states = model(**batch).last_hidden_state
  mask = batch['attention_mask'][..., None]
  means = ((states * mask).sum(1) / mask.sum(1)).numpy()
  means /= np.linalg.norm(means, axis=1, keepdims=True)
  np.testing.assert_allclose(_ours(trained), means, atol=1e-5)


def test_sentence_transformers_takes_the_mean(trained):
  library = pytest.importorskip('sentence_transformers')
  model = library.SentenceTransformer(str(trained), device='cpu')
  found = model.encode(TEXTS, normalize_embeddings=True)
  np.testing.assert_allclose(_ours(trained), found, atol=1e-5)


def test_fewer_layers_give_the_states_of_that_layer(tmp_path):
  whole = encoders.load_encoder(tiny_encoder.make(tmp_path / 'whole'))
  encoders.save_encoder(encoders.truncated(whole, 2), tmp_path / 'cut')
  model = transformers.AutoModel.from_pretrained(tmp_path / 'whole').eval()
  (encoded,) = whole.tokenizer.encode_batch(TEXTS[:1], 24)
  with torch.no_grad():
    states = model(torch.tensor([encoded.ids]), output_hidden_states=True)
  cut = encoding.TextEncoder(encoders.load_encoder(tmp_path / 'cut'))
  (ours,) = cut.states(TEXTS[:1])
  np.testing.assert_allclose(
    ours.states[-1], states.hidden_states[2][0].numpy(), atol=1e-5
  )
