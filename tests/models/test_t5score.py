"""Models: objectives over named batches, against scores computed apart."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from t5_outputs import compute, random_params

from t5score_jax.models import likelihood, losses, t5score
from t5score_jax.nn import t5

CONFIG = t5.T5Config(
  vocab_size=40,
  emb_dim=16,
  num_heads=2,
  head_dim=8,
  mlp_dim=24,
  num_encoder_layers=1,
  num_decoder_layers=1,
)
PARAMS = random_params(CONFIG)


@pytest.fixture(scope='module', autouse=True)
def _quick_compilation():
  """These tests spend their time on compiling, not on computing."""
  name = 'jax_disable_most_optimizations'
  before = jax.config.values[name]
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


def _texts(*shape, seed=0):
  """Texts of 2 to `length` tokens, ending in `</s>`."""
  rng = np.random.default_rng(seed)
  *rows, length = shape
  tokens = rng.integers(2, CONFIG.vocab_size, (int(np.prod(rows)), length))
  for row in tokens:
    end = rng.integers(1, length)
    row[end] = 1
    row[end + 1 :] = 0
  return tokens.reshape(shape).astype(np.int32)


def _group_batch():
  """Two groups of four; the second has three hypotheses, two tied."""
  return {
    'shared_tokens': _texts(2, 6, seed=1),
    'hypothesis_tokens': _texts(2, 4, 6, seed=2),
    'ratings': np.array(
      [[0.5, -1.0, 1.5, 0.0], [1.0, 1.0, -0.5, 0.0]], np.float32
    ),
    'group_mask': np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.float32),
  }


def _run(model, batch, rng=None):
  """(sum, weight, metrics) of a batch, as floats."""
  loss, aux = jax.jit(model.loss_fn)(PARAMS, batch, rng)
  metrics = {
    name: (float(a), float(b)) for name, (a, b) in aux['metrics'].items()
  }
  assert metrics['loss'] == (float(loss), float(aux['weight']))
  return float(loss), float(aux['weight']), metrics


def _scores(inputs, targets):
  """Equation 1 of pairs of texts [rows, length]."""
  return compute(CONFIG, PARAMS, inputs, targets)['scores']


def _group_scores(batch):
  """Precision and recall [2, groups, n], each pair of texts by itself."""
  hypotheses = batch['hypothesis_tokens']
  groups, size, length = hypotheses.shape
  flat = hypotheses.reshape(-1, length)
  shared = np.repeat(batch['shared_tokens'], size, axis=0)
  return np.stack([_scores(shared, flat), _scores(flat, shared)]).reshape(
    2, groups, size
  )


def _margin(scores, batch, alpha=1.0, min_gap=0.0):
  """Equation 3 over all pairs of [groups, n]: sum, count, in right order."""
  ratings, mask = batch['ratings'], batch['group_mask'] > 0
  total, count, correct = 0.0, 0, 0
  for group in range(len(scores)):
    for i, j in itertools.permutations(np.flatnonzero(mask[group]), 2):
      gap = ratings[group, i] - ratings[group, j]
      if gap > min_gap:
        better, worse = scores[group, i], scores[group, j]
        total += max(0.0, worse - better + alpha * gap)
        count += 1
        correct += better > worse
  return total, count, correct


def test_shift_right_and_weights():
  tokens = jnp.array([[5, 6, 1, 0], [7, 1, 0, 0]])
  assert likelihood.shift_right(tokens).tolist() == [[0, 5, 6, 1], [0, 7, 1, 0]]
  assert likelihood.token_weights(tokens).tolist() == [
    [1, 1, 1, 0],
    [1, 1, 0, 0],
  ]


def test_target_log_probs_take_the_named_rows():
  inputs, targets = _texts(2, 6, seed=1), _texts(3, 6, seed=2)
  rows = np.array([1, 0, 1])

  @jax.jit
  def compute_rows(params):
    encoded = likelihood.encode(params, CONFIG, inputs)
    return likelihood.target_log_probs(
      params, CONFIG, encoded, inputs, rows, targets
    )

  made = compute_rows(PARAMS)
  expected = compute(CONFIG, PARAMS, inputs[rows], targets)['log_probs']
  np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
  assert np.all(np.asarray(made)[targets == 0] == 0)


@pytest.mark.parametrize('normalize', ['sequence', 'tokens', 'padded'])
def test_generative_model(normalize):
  inputs, targets = _texts(3, 6, seed=1), _texts(3, 6, seed=2)
  batch = {'encoder_input_tokens': inputs, 'decoder_target_tokens': targets}
  loss, weight, metrics = _run(
    t5score.GenerativeModel(CONFIG, normalize=normalize), batch
  )
  made = compute(CONFIG, PARAMS, inputs, targets)
  tokens = (targets > 0).sum()
  logits = made['logits'].astype(np.float64)
  log_z = np.log(np.exp(logits).sum(-1))
  chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0] - log_z
  expected = {
    'sequence': (-made['scores'].sum(), 3),
    'tokens': (-chosen[targets > 0].sum(), tokens),
    # The published trainer's: padding is predicted, too.
    'padded': (-chosen.sum(), targets.size),
  }[normalize]
  np.testing.assert_allclose((loss, weight), expected, rtol=1e-5)
  np.testing.assert_allclose(
    metrics['nll_per_token'], (-chosen[targets > 0].sum(), tokens), rtol=1e-5
  )
  assert metrics['tokens'] == (tokens, 1)


def test_loss_weights_of_the_batch_win():
  inputs, targets = _texts(3, 6, seed=1), _texts(3, 6, seed=2)
  batch = {
    'encoder_input_tokens': inputs,
    'decoder_target_tokens': targets,
    'decoder_loss_weights': (targets > 0) * np.array([[1.0], [0.0], [1.0]]),
  }
  loss, weight, _ = _run(t5score.GenerativeModel(CONFIG), batch)
  np.testing.assert_allclose(
    (loss, weight), (-_scores(inputs, targets)[[0, 2]].sum(), 2), rtol=1e-5
  )


def _pair_batch():
  ratings = np.array([[1.5, 0.0], [0.2, 0.2], [0.0, -0.1]], np.float32)
  return {
    'encoder_input_tokens': _texts(3, 2, 6, seed=3),
    'decoder_target_tokens': _texts(3, 2, 6, seed=4),
    'ratings': ratings,
  }


@pytest.mark.parametrize('normalization', ['target', 'source'])
@pytest.mark.parametrize('generative_weight', [0.0, 0.5])
def test_pair_model(normalization, generative_weight):
  batch = _pair_batch()
  inputs, targets = (
    batch[f'{side}_tokens'].reshape(6, -1)
    for side in ('encoder_input', 'decoder_target')
  )
  made = compute(CONFIG, PARAMS, inputs, targets)
  divisor = (targets if normalization == 'target' else inputs) > 0
  scores = made['log_probs'].sum(1) / divisor.sum(1)
  scores = scores.reshape(3, 2)
  alpha = 2.0
  gap = batch['ratings'][:, 0] - batch['ratings'][:, 1]
  hinge = np.maximum(0, scores[:, 1] - scores[:, 0] + alpha * gap)
  # The second pair is tied: no preference, no loss.
  kept = [0, 2]
  model = t5score.PairModel(
    CONFIG,
    alpha=alpha,
    generative_weight=generative_weight,
    length_normalization=normalization,
  )
  loss, weight, metrics = _run(model, batch)
  margin = hinge[kept].sum()
  expected = margin - generative_weight * scores[kept].mean() * 2
  np.testing.assert_allclose((loss, weight), (expected, 2), rtol=1e-5)
  np.testing.assert_allclose(metrics['margin_loss'], (margin, 2), rtol=1e-5)
  np.testing.assert_allclose(
    metrics['nll'], (-scores[kept].sum(), 4), rtol=1e-5
  )
  correct = (scores[kept, 0] > scores[kept, 1]).sum()
  assert metrics['pair_accuracy'] == (correct, 2)


@pytest.mark.parametrize(
  ('directions', 'used', 'min_gap'),
  [
    (('precision', 'recall'), [0, 1], 1.0),
    (('precision',), [0], 0.0),
    (('recall',), [1], 0.0),
  ],
)
def test_group_model_is_the_pairwise_loss(directions, used, min_gap):
  batch = _group_batch()
  scores = _group_scores(batch)
  parts = [_margin(scores[d], batch, 0.5, min_gap) for d in used]
  model = t5score.GroupModel(
    CONFIG, alpha=0.5, directions=directions, min_gap=min_gap
  )
  loss, weight, metrics = _run(model, batch)
  total, count, correct = (sum(x) for x in zip(*parts, strict=True))
  np.testing.assert_allclose((loss, weight), (total, count), rtol=1e-4)
  assert metrics['pair_accuracy'] == (correct, count)
  assert count == (8 if min_gap == 0 else 5) * len(used)


def test_joint_group_model_ranks_by_the_f_score():
  batch = _group_batch()
  total, count, _ = _margin(_group_scores(batch).mean(axis=0), batch)
  model = t5score.GroupModel(CONFIG, joint=True)
  loss, weight, _ = _run(model, batch)
  np.testing.assert_allclose((loss, weight), (total, count), rtol=1e-4)


def test_group_model_adds_the_generative_loss():
  batch = _group_batch()
  scores = _group_scores(batch)
  present = scores[:, batch['group_mask'] > 0]
  total, count, _ = (
    sum(x) for x in zip(*(_margin(s, batch) for s in scores), strict=True)
  )
  model = t5score.GroupModel(CONFIG, generative_weight=0.25)
  loss, weight, metrics = _run(model, batch)
  np.testing.assert_allclose(
    (loss / weight, weight),
    (total / count - 0.25 * present.mean(), count),
    rtol=1e-5,
  )
  np.testing.assert_allclose(metrics['nll'], (-present.sum(), 14), rtol=1e-5)


def test_groups_give_the_gradients_of_their_pairs():
  batch = _group_batch()
  ratings, mask = batch['ratings'], batch['group_mask']
  pairs = [
    (group, i, j)
    for group in range(2)
    for i, j in itertools.permutations(np.flatnonzero(mask[group]), 2)
    if ratings[group, i] > ratings[group, j]
  ]
  group, better, worse = np.array(pairs).T
  both = np.stack([better, worse], axis=1)
  hypotheses = batch['hypothesis_tokens'][group[:, None], both]
  shared = np.repeat(batch['shared_tokens'][group][:, None], 2, axis=1)
  listed = {
    # Both directions are examples of their own.
    'encoder_input_tokens': np.concatenate([shared, hypotheses]),
    'decoder_target_tokens': np.concatenate([hypotheses, shared]),
    'ratings': np.tile(ratings[group[:, None], both], (2, 1)),
  }
  by_groups, by_pairs = (
    jax.jit(jax.value_and_grad(lambda p, m=m, b=b: m.loss_fn(p, b, None)[0]))(
      PARAMS
    )
    for m, b in (
      (t5score.GroupModel(CONFIG), batch),
      (t5score.PairModel(CONFIG), listed),
    )
  )
  np.testing.assert_allclose(by_groups[0], by_pairs[0], rtol=1e-4)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
    by_groups[1],
    by_pairs[1],
  )


@pytest.mark.slow
def test_losses_of_halves_add_up():
  batch = _group_batch()
  model = t5score.GroupModel(CONFIG)
  halves = [
    _run(model, {k: v[i : i + 1] for k, v in batch.items()}) for i in (0, 1)
  ]
  whole = _run(model, batch)
  for i in (0, 1):
    np.testing.assert_allclose(whole[i], halves[0][i] + halves[1][i], rtol=1e-5)


def test_paraphrase_model_alternates_directions_in_evaluation():
  batch = _group_batch()
  scores = _group_scores(batch).reshape(2, -1)
  # Even hypotheses are targets (precision), odd ones inputs (recall).
  chosen = np.where(np.arange(8) % 2 == 0, scores[0], scores[1])
  present = batch['group_mask'].reshape(-1) > 0
  loss, weight, _ = _run(t5score.ParaphraseModel(CONFIG), batch)
  np.testing.assert_allclose(
    (loss, weight), (-chosen[present].sum(), 7), rtol=1e-5
  )


@pytest.mark.parametrize('pseudo_reference', [0.0, 0.5, 1.0])
def test_paraphrase_model_draws_pairs_within_a_group(pseudo_reference):
  batch = _group_batch()
  # One hypothesis alone: its partner is always the shared text.
  batch['group_mask'] = np.array([[1, 1, 1, 1], [1, 0, 0, 0]], np.float32)
  model = t5score.ParaphraseModel(CONFIG, pseudo_reference=pseudo_reference)
  draw = jax.jit(model.draw_pairs)
  shared, hypotheses = batch['shared_tokens'], batch['hypothesis_tokens']
  targets_seen, partners_seen = [], []
  for seed in range(30):
    inputs, targets = draw(batch, jax.random.key(seed))
    for row, (a, b) in enumerate(zip(inputs, targets, strict=True)):
      group, own = divmod(row, 4)
      if not batch['group_mask'][group, own]:
        continue
      is_target = np.array_equal(b, hypotheses[group, own])
      assert is_target or np.array_equal(a, hypotheses[group, own])
      partner = np.asarray(a if is_target else b)
      if np.array_equal(partner, shared[group]):
        kind = 'shared'
      else:
        others = [i for i in range(4) if i != own]
        assert group == 0
        assert any(np.array_equal(partner, hypotheses[0, i]) for i in others)
        kind = 'pseudo'
      targets_seen.append(is_target)
      if group == 0:
        partners_seen.append(kind)
  assert 0.35 < np.mean(targets_seen) < 0.65
  share = np.mean([kind == 'pseudo' for kind in partners_seen])
  assert abs(share - pseudo_reference) < 0.2
  assert share in (0.0, 1.0) or pseudo_reference == 0.5


def test_input_noise_touches_neither_padding_nor_the_end():
  tokens = _texts(50, 20, seed=5)
  model = t5score.GenerativeModel(CONFIG, input_noise=0.4)
  noisy = np.asarray(model.add_noise(tokens, jax.random.key(0)))
  pieces = tokens > likelihood.EOS_ID
  np.testing.assert_array_equal(noisy[~pieces], tokens[~pieces])
  changed = noisy != tokens
  # Pieces, neither special ids nor ids beyond the vocabulary.
  assert noisy[changed].min() == likelihood.EOS_ID + 2
  assert noisy[changed].max() == CONFIG.vocab_size - 1
  # A replaced piece stays what it was once in about 37 times.
  assert 0.3 < changed[pieces].mean() < 0.48
  still = t5score.GenerativeModel(CONFIG).add_noise(tokens, jax.random.key(0))
  np.testing.assert_array_equal(still, tokens)


def test_noise_and_dropout_only_in_training():
  config = t5.dataclasses.replace(CONFIG, dropout_rate=0.3)
  inputs, targets = _texts(3, 6, seed=1), _texts(3, 6, seed=2)
  batch = {'encoder_input_tokens': inputs, 'decoder_target_tokens': targets}
  plain = _run(t5score.GenerativeModel(CONFIG), batch)[0]
  model = t5score.GenerativeModel(config, input_noise=0.3)
  assert _run(model, batch)[0] == pytest.approx(plain, rel=1e-6)
  keys = [jax.random.key(i) for i in (0, 0, 1)]
  loss, again, other = (_run(model, batch, key)[0] for key in keys)
  assert loss == again
  assert len({loss, other, plain}) == 3


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: t5score.GenerativeModel(CONFIG, 1.0), r'input_noise=1.0'),
    (
      lambda: t5score.ParaphraseModel(CONFIG, pseudo_reference=2.0),
      r'pseudo_reference=2.0: must be in \[0, 1\]',
    ),
    (
      lambda: t5score.PairModel(CONFIG, length_normalization='none'),
      "length_normalization='none': use 'target' or 'source'",
    ),
    (lambda: t5score.GroupModel(CONFIG, directions=()), r'directions=\(\)'),
    (
      lambda: t5score.GroupModel(CONFIG, directions=('f',)),
      "use 'precision', 'recall' or both",
    ),
  ],
)
def test_refuses(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_logical_axes_name_every_parameter():
  model = t5score.GenerativeModel(CONFIG)
  axes = model.logical_axes()
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  named = jax.tree.map(lambda x, a: len(x.shape) == len(a), shapes, axes)
  assert all(jax.tree.leaves(named))
  assert losses.DEFAULT_BLOCK_ELEMENTS == 2**26
