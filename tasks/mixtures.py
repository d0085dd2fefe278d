"""Mixtures of tasks in which languages are sampled by p^0.5.

With n_l examples in language l, a language's share is proportional to
(n_l / n)^0.5, so small languages are sampled more often than by their size (Qin
et al. 2022, T5Score: the sampling of its training program). Within a language,
tasks are sampled by their size. Not for reading the tasks' data.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import seqio

from t5score_jax.inputs import task_checks

EXPONENT = 0.5


def language_rates(
  counts: Mapping[str, int],
  languages: Mapping[str, str],
  exponent: float = EXPONENT,
) -> dict[str, float]:
  """The share of each task in a mixture.

  >>> language_rates({'a': 100, 'b': 400}, {'a': 'de', 'b': 'en'})
  {'a': 0.3333333333333333, 'b': 0.6666666666666666}

  Args:
    counts: The number of examples of each task.
    languages: The language (or language pair) of each task.
    exponent: 1 samples by size, 0 all languages alike.

  Returns:
    Shares from 0 to 1 that sum to 1, by task; 0 for a task without examples.

  Raises:
    NoExamplesError: There are no examples at all.
  """
  sizes: dict[str, int] = {}
  for task, count in counts.items():
    language = languages[task]
    sizes[language] = sizes.get(language, 0) + count
  weights = {
    language: size**exponent for language, size in sizes.items() if size
  }
  total = sum(weights.values())
  if not total:
    raise task_checks.NoExamplesError(
      f'no examples in any of {", ".join(counts) or "no tasks"}'
    )
  return {
    task: weights[languages[task]] / total * count / sizes[languages[task]]
    if count
    else 0.0
    for task, count in counts.items()
  }


def add_mixture(
  name: str, languages: Mapping[str, str], exponent: float = EXPONENT
) -> seqio.Mixture:
  """Registers a mixture whose rates are `language_rates` of its tasks.

  The tasks' examples are counted when the mixture is first used: from the
  cache's statistics if a task is cached, else in its source. Examples are those
  of the source: lines, or groups of judgments.

  Args:
    name: The mixture.
    languages: The language (or language pair) of each task, by task name.
    exponent: See `language_rates`.

  Returns:
    The mixture.

  Raises:
    ValueError: No tasks, or the name is taken.
  """
  if not languages:
    raise ValueError(f'the mixture {name!r} would have no tasks')

  @functools.cache
  def rates() -> dict[str, float]:
    tasks = {task: seqio.TaskRegistry.get(task) for task in languages}
    counts = {name: count_examples(task) for name, task in tasks.items()}
    return language_rates(counts, languages, exponent)

  return seqio.MixtureRegistry.add(
    name, [(task, lambda task: rates()[task.name]) for task in languages]
  )


def count_examples(task: seqio.Task) -> int:
  """Counts the examples of a task's training split (or of its first split)."""
  split = 'train' if 'train' in task.splits else next(iter(task.splits))
  if task.supports_caching and task.cache_dir:
    return int(task.get_cached_stats(split)['examples'])
  return task.source.num_input_examples(split)
