"""Tied or not, scaled or not: what a HuggingFace folder's logits come from.

The answer lies in settings, weights and the version that wrote them.
"""

import hf_folders
import numpy as np
import pytest

from t5score_jax.checkpoints.formats.huggingface import checkpoint
from t5score_jax.checkpoints.source import Options
from t5score_jax.checkpoints.weights import CheckpointError

# Columns: model type, tie_word_embeddings,
# scale_decoder_outputs, version, is there an lm_head, result.
_OUTPUTS = [
  ('t5', True, None, '4.40.0', None, 'tied'),
  ('t5', None, None, None, None, 'tied'),
  ('t5', None, None, '4.40.0', 'copy', 'tied'),
  ('t5', True, True, '5.24.0', None, 'tied'),
  ('t5', False, None, '4.40.0', 'own', 'own'),
  ('t5', False, None, '4.40.0', 'copy', 'embedding'),
  ('t5', False, None, '4.40.0', None, 'error'),
  ('t5', True, False, '5.24.0', 'own', 'own'),
  ('t5', True, False, '5.24.0', None, 'embedding'),
  ('t5', True, True, '5.24.0', 'own', 'error'),
  ('t5', True, None, '4.40.0', 'own', 'error'),
  ('mt5', False, None, '4.40.0', 'own', 'own'),
  ('mt5', None, None, None, 'own', 'own'),
  ('mt5', True, None, '4.40.0', None, 'tied'),
  ('mt5', True, None, '5.24.0', 'own', 'own'),
  ('mt5', True, None, '5.24.0', None, 'embedding'),
]


@pytest.mark.parametrize(
  ('kind', 'tie', 'scale', 'version', 'head', 'result'), _OUTPUTS
)
def test_what_makes_logits(tmp_path, kind, tie, scale, version, head, result):
  path = hf_folders.export(hf_folders.source(hf_folders.TINY), tmp_path / 'out')
  hf_folders.edit(
    path,
    model_type=kind,
    tie_word_embeddings=tie,
    scale_decoder_outputs=scale,
    transformers_version=version,
  )
  tensors = hf_folders.tensors(path)
  own = tensors.pop('lm_head.weight')
  if head:
    copy = tensors['shared.weight'].copy()
    tensors['lm_head.weight'] = own if head == 'own' else copy
  # Copies that early releases wrote.
  tensors['encoder.embed_tokens.weight'] = tensors['shared.weight'].copy()
  hf_folders.replace(path, tensors)
  if result == 'error':
    with pytest.raises(CheckpointError, match='logits_dense|lm_head'):
      checkpoint.open_source(path, Options())
    return
  found = checkpoint.open_source(path, Options())
  assert found.config.logits_via_embedding == (result == 'tied')
  kernel = found.weights.get('decoder/logits_dense/kernel')
  if result == 'tied':
    assert kernel is None
  else:
    expected = own if result == 'own' else tensors['shared.weight']
    np.testing.assert_array_equal(kernel.read(), expected.T)
  assert bool(found.notes) == (result == 'embedding' and head is None)


def test_two_embeddings_are_refused(tmp_path):
  path = hf_folders.export(hf_folders.source(hf_folders.TINY), tmp_path / 'out')
  tensors = hf_folders.tensors(path)
  tensors['decoder.embed_tokens.weight'] = tensors['shared.weight'] + 1
  hf_folders.replace(path, tensors)
  with pytest.raises(CheckpointError, match='share one embedding'):
    checkpoint.open_source(path, Options())
  # Without the name for both, one of the copies is taken.
  tensors['encoder.embed_tokens.weight'] = tensors.pop('shared.weight')
  del tensors['decoder.embed_tokens.weight']
  hf_folders.replace(path, tensors)
  checkpoint.open_source(path, Options())
