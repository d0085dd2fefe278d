"""Splits long texts into windows that fit an encoder's maximum length.

The papers truncate texts at the encoder's length (COMES: 512 tokens). Windows
are the alternative; each has the special tokens of a text of its own.
`inference/embedding.py` combines their states.
"""

from __future__ import annotations

from t5score_jax.data.subwords import Encoded
from t5score_jax.errors import OptionError


def split(text: Encoded, max_length: int, stride: int = 0) -> list[list[int]]:
  """Splits a text into the fewest windows that cover it.

  All windows of a text have the same number of tokens, so that none is a
  remainder of a few words without context; neighbours overlap by more than
  `stride` if necessary.

  Args:
    text: The whole text, encoded, with special tokens at its ends.
    max_length: Maximum number of ids per window, special tokens included.
    stride: Minimum overlap of neighbouring windows in tokens (as in Hugging
      Face's tokenizers).

  Returns:
    The ids of each window in order; the text's own if it fits.

  Raises:
    OptionError: `stride` is negative or leaves no room in a window.
  """
  if len(text.ids) <= max_length:
    return [text.ids]
  # Special tokens inside the text belong to the text.
  first = text.special.index(False)
  last = len(text.ids) - text.special[::-1].index(False)
  head, tail = text.ids[:first], text.ids[last:]
  body = text.ids[first:last]
  room = max_length - len(head) - len(tail)
  if not 0 <= stride < room:
    raise OptionError(
      f'stride {stride}: 0 to {room - 1}, since a window of {max_length} '
      f'tokens has {room} besides the special ones'
    )
  count = -(-(len(body) - stride) // (room - stride))
  size = -(-(len(body) + (count - 1) * stride) // count)
  spare = len(body) - size
  starts = [n * spare // (count - 1) for n in range(count)]
  return [head + body[s : s + size] + tail for s in starts]
