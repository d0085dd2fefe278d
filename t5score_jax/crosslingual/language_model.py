"""UScore's language model term: the probability of a text by itself.

LM(y) of Belouadi and Eger (2023), section 2.1 and equation 2, is the mean
log-probability of a hypothesis' tokens under a causal language model (natural
logarithm). It is at most 0; higher is more fluent. Two kinds of models work:

    GPT-2   p(token | tokens before it). With `first='begin'` the model's
            begin-of-text token precedes the text, so every token is scored.
            With `first='skip'` nothing does, and the mean is over the tokens
            from the second on, as in the published program.
    T5      the decoder given an empty input, which is `</s>` alone. Every
            token is scored, and `</s>` after the last (equation 1 of T5Score).

The published program gives a text of at most one token the score 0, the best
possible. Here a blank text, or a text without a token to score, has the score
of a uniform model: -ln(size of the vocabulary). An empty hypothesis is
therefore worse than any text that the model predicts better than by chance.

Texts longer than the model's maximum are truncated and counted. Not here: the
networks (`nn/gpt2.py`, `nn/t5.py`), the metric (`metrics/lm.py`).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from t5score_jax.checkpoints import kinds, loading
from t5score_jax.checkpoints.bundle import Bundle
from t5score_jax.checkpoints.formats.huggingface import gpt2 as gpt2_folders
from t5score_jax.checkpoints.formats.huggingface.encoders import EncoderBundle
from t5score_jax.data.subwords import Encoded
from t5score_jax.errors import OptionError
from t5score_jax.inference import balance, encoding, placement, scoring
from t5score_jax.models import losses
from t5score_jax.nn import gpt2
from t5score_jax.runtime import processes

BEGIN, SKIP = 'begin', 'skip'
#: How the first token of a text is treated.
FIRST = (BEGIN, SKIP)


@dataclasses.dataclass(frozen=True)
class TextScores:
  """The scores of N texts, in their order.

  Attributes:
    values: Mean log-probability per token, float32 [N]; at most 0.
    truncated: Number of distinct texts that were cut.
    texts: Number of distinct texts.
  """

  values: np.ndarray
  truncated: int
  texts: int


def load(model: str | os.PathLike[str]) -> EncoderBundle | Bundle:
  """Loads a language model.

  Args:
    model: A Hugging Face folder of GPT-2; or, for a T5, a name or a folder as
      in `loading.load_model`.

  Raises:
    FileNotFoundError: There is no such model.
    CheckpointError: The model is damaged.
    OptionError: The model is of another kind.
  """
  path = kinds.folder(model)
  kind = kinds.of(path)
  if kind == kinds.CAUSAL:
    return gpt2_folders.load(path)
  if kind not in ('', kinds.BUNDLE):
    raise OptionError(
      f'{path}: {kinds.WORDS[kind]}; a language model is '
      f'{kinds.WORDS[kinds.CAUSAL]}, or {kinds.WORDS[kinds.BUNDLE]}'
    )
  return loading.load_model(model)


class LanguageModel:
  """A language model on all local devices.

  Scores do not depend on batch size, order, other texts, or the number of
  devices and processes (float32: within 1e-5).

  Args:
    model: From `load`, or its argument.
    first: 'begin' or 'skip', see above; T5 supports only 'begin'.
    max_length: Tokens per text (T5: `</s>` included). Default: GPT-2's
      positions, which are also the maximum; for T5 see `placement.Placed`.
    **options: See `placement.Devices`.

  Attributes:
    first: 'begin' or 'skip'.
    max_length: Tokens per text.
    dtype: The data type of the computation.
    floor: The score of a text without a token to score.
    lowercase: Whether texts are lower-cased, which a T5's settings may require.

  Raises:
    OptionError: A value is out of range, or GPT-2's vocabulary has no
      begin-of-text token and `first` is 'begin'.
  """

  def __init__(
    self,
    model: EncoderBundle | Bundle | str | os.PathLike[str],
    *,
    first: str = BEGIN,
    max_length: int | None = None,
    **options: Any,
  ):
    if first not in FIRST:
      raise OptionError(f'first {first!r}: use one of {", ".join(FIRST)}')
    if isinstance(model, (str, os.PathLike)):
      model = load(model)
    self._scorer: _Scorer
    if isinstance(model, EncoderBundle):
      self._scorer = CausalScorer(model, first, max_length, **options)
    elif first != BEGIN:
      raise OptionError(
        f"first {first!r}: a T5 decoder scores every token; use '{BEGIN}'"
      )
    else:
      self._scorer = DecoderScorer(model, max_length, **options)
    self._spread = bool(options.get('spread'))
    self.first = first
    self.max_length = self._scorer.max_length
    self.dtype = self._scorer.dtype
    self.lowercase = self._scorer.lowercase
    self.floor = -math.log(model.config.vocab_size)

  def log_probs(
    self,
    texts: Sequence[str],
    progress: placement.Progress | None = None,
  ) -> np.ndarray:
    """Mean log-probability per token of each text, float32 [N]; at most 0."""
    return self.score(texts, progress).values

  def score(
    self,
    texts: Sequence[str],
    progress: placement.Progress | None = None,
  ) -> TextScores:
    """Scores texts, each distinct one once.

    Args:
      texts: N texts.
      progress: Called with the number of distinct texts done and their total.

    Raises:
      ScoringError: A score is not finite: the weights are unusable.
      processes.ProcessError: The processes have different texts.
    """
    distinct = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    if self._spread:
      balance.agree(texts, 'the texts')
    spoken = [text for text in distinct if text.strip()]
    values = np.full(len(distinct), self.floor, np.float32)
    means, scored, cut = self._scorer.means(spoken, progress)
    rows = np.array([distinct[text] for text in spoken], np.int64)
    values[rows[scored]] = means[scored]
    order = np.array([distinct[text] for text in texts], np.int64)
    return TextScores(values[order], cut, len(distinct))


class _Scorer(Protocol):
  """Scores distinct texts under one kind of model."""

  max_length: int
  lowercase: bool

  @property
  def dtype(self) -> str:
    """The data type of the computation."""

  def means(
    self, texts: Sequence[str], progress: placement.Progress | None
  ) -> tuple[np.ndarray, np.ndarray, int]:
    """Scores N distinct texts.

    Returns:
      Their mean log-probabilities, float32 [N]; whether a text has a token to
      score, bool [N]; the number of texts that were cut.
    """


class CausalScorer(encoding.RowEncoder):
  """GPT-2 on all local devices.

  Args:
    model: The model; its `config` is a `GPT2Config`.
    first: 'begin' or 'skip'.
    max_length: Tokens per text; default and maximum: the model's positions.
    **options: See `placement.Devices`.
  """

  lowercase = False

  def __init__(
    self,
    model: EncoderBundle,
    first: str,
    max_length: int | None,
    **options: Any,
  ):
    config = model.config
    assert isinstance(config, gpt2.GPT2Config)
    super().__init__(model, max_length=max_length, **options)
    self._begin: list[int] = []
    if first == BEGIN:
      if config.begin_id is None:
        raise OptionError(
          f'{model.name}: the bos_token_id of config.json is no token of this '
          f"vocabulary; first '{SKIP}' scores without it"
        )
      self._begin = [config.begin_id]
    # Some tokenizers add tokens around a text that are not part of it.
    (empty,) = self.tokenizer.encode_batch([''], self.max_length)
    self._around = len(empty.ids)

  def means(
    self, texts: Sequence[str], progress: placement.Progress | None
  ) -> tuple[np.ndarray, np.ndarray, int]:
    """See `_Scorer.means`."""
    values = np.zeros(len(texts), np.float32)
    scored = np.zeros(len(texts), bool)
    cut = 0
    for start in range(0, len(texts), encoding.WINDOW):
      part = texts[start : start + encoding.WINDOW]
      rows = np.arange(start, start + len(part))
      encoded = self.tokenizer.encode_batch(
        part, self.max_length + self._around
      )
      cut += sum(text.cut for text in encoded)
      whole = [self._begin + _own_ids(text) for text in encoded]
      scored[rows] = [len(row) > 1 for row in whole]
      chosen = [row for row in whole if len(row) > 1]
      values[rows[scored[rows]]] = self.rows(
        [row[:-1] for row in chosen],
        [row[1:] for row in chosen],
        kind='mean',
        done=encoding.within(progress, start, len(part), len(texts)),
      )
    return values, scored, cut

  def _row_axis(self, kind: str) -> int:
    return 0

  def _logical_axes(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
    return gpt2.logical_axes(params)

  def _apply(
    self,
    kind: str,
    params: Mapping[str, Any],
    tokens: jax.Array,
    types: jax.Array,
  ) -> jax.Array:
    """Means over a row's targets, which stand in `types`: float32 [rows]."""
    config = cast(gpt2.GPT2Config, self._config)
    hidden = gpt2.hidden_states(params, config, tokens)
    weights = (tokens != gpt2.PAD_ID).astype(jnp.float32)
    log_probs = losses.token_log_probs(
      hidden, gpt2.output_kernel(params), types, weights
    )
    return losses.sequence_scores(log_probs, weights)


def _own_ids(text: Encoded) -> list[int]:
  """A text's ids without the special tokens around it."""
  return [
    i for i, special in zip(text.ids, text.special, strict=True) if not special
  ]


class DecoderScorer:
  """A T5 on all local devices, with an empty input.

  Args:
    model: The model; of its settings, `max_length` and `lowercase` are used.
    max_length: Tokens per text, `</s>` included.
    spread: Whether all processes share the work; see `placement.Devices`.
    **options: Likewise.
  """

  def __init__(
    self,
    model: Bundle,
    max_length: int | None,
    *,
    spread: bool = False,
    **options: Any,
  ):
    self._scorer = scoring.Scorer(model, max_length=max_length, **options)
    self.max_length = self._scorer.max_length
    self.lowercase = bool(model.settings.get('lowercase', False))
    self._processes = processes.count() if spread else 1
    self._process = processes.index() if spread else 0

  @property
  def dtype(self) -> str:
    """The data type of the computation."""
    return self._scorer.dtype

  def means(
    self, texts: Sequence[str], progress: placement.Progress | None
  ) -> tuple[np.ndarray, np.ndarray, int]:
    """See `_Scorer.means`."""
    if self.lowercase:
      texts = [text.lower() for text in texts]
    # The processes share the texts here: the scorer gives all targets of one
    # input to one process.
    owner = balance.owners([len(t) for t in texts], self._processes)
    own = np.flatnonzero(owner == self._process)
    report = encoding.within(progress, 0, len(texts), len(texts))
    scores = self._scorer.score_pairs(
      [('', texts[int(row)]) for row in own],
      progress=report and (lambda done, total: report(done / total)),
    )
    # Of each text its mean and its number of tokens; then of each process the
    # number of texts that it cut.
    table = np.zeros((len(texts) + self._processes, 2), np.float64)
    table[own] = np.stack([scores.values, scores.lengths], axis=1)
    table[len(texts) + self._process] = scores.truncated
    if self._processes > 1:
      owner = np.concatenate([owner, np.arange(self._processes)])
      table = balance.exchange(table, owner)
    means, lengths = table[: len(texts)].T
    cut = int(table[len(texts) :, 0].sum())
    # A text of `</s>` alone has no token of its own.
    return means.astype(np.float32), lengths > 1, cut
