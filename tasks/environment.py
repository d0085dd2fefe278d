"""Where a user's corpora and vocabulary are, said by environment variables.

For gin files alone: `import t5score_jax.tasks.wmt_da` in a gin file registers
the tasks of the copy that these variables name; from Python, call the modules'
`register` functions instead, which read no variable.

    T5SCORE_DATA        a folder that holds one for each corpus, of the module's
                        name: wmt_da, mqm, qe20, multisumm, paracotta, mt_prism,
                        parallel, denoising, judged, tfds
    T5SCORE_VOCABULARY  'bytes' or the path of a SentencePiece model; without
                        it, T5SCORE_DATA/vocabulary.model if that is there,
                        'bytes' otherwise

Corpora that are not there register nothing. Not for reading the corpora.
"""

from __future__ import annotations

import os
import pathlib

DATA = 'T5SCORE_DATA'
VOCABULARY = 'T5SCORE_VOCABULARY'


def corpus(name: str) -> pathlib.Path | None:
  """The folder of a corpus, or None if the variable is not set or lacks it.

  Args:
    name: The corpus, for example `wmt_da`.

  Returns:
    `T5SCORE_DATA/NAME` if that is a folder.

  Raises:
    FileNotFoundError: The variable is set but names no folder.
  """
  root = os.environ.get(DATA)
  if not root:
    return None
  if not os.path.isdir(root):
    raise FileNotFoundError(
      f'{DATA}={root}: there is no such folder; set it to the folder that holds'
      ' your corpora, or unset it'
    )
  folder = pathlib.Path(root, name)
  return folder if folder.is_dir() else None


def vocabulary() -> str:
  """What `vocabularies.seqio_vocabulary` shall load."""
  spec = os.environ.get(VOCABULARY)
  if spec:
    return spec
  beside = os.path.join(os.environ.get(DATA, ''), 'vocabulary.model')
  return beside if os.path.isfile(beside) else 'bytes'
