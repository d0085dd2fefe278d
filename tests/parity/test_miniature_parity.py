"""FrugalScore's folders against `transformers`, both ways."""

import numpy as np
import pytest

from t5score_jax.checkpoints import cross_encoders, kinds
from t5score_jax.metrics import registry
from tests.checkpoints import test_cross_encoders as test_miniatures

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.parity


def theirs(folder, hypotheses, references, length=20):
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  # In float32, in which ours computes with weights of any dtype.
  model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
    folder, output_loading_info=True, dtype=torch.float32
  )
  assert not info['missing_keys'] and not info['unexpected_keys']
  assert model.config.num_labels == 1
  values = []
  for pair in zip(hypotheses, references, strict=True):
    batch = tokenizer(
      *pair, truncation=True, max_length=length, return_tensors='pt'
    )
    with torch.no_grad():
      values.append(float(model.eval()(**batch).logits[0, 0]))
  return values


def test_export_scores_the_same(tmp_path):
  test_miniatures.make(tmp_path)
  ours = registry.load_metric('frugalscore', model=tmp_path / 'm').score(
    test_miniatures.HYPOTHESES, test_miniatures.REFERENCES
  )
  np.testing.assert_allclose(
    ours.values,
    theirs(
      tmp_path / 'm', test_miniatures.HYPOTHESES, test_miniatures.REFERENCES
    ),
    atol=1e-4,
  )


def test_import_of_the_published_layout(tmp_path):
  made = test_miniatures.make(tmp_path)
  torch.manual_seed(0)
  config = transformers.BertConfig(
    vocab_size=made.config.vocab_size,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=20,
    max_position_embeddings=24,
    num_labels=1,
  )
  model = transformers.BertForSequenceClassification(config)
  model.save_pretrained(tmp_path / 'published')
  made.tokenizer.save(tmp_path / 'published')
  assert cross_encoders.is_cross_encoder(tmp_path / 'published')
  ours = registry.load_metric(
    'frugalscore', model=tmp_path / 'published', max_length=20
  ).score(test_miniatures.HYPOTHESES, test_miniatures.REFERENCES)
  np.testing.assert_allclose(
    ours.values,
    theirs(
      tmp_path / 'published',
      test_miniatures.HYPOTHESES,
      test_miniatures.REFERENCES,
    ),
    atol=1e-4,
  )


def test_the_embedded_miniature_scores_the_same():
  hypotheses = [
    'A cat was sitting on the mat.',
    'Dogs, said Ünal, eat "bones" in 2026!',
    'word ' * 200,
  ]
  references = ['The cat sat on the mat.', 'Dogs like bones.', 'words ' * 180]
  ours = registry.load_metric('frugalscore').score(hypotheses, references)
  folder = kinds.folder('frugalscore-tiny')
  np.testing.assert_allclose(
    ours.values, theirs(folder, hypotheses, references, 192), atol=1e-4
  )
