"""Loads a T5 model for scoring, by name or from a folder."""

from __future__ import annotations

import os

from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints import kinds


def embedded_models() -> list[str]:
  """The names of the T5Score models that come with the package."""
  return kinds.embedded(kinds.BUNDLE)


def load_model(name_or_path: str | os.PathLike[str]) -> bundles.Bundle:
  """Loads a model by the name of an embedded one, or from a folder.

  Args:
    name_or_path: the name of an embedded model, a bundle, a MODEL_DIR, one of
      its `checkpoint_N`, or a checkpoint of another format.

  Returns:
    The model.

  Raises:
    FileNotFoundError: there is no such model.
    ValueError: the folder holds none, or a damaged one.
  """
  path = kinds.folder(name_or_path)
  if bundles.is_bundle(path):
    return bundles.load_bundle(path)
  # Orbax takes a second to import, and a bundle does without.
  from t5score_jax.checkpoints import native

  return native.load_for_scoring(path)
