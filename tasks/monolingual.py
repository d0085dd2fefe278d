"""Tasks for language models: an empty input, and a plain text as the target.

A T5 trained on these tasks is a causal language model of the targets: its
input is only `</s>`, as for the metric `lm`
(`crosslingual/language_model.py`).

Layout of a folder: `NAME.txt`, `NAME.validation.txt`, `NAME.test.txt` (each
also with `.gz`), one text per line. For each NAME the task `monolingual_NAME`,
and the mixture `monolingual` of all, sampled by p^0.5. With `T5SCORE_DATA` set,
importing this module registers `T5SCORE_DATA/monolingual` (`environment`).

Not here: span corruption of the same layout (`denoising`).
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import seqio

from t5score_jax.data import files
from t5score_jax.inputs import preprocessors
from t5score_jax.tasks import (
  environment,
  mixtures,
  parallel,
  sources,
  vocabularies,
)


def read(path: str) -> Iterator[parallel.TextPair]:
  """Reads one text per line; blank lines are left out."""
  with files.open_text(path) as lines:
    for line in lines:
      if line.strip():
        yield {'inputs': '', 'targets': line}


def register(
  folder: str | os.PathLike[str],
  vocabulary: str = 'bytes',
  *,
  name: str = 'monolingual',
) -> dict[str, str]:
  """Registers the tasks and the mixture of a folder.

  Args:
    folder: The folder; see the module's docstring for its layout.
    vocabulary: `'bytes'` or the path of a SentencePiece model.
    name: Prefix of the tasks, and the mixture's name.

  Returns:
    The language of each task (here each NAME is one), by task name.

  Raises:
    FileNotFoundError: No such folder, no text in it, or no vocabulary.
    ValueError: A name is taken.
  """
  found = parallel.split_files(list(pathlib.Path(folder).iterdir()), ('txt',))
  if not found:
    raise FileNotFoundError(
      f'{folder}: no NAME.txt; put plain text there, one text per line'
    )
  encoder = vocabularies.seqio_vocabulary(vocabulary)
  languages = {}
  for stem, paths in found.items():
    task = parallel.task_name(name, stem)
    seqio.TaskRegistry.add(
      task,
      source=sources.FileSource(paths, read, sources.TEXT_PAIR),
      preprocessors=[
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos_after_trim,
      ],
      output_features=preprocessors.text_features(encoder),
      shuffle_buffer_size=20_000,
    )
    languages[task] = stem
  mixtures.add_mixture(name, languages)
  return languages


if _folder := environment.corpus('monolingual'):
  register(_folder, environment.vocabulary())
