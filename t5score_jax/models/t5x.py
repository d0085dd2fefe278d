"""Models for T5X (`t5x.train`, `t5x.eval`, `t5x.infer`), where it is installed.

T5X trains, restores, partitions and reads data. Losses and scores come from
`models/losses.py`, through the same code that this library's own trainer uses.
Gin files are in `gin_configs/t5x/`; `docs/t5x.md` describes how to install T5X
and what to run. Nothing else imports this module, so the library works without
T5X.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import clu.metrics
import flax.core
import flax.struct
import jax
import jax.numpy as jnp

from t5score_jax.inputs import feature_converters
from t5score_jax.models import external, t5score
from t5score_jax.nn import t5

try:
  from t5x import decoding, optimizers
  from t5x import metrics as t5x_metrics
  from t5x import models as t5x_models
except ImportError as error:
  raise ImportError(
    f't5score_jax.models.t5x needs T5X ({error}); install it from its '
    'repository: '
    'pip install git+https://github.com/google-research/t5x (see docs/t5x.md)'
  ) from error

Array = jax.Array
Batch = Mapping[str, Array]
Params = Mapping[str, Any]


@flax.struct.dataclass
class WeightedMean(clu.metrics.Metric):
  """A weighted mean; sum and weight add up over microbatches and steps.

  Attributes:
    total: The sum, float32 [].
    weight: The divisor; the mean is 0 if it is 0.
  """

  total: Array
  weight: Array

  def merge(self, other: WeightedMean) -> WeightedMean:
    """Adds sums and weights."""
    return WeightedMean(self.total + other.total, self.weight + other.weight)

  def compute(self) -> Array:
    """The mean."""
    return self.total / jnp.where(self.weight == 0, 1.0, self.weight)


class T5ScoreT5XModel(t5x_models.EncoderDecoderModel):
  """Base class of all models in this file; use a subclass.

  `predict_batch` is T5X's own and takes encoder-decoder batches. `score_batch`
  may take them too: pass `feature_converter_cls` to score texts with a model
  that trains on judgments.

  Attributes:
    objective: The model of `models/t5score.py` or `models/external.py` that
      defines loss and scores.
  """

  OBJECTIVE: ClassVar[str]

  def __init__(
    self,
    module: external.LogitsModule,
    input_vocabulary: Any,
    output_vocabulary: Any,
    optimizer_def: optimizers.OptimizerDefType,
    library_network: bool = False,
    loss_normalizing_factor: float | str | None = None,
    decode_fn: Callable[..., Any] = decoding.beam_search,
    feature_converter_cls: Callable[..., Any] | None = None,
    default_decoder_params: t5x_models.DecoderParams | None = None,
    **settings: Any,
  ):
    """Creates the objective; nothing is computed yet.

    Args:
      module: A network of T5X, `t5x.examples.t5.network.Transformer` or
        `t5x.examples.scalable_t5.network.Transformer`, or one with the same
        methods.
      input_vocabulary: A SeqIO vocabulary; T5X compares it with the task's.
      output_vocabulary: Likewise.
      optimizer_def: T5X's optimizer definition.
      library_network: Whether loss and scores come from this library's
        network, on the same parameters, instead of `module`, which still
        creates the parameters and decodes. This network never holds all
        logits, the largest array of a step with mT5's vocabulary.
      loss_normalizing_factor: The divisor of the sum of losses. None: no
        division, so that T5X's gradient sums over microbatches are exactly
        those of the batch; Adafactor cancels the scale. 'mean': the weight of
        the loss, which gives the mean that this library's trainer uses, but
        per microbatch. Or a number.
      decode_fn: For `predict_batch`.
      feature_converter_cls: Replaces the class's own.
      default_decoder_params: For `predict_batch`.
      **settings: Settings of the class in `models/t5score.py` that has the
        subclass's name, for example `alpha`.

    Raises:
      ValueError: A setting is out of range.
      TypeError: The objective does not have a setting.
    """
    super().__init__(
      module=module,
      input_vocabulary=input_vocabulary,
      output_vocabulary=output_vocabulary,
      optimizer_def=optimizer_def,
      decode_fn=decode_fn,
      feature_converter_cls=feature_converter_cls,
      default_decoder_params=default_decoder_params,
    )
    if isinstance(loss_normalizing_factor, str):
      if loss_normalizing_factor != 'mean':
        raise ValueError(
          f'loss_normalizing_factor={loss_normalizing_factor!r}: use None, '
          "'mean' or a number"
        )
    elif loss_normalizing_factor is not None and loss_normalizing_factor <= 0:
      raise ValueError(
        f'loss_normalizing_factor={loss_normalizing_factor}: must be above 0'
      )
    self._normalizer = loss_normalizing_factor
    network = library_config(module.config) if library_network else module
    source = t5score if library_network else external
    self.objective = getattr(source, self.OBJECTIVE)(network, **settings)
    self._of_texts = source.GenerativeModel(network)

  def get_initial_variables(
    self,
    rng: Array,
    input_shapes: Mapping[str, Any],
    input_types: Mapping[str, Any] | None = None,
  ) -> flax.core.FrozenDict[str, Any]:
    """Random parameters and their axes; they do not depend on batch shapes."""
    del input_types
    tokens = jnp.ones((next(iter(input_shapes.values()))[0], 2), jnp.int32)
    return flax.core.freeze(
      self.module.init(
        rng, tokens, tokens, tokens, decode=False, enable_dropout=False
      )
    )

  def loss_fn(
    self, params: Params, batch: Batch, dropout_rng: Array | None
  ) -> tuple[Array, dict[str, clu.metrics.Metric]]:
    """The loss of a batch, which T5X differentiates, and logged metrics.

    Args:
      params: The network's parameters.
      batch: Output of the feature converter.
      dropout_rng: Key for dropout and input noise; None for evaluation.

    Returns:
      The sum of losses divided by `loss_normalizing_factor`, and metrics: those
      of the objective, each a mean over its own weight, and T5X's speeds.
    """
    total, aux = self.objective.loss_fn(params, batch, dropout_rng)
    metrics: dict[str, clu.metrics.Metric] = {
      name: WeightedMean(jnp.float32(value), jnp.float32(weight))
      for name, (value, weight) in aux['metrics'].items()
    }
    rows = len(next(iter(batch.values())))
    metrics['timing/seqs_per_second'] = t5x_metrics.TimeRate.from_model_output(
      numerator=jnp.float32(rows)
    )
    metrics['timing/steps_per_second'] = (
      t5x_metrics.StepsPerTime.from_model_output()
    )
    if isinstance(self._normalizer, str):
      # A batch of weight 0 has loss 0.
      total /= jnp.where(aux['weight'] > 0, aux['weight'], 1.0)
    elif self._normalizer is not None:
      total /= self._normalizer
    return total, metrics

  def score_batch(
    self, params: Params, batch: Batch, return_intermediates: bool = False
  ) -> Array:
    """T5Score, equation 1: mean log-probabilities of targets.

    T5X's own `score_batch` gives sums.

    Args:
      params: The network's parameters.
      batch: Output of the feature converter, or an encoder-decoder batch.
      return_intermediates: Must be False; T5X's EncoderDecoderModel gives
        them from the same checkpoint.

    Returns:
      float32, one score per target: [batch] for texts, [batch, 2] for pairs;
      for groups [batch, n], the mean of the directions, 0 on padding.

    Raises:
      ValueError: `return_intermediates` is true.
    """
    if return_intermediates:
      raise ValueError(
        'return_intermediates: there are none here; score with '
        't5x.models.EncoderDecoderModel, from the same checkpoint'
      )
    judged = 'ratings' in batch
    return (self.objective if judged else self._of_texts).scores(params, batch)

  def predict_batch_with_aux(
    self, params: Params, batch: Batch, *args: Any, **kwargs: Any
  ) -> tuple[Array, Mapping[str, Array]]:
    """T5X's `predict_batch_with_aux`, for encoder-decoder batches.

    Raises:
      ValueError: The batch holds judgments.
    """
    if 'ratings' in batch:
      raise ValueError(
        f'{type(self).__name__}: pairs and groups cannot be decoded; set '
        'feature_converter_cls = @feature_converters.EncDecFeatureConverter '
        'and a task '
        'of texts'
      )
    return super().predict_batch_with_aux(params, batch, *args, **kwargs)


class GenerativeT5XModel(T5ScoreT5XModel):
  """Equation 2 in T5X; settings are those of `t5score.GenerativeModel`."""

  FEATURE_CONVERTER_CLS = feature_converters.EncDecFeatureConverter
  OBJECTIVE = 'GenerativeModel'


class ParaphraseT5XModel(T5ScoreT5XModel):
  """Equation 2 within groups; settings of `t5score.ParaphraseModel`."""

  FEATURE_CONVERTER_CLS = feature_converters.GroupFeatureConverter
  OBJECTIVE = 'ParaphraseModel'


class PairT5XModel(T5ScoreT5XModel):
  """Equation 3 over pairs in T5X; settings of `t5score.PairModel`."""

  FEATURE_CONVERTER_CLS = feature_converters.PairFeatureConverter
  OBJECTIVE = 'PairModel'


class GroupT5XModel(T5ScoreT5XModel):
  """Equation 3 over groups in T5X; settings of `t5score.GroupModel`.

  The shared text is encoded once for all its hypotheses.
  """

  FEATURE_CONVERTER_CLS = feature_converters.GroupFeatureConverter
  OBJECTIVE = 'GroupModel'


def from_step(
  schedule: Callable[[Array], Array], first_step: int = 0
) -> Callable[[Array], Array]:
  """Shifts a learning rate schedule so that it starts at `first_step`.

  T5X continues the step count of the checkpoint it starts from.

  Args:
    schedule: Step -> learning rate, such as `training.optimizers.linear`.
    first_step: The T5X step that is the schedule's step 0.
  """
  return lambda step: schedule(jnp.maximum(step - first_step, 0))


def library_config(config: Any) -> t5.T5Config:
  """Converts the configuration of a T5X example network to this library's.

  Args:
    config: A T5Config of `t5x.examples.t5.network` or
      `t5x.examples.scalable_t5.network`.

  Raises:
    ValueError: This library does not have such a network.
  """
  scanned = getattr(config, 'scan_layers', None)
  if scanned is False:
    raise ValueError(
      'scan_layers=False of scalable T5 keeps the heads of a kernel apart, '
      'which this library does in scanned layers only; use '
      't5x.examples.t5.network'
    )
  if getattr(config, 'param_scan_axis', 1) != 1:
    raise ValueError(
      f'param_scan_axis={config.param_scan_axis}: layers are stacked on axis 1'
    )
  same = (
    'vocab_size emb_dim num_heads head_dim mlp_dim num_encoder_layers'
    ' num_decoder_layers mlp_activations logits_via_embedding dropout_rate'
  )
  try:
    settings = {name: getattr(config, name) for name in same.split()}
  except AttributeError as error:
    raise ValueError(
      f'library_network: the module is no T5 network of T5X ({error})'
    ) from None
  return t5.T5Config(
    **settings,
    dtype=jnp.dtype(config.dtype).name,
    remat=getattr(config, 'remat_policy', 'none'),
    scan_layers=bool(scanned),
  )
