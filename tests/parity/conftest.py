"""Imports the peers' libraries, which takes long, only for parity tests."""


def pytest_ignore_collect(config) -> bool | None:
  """Skips this folder where its tests are deselected."""
  return True if 'not parity' in config.option.markexpr else None
