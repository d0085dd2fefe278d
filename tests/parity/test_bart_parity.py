"""BARTScore against the published formula on transformers' BART, both ways."""

import numpy as np
import pytest
import tiny_bart

from t5score_jax.checkpoints.formats.huggingface import bart
from t5score_jax.metrics import registry

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
pytestmark = pytest.mark.parity

INPUTS = ['the cat sat on the mat .', '', 'a \u732b </s> ' * 40, ' \t hill']
TARGETS = ['a cat', 'small green bird', '', 'the hill ran ' * 40]


def theirs(folder, inputs, targets, length=40):
  """BARTScorer.score, in batches of two."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  model = transformers.BartForConditionalGeneration.from_pretrained(folder)
  model.eval()
  options = {'truncation': True, 'padding': True, 'return_tensors': 'pt'}
  scores = []
  for n in range(0, len(inputs), 2):
    source, target = (
      tokenizer(side[n : n + 2], max_length=length, **options)
      for side in (inputs, targets)
    )
    labels = target['input_ids']
    with torch.no_grad():
      logits = model(
        input_ids=source['input_ids'],
        attention_mask=source['attention_mask'],
        labels=labels,
      ).logits
    loss = torch.nn.functional.nll_loss(
      logits.log_softmax(-1).transpose(1, 2),
      labels,
      reduction='none',
      ignore_index=model.config.pad_token_id,
    )
    scores += (-loss.sum(1) / target['attention_mask'].sum(1)).tolist()
  return scores


def ours(folder):
  metric = registry.load(
    folder, direction='precision', max_length=40, special_tokens=True
  )
  return metric.score(TARGETS, INPUTS).values


def test_an_export_scores_the_same(tmp_path):
  folder = tiny_bart.make(tmp_path / 'bart')
  np.testing.assert_allclose(
    ours(folder), theirs(folder, INPUTS, TARGETS), atol=1e-5
  )


@pytest.mark.parametrize('scaled', [False, True])
def test_an_import_scores_the_same(tmp_path, scaled):
  torch.manual_seed(0)
  config = transformers.BartConfig(
    vocab_size=290,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=24,
    decoder_ffn_dim=24,
    max_position_embeddings=40,
    scale_embedding=scaled,
  )
  model = transformers.BartForConditionalGeneration(config)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.2 * torch.randn_like(parameter))
  model.save_pretrained(tmp_path)
  tiny_bart.tokenizer().save(str(tmp_path / 'tokenizer.json'))
  (tmp_path / 'tokenizer_config.json').write_text(
    '{"tokenizer_class": "BartTokenizer"}'
  )
  assert bart.load(tmp_path).config.scaled_embedding == scaled
  np.testing.assert_allclose(
    ours(tmp_path), theirs(tmp_path, INPUTS, TARGETS), atol=1e-5
  )
