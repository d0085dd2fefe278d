"""The bar that long work shows on a terminal."""

import io
import sys

from t5score_jax.commands import _score_output


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def test_a_bar_shows_each_work_and_leaves_nothing(monkeypatch):
  stream = _Terminal()
  monkeypatch.setattr(sys, 'stderr', stream)
  monkeypatch.setattr(_score_output, '_LONG_WORK', 0.0)
  monkeypatch.setenv('TERM', 'xterm')
  with _score_output.bar('encoding', quiet=False) as advance:
    for total in (3, 5):
      advance(1, total)
      assert f'/{total}' in stream.getvalue()
      advance(total, total)
  with _score_output.bar('encoding', quiet=True) as advance:
    assert advance is None
