"""BARTScore: text evaluation by BART's likelihoods (Yuan et al. 2021).

The score of a target given an input is the mean log-probability of the target's
tokens, begin and end of text included, as in the published program. It is at
most 0; higher is better. Directions are T5Score's (`metrics/t5score.py`).
`precision` is the program's score(references, hypotheses); with the source in
place of the reference it is the program's faithfulness. With several
references, the score is the best or the mean.

Not here: batches (`inference/scoring.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from t5score_jax.checkpoints import kinds
from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.checkpoints.formats.huggingface import bart
from t5score_jax.data import vocab
from t5score_jax.errors import OptionError
from t5score_jax.inference import placement, scoring
from t5score_jax.metrics import t5score
from t5score_jax.models import bart as likelihood


class Metric(t5score.Metric):
  """BARTScore with one model."""

  name = 'BARTScore'
  MODELS = ('bart',)
  READS = ()

  def __init__(
    self, model: str | os.PathLike[str] | None = None, **options: Any
  ):
    """Loads the model.

    Args:
      model: A Hugging Face folder of BART, such as facebook/bart-large-cnn.
      **options: See `metrics/t5score.py`; the direction is 'f' by default.

    Raises:
      FileNotFoundError: There is no such model.
      OptionError: No model is named, or an option is out of range.
      CheckpointError: The model is damaged.
    """
    if not model:
      raise OptionError(
        'BARTScore needs a model: give a Hugging Face folder of BART, such as '
        'one of facebook/bart-large-cnn (-m)'
      )
    super().__init__(model, **options)

  def _load(self, model: str | os.PathLike[str]) -> Mapping[str, Any]:
    loaded = self._reading(bart.load(kinds.folder(model)))
    self._scorer = BartScorer(loaded, self._max_length, **self._placing)
    self._identify(loaded.name, loaded, loaded.tokenizer)
    self._tokenizer = loaded.tokenizer
    return {}

  def pieces(self, hypothesis: str) -> list[str]:
    """Returns a hypothesis' tokens as text; see `t5score.Metric.pieces`."""
    text = self._read(hypothesis)
    (row,) = self._tokenizer.encode_batch([text], self._scorer.max_length)
    # How byte-level pieces spell a space.
    return [token.replace('\u0120', ' ') for token in row.tokens]


class BartScorer(scoring.Scorer):
  """BART on all local devices; scores text pairs as its base class does.

  Args:
    model: The model.
    max_length: Tokens per text, special tokens included; longer texts are
      truncated. Default: 1024, or the model's number of positions if smaller.
    **options: See `placement.Devices`.

  Raises:
    OptionError: A value is out of range.
  """

  NETWORK: ClassVar[Any] = likelihood

  def __init__(
    self, model: bart.BartBundle, max_length: int | None, **options: Any
  ):
    longest = model.config.max_length
    if max_length is not None and not 3 <= max_length <= longest:
      raise OptionError(
        f'max_length {max_length}: the model takes 3 to {longest} tokens'
      )
    self._model = model
    # Texts arrive as ids, so the vocabulary is not used.
    network: Any = model.config
    super().__init__(
      Bundle(network, model.params, vocab.ByteVocabulary()),
      max_length=max_length or min(longest, placement.DEFAULT_MAX_LENGTH),
      **options,
    )

  def score_pairs(
    self, pairs: Sequence[scoring.Pair], **options: Any
  ) -> scoring.PairScores:
    """See `scoring.Scorer.score_pairs`; texts are strings."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    encoded = self._model.tokenizer.encode_batch(
      [str(text) for text in texts], self.max_length
    )
    ids = {
      text: self._model.ids(row.ids)
      for text, row in zip(texts, encoded, strict=True)
    }
    scores = super().score_pairs(
      [(ids[first], ids[second]) for first, second in pairs], **options
    )
    return dataclasses.replace(
      scores, truncated=sum(row.cut for row in encoded), texts=len(texts)
    )
