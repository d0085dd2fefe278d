"""Environment variables that locate the user's corpora and vocabulary.

They are for gin files, where `import t5score_jax.tasks.wmt_da` registers the
tasks of the corpus in `T5SCORE_DATA`. Python programs call the modules'
`register` functions, which read no variables.

    T5SCORE_DATA        a folder with one folder per corpus, named like the
                        module: wmt_da, mqm, qe20, multisumm, paracotta,
                        mt_prism, parallel, denoising, monolingual, judged, tfds
    T5SCORE_VOCABULARY  'bytes' or the path of a SentencePiece model; without
                        it, T5SCORE_DATA/vocabulary.model if that is there,
                        'bytes' otherwise

Missing corpora register nothing.
"""

from __future__ import annotations

import os
import pathlib

DATA = 'T5SCORE_DATA'
VOCABULARY = 'T5SCORE_VOCABULARY'


def corpus(name: str) -> pathlib.Path | None:
  """Returns the folder `T5SCORE_DATA/NAME`, or None if there is none.

  Args:
    name: The corpus, for example `wmt_da`.

  Raises:
    FileNotFoundError: The variable names a missing folder.
  """
  root = os.environ.get(DATA)
  if not root:
    return None
  if not os.path.isdir(root):
    raise FileNotFoundError(
      f'{DATA}={root}: no such folder; set it to the folder of your corpora, or'
      ' unset it'
    )
  folder = pathlib.Path(root, name)
  return folder if folder.is_dir() else None


def vocabulary() -> str:
  """Returns the specification for `vocabularies.seqio_vocabulary`."""
  spec = os.environ.get(VOCABULARY)
  if spec:
    return spec
  beside = os.path.join(os.environ.get(DATA, ''), 'vocabulary.model')
  return beside if os.path.isfile(beside) else 'bytes'
