"""Operations of matrix products that a model's texts need, and padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def encoder(
  config: Any, lengths: Sequence[int], first_token: bool = False
) -> int:
  """FLOPs of a BERT's layers on texts, each once.

  Args:
    config: The network, `nn/bert.BertConfig`.
    lengths: Tokens of each text, special ones included.
    first_token: Whether of the last layer only the first token is needed, as
      for a classification.
  """
  d = config.emb_dim
  # Projections of queries, keys, values and the output, and the two of the
  # feed-forward block; then attention's two products.
  each = 2 * (4 * d * d + 2 * d * config.mlp_dim)
  attention = 4 * d * sum(n * n for n in lengths)
  whole = each * sum(lengths) + attention
  if not first_token:
    return config.num_layers * whole
  # Its query, output and feed-forward block are of one token.
  one = (each - 4 * d * d) * len(lengths) + 4 * d * sum(lengths)
  return (config.num_layers - 1) * whole + 4 * d * d * sum(lengths) + one


def with_padding(score: Callable[[], Any]) -> dict[str, Any]:
  """Runs a metric on an encoder and adds the share of padding in its batches.

  On a CPU that is what dense layers compute for nothing; attention sees more.

  Args:
    score: Returns its scores.
  """
  from t5score_jax.inference import encoding

  original = encoding.TextEncoder._plan
  tokens = [0, 0]

  def plan(self: Any, lengths: Any, kind: str) -> Any:
    batches = original(self, lengths, kind)
    for chosen, (rows, length, room) in batches:
      tokens[0] += int(lengths[chosen].sum())
      tokens[1] += rows * length if room is None else room
    return batches

  encoding.TextEncoder._plan = plan
  try:
    scores = score()
  finally:
    encoding.TextEncoder._plan = original
  return {'scores': scores, 'padding': 1 - tokens[0] / tokens[1]}


def of_texts(bundle: Any, texts: Iterable[str]) -> int:
  """The same of an encoder with its tokenizer; texts that are long are cut."""
  most = bundle.config.max_length
  encoded = bundle.tokenizer.encode_batch(sorted(texts), most)
  return encoder(bundle.config, [len(one.ids) for one in encoded])
