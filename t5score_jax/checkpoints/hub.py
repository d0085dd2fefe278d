"""Models by their names on the Hugging Face Hub, for the extra `hub`.

huggingface_hub downloads a model such as `google/mt5-base` into its own cache.
Later it is read from there, with or without a network. The settings of
huggingface_hub apply: HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE. Nothing
that is downloaded is executed. Not here: folders (`checkpoints/kinds.py`).
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from t5score_jax.checkpoints import peers
from t5score_jax.errors import T5ScoreError

_NAME = re.compile(r'[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*')
# Descriptions and tokenizers, at the top or in a folder of modules.
_SMALL = re.compile(r'(\d_\w+/)?[\w.-]+\.(json|txt|model|yaml|md)')
# The first kind that a repository has is enough.
_WEIGHTS = (
  re.compile(r'model[\w.-]*\.safetensors'),
  re.compile(r'pytorch_model[\w.-]*\.bin'),
  re.compile(r'checkpoints/[\w.=-]+\.ckpt'),
)
_SECONDS = 10


class HubError(T5ScoreError, FileNotFoundError):
  """A model is neither in a folder nor available from the Hub."""


def is_name(text: str) -> bool:
  """Whether a text has the form of a name on the Hub, OWNER/NAME."""
  return bool(_NAME.fullmatch(text))


@functools.cache
def folder(name: str) -> Path:
  """The folder of a model, downloaded if necessary.

  Args:
    name: OWNER/NAME.

  Raises:
    HubError: The extra is not installed, or there is no such model, no network
      or no permission.
  """
  try:
    import huggingface_hub
    from huggingface_hub import errors
  except ImportError as error:
    raise HubError(
      f'{_absent(name)}; downloading it needs huggingface_hub: pip install '
      f"'t5score-jax[hub]'. {_by_hand(name)}"
    ) from error
  try:
    files = huggingface_hub.HfApi().list_repo_files(name)
    chosen = choose_files(files)
    path = huggingface_hub.snapshot_download(
      name, allow_patterns=chosen, etag_timeout=_SECONDS
    )
  except errors.RepositoryNotFoundError as error:
    raise HubError(
      f'{_absent(name)}, and the Hugging Face Hub has no such model, or none '
      'that may be read without a login (HF_TOKEN)'
    ) from error
  # Offline mode, no network, a server that fails.
  except Exception as error:
    try:
      cached = huggingface_hub.snapshot_download(name, local_files_only=True)
    except Exception:
      reason = str(error).strip().split('\n')[0][:200]
      raise HubError(
        f'{_absent(name)}, and it cannot be downloaded ({reason}). '
        f'{_by_hand(name)}'
      ) from error
    return Path(cached)
  return Path(path)


def choose_files(names: list[str]) -> list[str]:
  """The files of a repository from which a model is read.

  Args:
    names: All of them; many repositories have the weights in several formats.
  """
  chosen = [name for name in names if _SMALL.fullmatch(name)]
  for pattern in _WEIGHTS:
    if weights := [name for name in names if pattern.fullmatch(name)]:
      return [*chosen, *weights]
  return chosen


def _absent(name: str) -> str:
  return f'no model {name!r}: there is no such folder'


def _by_hand(name: str) -> str:
  if advice := peers.advice(name):
    return advice
  local = name.rpartition('/')[2]
  return (
    f'Download it where there is a network, `hf download {name} --local-dir '
    f'{local}`, and give its folder: -m ./{local}'
  )
