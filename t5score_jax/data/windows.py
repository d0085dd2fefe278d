"""Long texts in windows: pieces that an encoder has positions for.

The papers cut a text at the encoder's length (COMES: 512 tokens). Here it may
be read whole instead, window by window, each with the special tokens of a text
by itself. Not here: what is made of the windows (``inference/embedding.py``).
"""

from __future__ import annotations

from t5score_jax.data.subwords import Encoded


def split(text: Encoded, max_length: int, stride: int = 0) -> list[list[int]]:
  """Divides a text into the fewest windows that cover it.

  All windows of a text have the same number of tokens, so that none is a
  remainder of a few words without context; where they don't fit exactly,
  neighbours share a few tokens more.

  Args:
    text: encoded whole, special tokens at its ends.
    max_length: the most ids a window, special ones included.
    stride: how many tokens two neighbours share at least (the word is that of
      Hugging Face's tokenizers).

  Returns:
    The ids of each window in order; one, the text's own, where it fits.

  Raises:
    ValueError: ``stride`` leaves a window no token of its own.
  """
  if len(text.ids) <= max_length:
    return [text.ids]
  # Marks that stand in the text itself don't count as special.
  first = text.special.index(False)
  last = len(text.ids) - text.special[::-1].index(False)
  head, tail = text.ids[:first], text.ids[last:]
  body = text.ids[first:last]
  room = max_length - len(head) - len(tail)
  if not 0 <= stride < room:
    raise ValueError(
      f'stride {stride}: 0 to {room - 1}, since a window of {max_length} '
      f'tokens has {room} besides the special ones'
    )
  count = -(-(len(body) - stride) // (room - stride))
  size = -(-(len(body) + (count - 1) * stride) // count)
  spare = len(body) - size
  starts = [n * spare // (count - 1) for n in range(count)]
  return [head + body[s : s + size] + tail for s in starts]
