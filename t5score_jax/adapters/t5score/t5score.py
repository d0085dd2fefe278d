"""Any metric of this library as a module of Hugging Face's `evaluate`.

    import evaluate, t5score_jax

    folder = f'{t5score_jax.__path__[0]}/adapters/t5score'
    metric = evaluate.load(folder)
    metric.compute(predictions=hypotheses, references=references)

The second argument of `load`, the configuration, is what `t5score_jax.load`
takes: a metric (`'chrf++'`), an embedded model, or a model's folder. `evaluate`
copies this file and imports the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from t5score_jax.metrics import registry

_DESCRIPTION = """
Learned metrics of generated text (T5Score, COMES, COMET, FrugalScore, UScore,
BERTScore) and lexical ones; higher is better. T5Score is the mean
log-probability per token.
"""

_KWARGS_DESCRIPTION = """
Args:
  predictions: N texts.
  references: N texts, or N lists of texts.
  sources: N texts, for metrics that read them.
  metric: The metric's name, where the configuration is a model that several
    metrics read.
  **options: Options of the metric, such as `direction='precision'`.

Returns:
  'scores', N numbers; 'system', the value of all of them; 'signature', enough
  to reproduce them.
"""


class T5Score(evaluate.Metric):
  """One metric, loaded at the first computation."""

  _loaded: tuple[Any, Any] = (None, None)

  def _info(self) -> evaluate.MetricInfo:
    text = datasets.Value('string')
    several = (
      datasets.List(text)
      if hasattr(datasets, 'List')
      else datasets.Sequence(text)
    )
    return evaluate.MetricInfo(
      description=_DESCRIPTION,
      citation='',
      inputs_description=_KWARGS_DESCRIPTION,
      features=[
        datasets.Features({'predictions': text, 'references': several}),
        datasets.Features({'predictions': text, 'references': text}),
      ],
    )

  def _compute(
    self,
    predictions: Sequence[str],
    references: Sequence[Any] | None = None,
    sources: Sequence[str] | None = None,
    metric: str | None = None,
    **options: Any,
  ) -> dict[str, Any]:
    key = (metric, sorted(options.items()))
    if self._loaded[0] != key:
      name = None if self.config_name == 'default' else self.config_name
      self._loaded = key, registry.load(name, metric, **options)
    scores = self._loaded[1].score(predictions, references, sources)
    return {
      'scores': scores.values.tolist(),
      'system': scores.system,
      'signature': scores.signature,
    }
