"""HuggingFace folders against transformers: weights, ids, scores, both ways.

Nothing is downloaded: all models are random, but for the embedded one.
"""

import contextlib
import dataclasses
import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from t5_outputs import compute  # noqa: E402

import t5score_jax  # noqa: E402
from t5score_jax.checkpoints import bundle, kinds, loading  # noqa: E402
from t5score_jax.checkpoints.formats.huggingface import checkpoint  # noqa: E402
from t5score_jax.checkpoints.formats.torch import reader  # noqa: E402
from t5score_jax.checkpoints.source import Options, Source  # noqa: E402
from t5score_jax.data.vocab import (  # noqa: E402
  ByteVocabulary,
  SentencePieceVocabulary,
)
from tests.conftest import make_bundle  # noqa: E402
from tests.parity import hf_exports, hf_t5  # noqa: E402

pytestmark = pytest.mark.parity

_TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def offline(monkeypatch):
  monkeypatch.setenv('HF_HUB_OFFLINE', '1')
  monkeypatch.setenv('TRANSFORMERS_OFFLINE', '1')
  transformers.utils.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()


def _load(folder, **options):
  """Loads a folder in transformers, every name accounted for."""
  model, said = transformers.AutoModelForSeq2SeqLM.from_pretrained(
    folder, output_loading_info=True, **options
  )
  for problem in ('missing_keys', 'unexpected_keys', 'mismatched_keys'):
    assert not said[problem], (problem, said[problem])
  return model.eval()


def _assert_close(made, expected, tolerance=_TOLERANCE):
  assert np.std(expected['logits']) > 0.1
  for key in ('logits', 'log_probs', 'scores'):
    np.testing.assert_allclose(
      made[key], expected[key], rtol=0, atol=tolerance, err_msg=key
    )


def _params(source: Source):
  read = {name: array.read() for name, array in source.weights.items()}
  return bundle.nest(read)


def _state(model) -> dict[str, np.ndarray]:
  return {name: p.detach().numpy() for name, p in model.state_dict().items()}


# Import.


@pytest.fixture(scope='module', params=sorted(hf_t5.CASES))
def theirs(request, tmp_path_factory):
  """A random model of transformers: (case, model, its folder, a batch)."""
  case = hf_t5.CASES[request.param]
  model = case.make()
  hf_t5.randomize(model, seed=5)
  folder = tmp_path_factory.mktemp('theirs') / request.param
  model.save_pretrained(folder)
  return case, model, folder, hf_t5.batch(case, seed=6)


def test_import_gives_their_logits(theirs):
  case, model, folder, batch = theirs
  source = checkpoint.open_source(folder, Options())
  assert source.config == case.config
  made = compute(source.config, _params(source), **batch)
  _assert_close(made, hf_t5.outputs(model, **batch))


@pytest.mark.parametrize('new', [True, False])
def test_import_of_bin_files(theirs, tmp_path, new):
  """Both of torch's formats; half precision in the old one."""
  case, model, folder, _ = theirs
  (tmp_path / 'config.json').write_text((folder / 'config.json').read_text())
  # As the models lie on the Hub: copies of the embedding among the names.
  state = model.state_dict()
  assert 'encoder.embed_tokens.weight' in state
  if not new:
    state = {name: tensor.half() for name, tensor in state.items()}
  torch.save(
    state,
    tmp_path / 'pytorch_model.bin',
    _use_new_zipfile_serialization=new,
  )
  found = checkpoint.open_source(tmp_path, Options())
  assert found.config == case.config
  expected = checkpoint.open_source(folder, Options())
  assert list(found.weights) == list(expected.weights)
  for name, array in expected.weights.items():
    want = array.read()
    want = want if new else want.astype(np.float16)
    np.testing.assert_array_equal(found.weights[name].read(), want)


def test_torch_files_of_all_kinds(tmp_path):
  base = torch.arange(24, dtype=torch.float32)
  tensors = {
    'whole': base.reshape(4, 6),
    'turned': base.reshape(4, 6).T,
    'part': base.reshape(4, 6)[1:3, 2:5],
    'wide': torch.tensor(3.5).expand(2, 3),
    'parameter': torch.nn.Parameter(torch.ones(2)),
    'bfloat16': torch.randn(5).bfloat16(),
    'half': torch.randn(5).half(),
    'double': torch.randn(5).double(),
    'long': torch.tensor([-1, 2**40]),
  }
  for new in (True, False):
    path = tmp_path / f'{new}.bin'
    torch.save(tensors, path, _use_new_zipfile_serialization=new)
    found = reader.open_file(path)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
      got = found[name].read()
      assert got.shape == tuple(tensor.shape)
      np.testing.assert_array_equal(
        got.astype(np.float64), tensor.detach().double().numpy(), name
      )
      assert got.itemsize == tensor.element_size()


@pytest.mark.parametrize('kind', ['T5', 'MT5', 'UMT5'])
def test_import_of_a_tied_output_that_is_not_scaled(tmp_path, kind):
  """What transformers 5 makes of tie_word_embeddings = false alone."""
  values = {'vocab_size': 48, **hf_t5._SHAPE, **hf_t5._GATED}
  config = getattr(transformers, f'{kind}Config')(**values)
  make = getattr(transformers, f'{kind}ForConditionalGeneration')
  model = make(config).eval()
  hf_t5.randomize(model, seed=5)
  model.save_pretrained(tmp_path)
  source = checkpoint.open_source(tmp_path, Options())
  assert not source.config.logits_via_embedding
  case = dataclasses.replace(
    hf_t5.CASES['1_1'], input_length=20, target_length=12
  )
  batch = hf_t5.batch(case, seed=6)
  made = compute(source.config, _params(source), **batch)
  # Without a scale the embedding's logits are tens of units large.
  expected = hf_t5.outputs(model, **batch)
  np.testing.assert_allclose(made['logits'], expected['logits'], atol=3e-4)


def test_there_and_back_is_exact(theirs, tmp_path):
  case, model, folder, _ = theirs
  source = checkpoint.open_source(folder, Options())
  vocabulary = ByteVocabulary()
  if source.vocabulary is None:
    vocabulary = SentencePieceVocabulary(hf_exports.trained())
  source = dataclasses.replace(source, vocabulary=vocabulary)
  again = _load(hf_exports.export(source, tmp_path / 'out'))
  assert type(again) is type(model)
  for name, array in _state(model).items():
    np.testing.assert_array_equal(_state(again)[name], array, err_msg=name)


# Export.

_NETWORKS = {
  '1_0': {'mlp_activations': ('relu',), 'logits_via_embedding': True},
  '1_1': {},
  'tied_gated': {'logits_via_embedding': True},
  'silu': {'mlp_activations': ('silu', 'linear'), 'num_decoder_layers': 1},
  'gelu': {'mlp_activations': ('gelu',)},
  'byt5': {'num_encoder_layers': 3, 'num_decoder_layers': 1},
  'mt5': {'vocab_size': 250112, 'emb_dim': 4},
  'mt5_tied': {
    'vocab_size': 250112,
    'emb_dim': 4,
    'logits_via_embedding': True,
  },
  'umt5': {'relative_attention_per_layer': True},
  'umt5_tied': {
    'relative_attention_per_layer': True,
    'logits_via_embedding': True,
  },
}
_CLASSES = {
  'mt5': 'MT5ForConditionalGeneration',
  'umt5': 'UMT5ForConditionalGeneration',
  'umt5_tied': 'UMT5ForConditionalGeneration',
}


@pytest.mark.parametrize('name', sorted(_NETWORKS))
def test_export_gives_our_logits(name, tmp_path):
  config = dataclasses.replace(hf_exports.SHAPE, **_NETWORKS[name])
  vocabulary = ByteVocabulary()
  if name != 'byt5':
    vocabulary = SentencePieceVocabulary(hf_exports.trained())
  source = hf_exports.source(config, vocabulary)
  folder = hf_exports.export(source, tmp_path / 'out', max_shard_bytes=20_000)
  assert (folder / 'model.safetensors.index.json').is_file()
  model = _load(folder, dtype=torch.float32)
  expected = _CLASSES.get(name, 'T5ForConditionalGeneration')
  assert type(model).__name__ == expected
  assert model.generation_config.decoder_start_token_id == 0
  case = hf_t5.Case(lambda: model, dataclasses.replace(config, vocab_size=384))
  batch = hf_t5.batch(case, seed=8)
  made = compute(config, _params(source), **batch)
  _assert_close(made, hf_t5.outputs(model, **batch))


def test_bfloat16_export(tmp_path):
  source = hf_exports.source(hf_exports.SHAPE, ByteVocabulary())
  folder = hf_exports.export(source, tmp_path / 'out', dtype='bfloat16')
  model = _load(folder, dtype='auto')
  assert model.dtype == torch.bfloat16
  batch = hf_t5.batch(hf_t5.Case(lambda: model, hf_exports.SHAPE), seed=9)
  rounded = checkpoint.open_source(folder, Options())
  params = {n: a.astype(np.float32) for n, a in rounded.weights.items()}
  rounded = dataclasses.replace(rounded, weights=params)
  made = compute(hf_exports.SHAPE, _params(rounded), **batch)
  _assert_close(made, hf_t5.outputs(model.float(), **batch))
  # Weights have 8 significant bits then; scores are means over 10 tokens.
  exact = compute(hf_exports.SHAPE, _params(source), **batch)
  np.testing.assert_allclose(made['scores'], exact['scores'], atol=0.05)
  assert np.abs(made['scores'] - exact['scores']).max() > 1e-5


# Scores, by the code in the card.


def _models():
  pieces = SentencePieceVocabulary(
    hf_exports.trained(normalization_rule_name='nmt_nfkc'), 4
  )
  return {
    'pieces': make_bundle(pieces, max_length=20, lowercase=True),
    'bytes': make_bundle(ByteVocabulary(), direction='recall'),
    'embedded': bundle.load_bundle(kinds.folder('t5score-tiny')),
  }


_HYPOTHESES = [
  'the cat sees a red kite.',
  'A Dog follows the old ship, and my neighbour paints an empty box!',
  'x',
  '',
  'Ünknown 你好 \t letters',
]
_REFERENCES = [
  'a dog sees the moon.',
  'a dog follows her bicycle and some bread',
  '',
  'some bread.',
  'two letters',
]


def _run_card(folder) -> dict:
  """Runs the code in a folder's card, there; returns what it defines."""
  card = (folder / 'README.md').read_text()
  (code,) = re.findall(
    r'^```python\n(.*?)^```$', card, re.DOTALL | re.MULTILINE
  )
  names: dict = {}
  with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
    exec(compile(code, 'README.md', 'exec'), names)
  return names


@pytest.mark.parametrize(
  ('name', 'dtype'),
  [('bytes', 'float32'), ('pieces', 'float32'), ('embedded', 'bfloat16')],
)
def test_code_of_the_card_gives_our_scores(name, dtype, tmp_path):
  before = tmp_path / 'before'
  bundle.save_bundle(before, _models()[name], dtype=dtype)
  source = bundle.open_source(before, Options())
  folder = hf_exports.export(source, tmp_path / 'out', dtype=dtype)
  names = _run_card(folder)
  found = [
    names['t5score'](hypothesis, reference=reference)
    for hypothesis, reference in zip(_HYPOTHESES, _REFERENCES, strict=True)
  ]
  ours = t5score_jax.load(str(before), direction='f').score(
    _HYPOTHESES, references=_REFERENCES
  )
  for direction, values in {'f': ours.values, **ours.components}.items():
    theirs = [scores[direction] for scores in found]
    np.testing.assert_allclose(theirs, values, rtol=0, atol=_TOLERANCE)
    assert np.std(theirs) > 100 * _TOLERANCE
  assert set(ours.components) == {'precision', 'recall'}


def test_verbs_and_card_agree(tmp_path):
  """`t5score convert`, `t5score score` of the folder, and its card's code."""

  def t5score_command(*arguments):
    return subprocess.run(
      [sys.executable, '-m', 't5score_jax.cli', *map(str, arguments)],
      check=True,
      capture_output=True,
      text=True,
      cwd=tmp_path,
    ).stdout

  model = kinds.folder('t5score-tiny')
  t5score_command('convert', '--to', 'hf', model, 'out')
  (tmp_path / 'r.txt').write_text(''.join(f'{t}\n' for t in _REFERENCES))
  (tmp_path / 't.txt').write_text(''.join(f'{t}\n' for t in _HYPOTHESES))
  printed = t5score_command(
    *('score', '-m', 'out', '-r', 'r.txt', '-t', 't.txt'),
    *('--format', 'jsonl', '--bootstrap', 0),
  )
  ours = [json.loads(line)['score'] for line in printed.splitlines()]
  names = _run_card(tmp_path / 'out')
  theirs = [
    names['t5score'](hypothesis, reference)['f']
    for hypothesis, reference in zip(_HYPOTHESES, _REFERENCES, strict=True)
  ]
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=_TOLERANCE)


def test_folder_of_theirs_is_scored_as_it_lies(theirs):
  case, model, folder, _ = theirs
  if case.config.vocab_size != 384:
    pytest.skip('has no tokenizer')
  # Neither was ever saved by us: the network and bytes are found out.
  loaded = loading.load_model(folder)
  assert loaded.vocabulary == ByteVocabulary()
  scores = t5score_jax.load(str(folder), direction='precision').score(
    ['a cat'], references=['the cat']
  )
  ids = [
    np.array([[*loaded.vocabulary.encode(text), 1]])
    for text in ('the cat', 'a cat')
  ]
  expected = hf_t5.outputs(model, *ids)['scores']
  np.testing.assert_allclose(scores.values, expected, atol=_TOLERANCE)
