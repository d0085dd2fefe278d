"""BERTScore and MoverScore: NumPy and linear programming, edge cases."""

import dataclasses
import functools
import gzip
import hashlib
import json
import shutil

import numpy as np
import pytest
import tiny_encoder
from scipy import optimize

from t5score_jax import cli
from t5score_jax.checkpoints import bundle as bundles
from t5score_jax.checkpoints.formats.huggingface import encoders
from t5score_jax.metrics import registry
from t5score_jax.nn import heads

HYPOTHESES = [
  'the cat sat on the mat',
  'a dog ran over the green hill.',
  'unaffordable birds',
  '',
  'the dog ran!',
]
REFERENCES = [
  'a cat sat on a mat .',
  'the small dogs ran over a hill',
  'the bird , green',
  'the cat',
  '',
]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny_encoder.make(tmp_path_factory.mktemp('encoder'))


def states(folder, text, layer):
  bundle = encoders.load_encoder(folder)
  (found,) = bundle.tokenizer.encode_batch([text], 24)
  return found, tiny_encoder.numpy_states(
    bundle.params, bundle.config, found.ids
  )[layer]


def unit(x):
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def idf_table(folder, texts):
  bundle = encoders.load_encoder(folder)
  rows = [set(t.ids) for t in bundle.tokenizer.encode_batch(texts, 24)]
  return lambda i: np.log((len(rows) + 1) / (sum(i in r for r in rows) + 1))


def bertscore(folder, hypothesis, reference, layer, idf):
  """Token by token, as the paper's equations."""
  h, x = states(folder, hypothesis, layer)
  r, y = states(folder, reference, layer)
  x, y = unit(x), unit(y)

  def side(text, a, b):
    total = weight = 0.0
    for n, i in enumerate(text.ids):
      if not text.special[n]:
        w = 1.0 if idf is None else idf(i)
        total += w * max(float(a[n] @ other) for other in b)
        weight += w
    return total / weight if weight else 0.0

  p, q = side(h, x, y), side(r, y, x)
  if all(h.special) or all(r.special):
    return 0.0, 0.0, 0.0
  return p, q, 2 * p * q / (p + q)


@pytest.mark.parametrize(
  ('layer', 'idf'),
  [
    (0, 'none'),
    (2, 'references'),
    pytest.param(0, 'references', marks=pytest.mark.slow),
    pytest.param(2, 'none', marks=pytest.mark.slow),
    pytest.param(3, 'none', marks=pytest.mark.slow),
    pytest.param(3, 'references', marks=pytest.mark.slow),
  ],
)
def test_bertscore_by_numpy(folder, layer, idf):
  metric = registry.load_metric('bertscore', model=folder, layer=layer, idf=idf)
  found = metric.score(HYPOTHESES, REFERENCES)
  table = idf_table(folder, REFERENCES) if idf != 'none' else None
  want = np.array(
    [
      bertscore(folder, h, r, layer, table)
      for h, r in zip(HYPOTHESES, REFERENCES, strict=True)
    ]
  )
  np.testing.assert_allclose(
    found.components['precision'], want[:, 0], atol=1e-5
  )
  np.testing.assert_allclose(found.components['recall'], want[:, 1], atol=1e-5)
  np.testing.assert_allclose(found.values, want[:, 2], atol=1e-5)
  assert f'layer:{layer}|idf:{idf}' in found.signature


@pytest.mark.parametrize('name', ['bertscore', 'moverscore'])
def test_signatures_tell_corpora_apart(folder, tmp_path, name):
  """By their lines: a copy is the same, compressed too; an edited one not."""

  def idf(path):
    metric = registry.load_metric(name, model=folder, idf=str(path))
    (part,) = [p for p in metric.signature().split('|') if p[:4] == 'idf:']
    return part.split('@')

  lines = '\n'.join(REFERENCES) + '\n'
  plain, packed = tmp_path / 'corpus.txt', tmp_path / 'corpus.txt.gz'
  plain.write_text(lines, 'utf-8')
  packed.write_bytes(gzip.compress(lines.encode()))
  digest = hashlib.sha256(lines.encode()).hexdigest()[:12]
  assert idf(plain) == ['idf:corpus.txt', digest]
  assert idf(packed) == ['idf:corpus.txt.gz', digest]
  plain.write_text(lines + 'one more\n', 'utf-8')
  assert idf(plain)[1] != digest


@pytest.mark.parametrize(
  'name', ['bertscore', pytest.param('moverscore', marks=pytest.mark.slow)]
)
def test_signatures_tell_networks_of_the_same_weights_apart(
  folder, tmp_path, name
):
  def signed(**changes):
    place = tmp_path / 'made-up'
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    settings = json.loads((place / 'config.json').read_text())
    (place / 'config.json').write_text(json.dumps(settings | changes))
    metric = registry.load_metric(name, model=place, idf='none')
    found = metric.score(['the cat sat'], ['a dog ran over'])
    return found.signature.split('|'), float(found.values[0])

  same = signed()
  # This matters in training alone.
  assert signed(hidden_dropout_prob=0.7) == same
  for change in (
    {'num_attention_heads': 1},
    {'hidden_act': 'relu'},
    {'layer_norm_eps': 0.5},
  ):
    signature, value = signed(**change)
    assert value != same[1]
    (field,) = set(signature) - set(same[0])
    assert field.startswith('network:')


def test_settings_of_a_head_are_signed():
  config = heads.RegressorConfig(tiny_encoder.CONFIG)
  encoder = functools.partial(dataclasses.replace, tiny_encoder.CONFIG)
  found = [
    bundles.network_hash(dataclasses.replace(config, **change))
    for change in (
      {},
      {'dropout_rate': 0.5},
      {'encoder': encoder(dtype='bfloat16', remat=True)},
      {'pooling': 'cls'},
      {'activation': 'relu'},
      {'layer_norm': True},
      {'encoder': encoder(position_offset=2)},
    )
  ]
  assert len(set(found)) == 5 and len(set(found[:3])) == 1


def test_bertscore_of_a_text_with_itself_is_one(folder):
  metric = registry.load_metric('bertscore', model=folder)
  texts = [text for text in HYPOTHESES if text]
  np.testing.assert_allclose(metric.score(texts, texts).values, 1, atol=1e-5)


def test_bertscore_baseline(folder, tmp_path):
  path = tmp_path / 'baseline.tsv'
  path.write_text('LAYER,P,R,F\n0,0,0,0\n3,0.25,0.5,0.4\n')
  plain = registry.load_metric('bertscore', model=folder)
  rescaled = registry.load_metric('bertscore', model=folder, baseline=path)
  a, b = (m.score(HYPOTHESES, REFERENCES) for m in (plain, rescaled))
  np.testing.assert_allclose(b.values, (a.values - 0.4) / 0.6, rtol=1e-5)
  np.testing.assert_allclose(
    b.components['recall'], (a.components['recall'] - 0.5) / 0.5, rtol=1e-5
  )
  assert 'rescaled:0.25,0.5,0.4' in b.signature
  with pytest.raises(ValueError, match='no row for layer 2'):
    registry.load_metric('bertscore', model=folder, layer=2, baseline=path)


def mover(folder, hypothesis, reference, tables, version='v2', ngram=1):
  """Transport by linear programming."""
  sides = []
  for text, idf in zip((hypothesis, reference), tables, strict=True):
    found, last = states(folder, text, slice(0, 4))
    if version == 'v1':
      x = np.concatenate([last.min(0), last.mean(0), last.max(0)], -1)
    else:
      x = unit(last[-1])
    keep = [
      n
      for n, token in enumerate(found.tokens)
      if not token.startswith('##') and token not in ('[CLS]', '[SEP]', *'.,!')
    ]
    x = x[keep]
    w = np.array([idf(found.ids[n]) for n in keep])
    if ngram > 1 and keep:
      size = min(ngram, len(keep))
      starts = range(len(keep) - size + 1)
      x = np.stack(
        [np.average(x[s : s + size], 0, w[s : s + size]) for s in starts]
      )
      w = np.array([w[s : s + size].sum() for s in starts])
    sides.append((unit(x) if len(keep) else x, w / max(w.sum(), 1e-30)))
  (x, a), (y, b) = sides
  if not (len(x) and len(y)):
    return float(len(x) == len(y))
  cost = ((x[:, None] - y[None]) ** 2).sum(-1)
  cost = cost if version == 'v1' else np.sqrt(cost)
  n, m = cost.shape
  rows = [np.kron(np.eye(n)[i], np.ones(m)) for i in range(n)]
  columns = [np.kron(np.ones(n), np.eye(m)[j]) for j in range(m)]
  solved = optimize.linprog(
    cost.ravel(), A_eq=np.stack(rows + columns), b_eq=np.concatenate([a, b])
  )
  return 1 - solved.fun if version == 'v1' else 1 / (1 + solved.fun)


@pytest.mark.parametrize(
  'options',
  [
    {'version': 'v1'},
    {'ngram': 2},
    pytest.param({}, marks=pytest.mark.slow),
    pytest.param({'ngram': 9}, marks=pytest.mark.slow),
  ],
)
def test_moverscore_by_linear_programming(folder, options):
  metric = registry.load_metric('moverscore', model=folder, **options)
  found = metric.score(HYPOTHESES, REFERENCES)
  tables = idf_table(folder, HYPOTHESES), idf_table(folder, REFERENCES)
  want = [
    mover(folder, h, r, tables, **options)
    for h, r in zip(HYPOTHESES, REFERENCES, strict=True)
  ]
  np.testing.assert_allclose(found.values, want, atol=2e-5)


@pytest.mark.parametrize('name', ['bertscore', 'moverscore'])
def test_several_references(folder, name):
  options = {'model': folder, 'idf': 'none'}
  best = registry.load_metric(name, **options)
  mean = registry.load_metric(name, reference_rule='mean', **options)
  several = [[r, 'the mat'] for r in REFERENCES]
  one = best.score(HYPOTHESES, REFERENCES).values
  two = best.score(HYPOTHESES, ['the mat'] * 5).values
  found = best.score(HYPOTHESES, several)
  np.testing.assert_allclose(found.values, np.maximum(one, two), atol=1e-6)
  np.testing.assert_allclose(
    mean.score(HYPOTHESES, several).values, (one + two) / 2, atol=1e-6
  )
  assert 'nrefs:2|refs:max' in found.signature


@pytest.mark.parametrize('name', ['bertscore', 'moverscore'])
def test_windows_do_not_matter(folder, name, monkeypatch):
  from t5score_jax.metrics import _token_states

  metric = registry.load_metric(name, model=folder)
  whole = metric.score(HYPOTHESES, REFERENCES).values
  monkeypatch.setattr(_token_states, '_WINDOW_BYTES', 4 * 16 * 10)
  np.testing.assert_allclose(
    metric.score(HYPOTHESES, REFERENCES).values, whole, atol=1e-5
  )


@pytest.mark.parametrize('name', ['bertscore', 'moverscore'])
def test_nothing_to_score(folder, name):
  assert len(registry.load_metric(name, model=folder).score([], [])) == 0


@pytest.mark.parametrize('name', ['bertscore', 'moverscore'])
def test_command(folder, name, tmp_path, capsys):
  (tmp_path / 'h.txt').write_text('the cat sat\na dog\n')
  (tmp_path / 'r.txt').write_text('a cat sat\na dog\n')
  texts = ['-t', str(tmp_path / 'h.txt'), '-r', str(tmp_path / 'r.txt')]
  command = ['score', '-m', name, *texts, '--quiet']
  options = ['--option', f'model={folder}', '--option', 'idf=none']
  assert cli.main([*command, *options]) == 0
  rows = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
  assert rows[1]['score'] == pytest.approx(1, abs=1e-5)
  assert rows[0]['score'] < rows[1]['score']
  assert cli.main(command) == 2
  assert 'needs an encoder' in capsys.readouterr().err
  assert cli.main([*command, '--option', 'model=/no/such']) == 1
  assert 'no such folder' in capsys.readouterr().err
