"""A resumed run reads past earlier batches and reports its progress."""

import itertools

from t5score_jax.inputs import skipping


def test_skips_and_reports(caplog):
  batches = skipping.skip(iter(range(10)), 4, patience=0.0)
  assert list(batches) == [4, 5, 6, 7, 8, 9]
  assert [record.args[:2] for record in caplog.records] == [
    (done, 4) for done in (1, 2, 3, 4)
  ]


def test_quick_skips_are_silent(caplog):
  batches = skipping.skip(itertools.count(), 1000, patience=60.0)
  assert next(batches) == 1000
  assert not caplog.records


def test_data_that_end_before(caplog):
  assert list(skipping.skip(iter(range(3)), 4)) == []
