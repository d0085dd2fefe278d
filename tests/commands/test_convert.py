"""Arguments of `t5score convert`; see also checkpoints/test_convert.py."""

import argparse

import pytest

from t5score_jax.commands import convert as command


def test_sizes_have_units():
  assert command._size('5GB') == 5 * 10**9
  assert command._size('1.5 mb') == 1_500_000
  assert command._size('7k') == 7000
  assert command._size('12') == command._size('12B') == 12
  for text in ('', 'GB', '-1', '0', '5 potatoes'):
    with pytest.raises(argparse.ArgumentTypeError):
      command._size(text)
