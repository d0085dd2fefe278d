"""Where tests find the human judgments that are no part of the project."""

import pathlib

import pytest

DATA = pathlib.Path(__file__).resolve().parents[3] / 'shared' / 'data'

needs_data = pytest.mark.skipif(
  not (DATA / 'wmt20_metrics').is_dir(),
  reason='needs the WMT judgments in ../shared/data, which are not here',
)
