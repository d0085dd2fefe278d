"""The bar that long work shows on a terminal."""

import io
import sys

from t5score_jax.commands import _score_output


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def test_a_bar_goes_with_its_work_and_comes_with_the_next(monkeypatch):
  stream = _Terminal()
  monkeypatch.setattr(sys, 'stderr', stream)
  monkeypatch.setattr(_score_output, '_LONG_WORK', 0.0)
  monkeypatch.setenv('TERM', 'xterm')
  bar = _score_output.Bar('encoding', quiet=False)
  with bar as told:
    for total in (3, 5):
      told(1, total)
      assert bar._bar is not None and f'/{total}' in stream.getvalue()
      told(total, total)
      assert bar._bar is None
    told(1, 2)
  assert bar._bar is None
  with _score_output.Bar('encoding', quiet=True) as told:
    assert told is None
