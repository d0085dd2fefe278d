"""Scripts that prepare corpora, on the made-up samples."""

import gzip
import importlib.util
import pathlib

import pytest

seqio = pytest.importorskip('seqio')

from t5score_jax.data import records  # noqa: E402
from t5score_jax.tasks import judged, paracotta, parallel  # noqa: E402

SAMPLES = pathlib.Path(__file__).parents[1] / 'samples'
SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts' / 'prepare'


def _main(name):
  spec = importlib.util.spec_from_file_location(name, SCRIPTS / f'{name}.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return lambda *arguments: module.main([str(x) for x in arguments])


@pytest.fixture(autouse=True)
def _clean_registries():
  before = {
    registry: set(registry.names())
    for registry in (seqio.TaskRegistry, seqio.MixtureRegistry)
  }
  yield
  for registry, names in before.items():
    for name in set(registry.names()) - names:
      registry.remove(name)


@pytest.mark.parametrize(
  ('corpus', 'names', 'rating'),
  [
    ('wmt_da', ['2031.de-en', '2031.en-fi', '2032.de-en', '2033.de-en'], 'z'),
    ('mqm', ['newstest2031.en-de', 'ted2031.zh-en'], 'mqm'),
    ('multisumm', ['en', 'id', 'zh'], 'coverage'),
    ('qe20', ['en-de'], 'da'),
  ],
)
def test_judgments_as_records(tmp_path, capsys, corpus, names, rating):
  main = _main('judgments')
  assert main(corpus, SAMPLES / corpus, tmp_path / 'out') == 0
  printed = capsys.readouterr().out
  files = sorted((tmp_path / 'out').iterdir())
  assert [path.name for path in files] == [f'{n}.jsonl.gz' for n in names]
  for path in files:
    read = records.read_records(path, ratings=(rating,))
    assert any(rating in segment.ratings for segment in read)
    key = judged.key_of_file(path)
    assert {segment.language_pair for segment in read} == {key[1]}
    assert f'{path}: {len(read)} segments, ' in printed


def test_records_give_the_tasks_of_the_corpus(tmp_path):
  assert _main('judgments')('wmt_da', SAMPLES / 'wmt_da', tmp_path) == 0
  tasks = judged.register(tmp_path, name='prepared')
  assert set(tasks) == {
    ('2031', 'de-en'),
    ('2031', 'en-fi'),
    ('2032', 'de-en'),
    ('2033', 'de-en'),
  }
  task = seqio.TaskRegistry.get('prepared_2031_de_en_groups')
  assert task.source.num_input_examples('train') == 2


def test_qe20_by_split(tmp_path):
  main = _main('judgments')
  code = main('qe20', SAMPLES / 'qe20', tmp_path, '--split', 'validation')
  assert code == 0
  read = records.read_records(tmp_path / 'en-de.jsonl.gz', ratings=('z',))
  assert [segment.ratings['z'] for segment in read] == [0.3, -0.8]


def test_paracotta_is_filtered_once(tmp_path, capsys):
  main = _main('paracotta')
  assert main(SAMPLES / 'paracotta', tmp_path) == 0
  assert capsys.readouterr().out.splitlines() == [
    'en: kept 2 of 4 pairs',
    'zh: kept 1 of 2 pairs',
  ]
  made = list(paracotta.read(str(tmp_path / 'en.tsv.gz')))
  assert [pair['targets'] for pair in made] == [
    'Trading begins when the sun comes up.',
    'Ancient timepieces are mended by the man next door.',
  ]
  assert main(SAMPLES / 'paracotta', tmp_path, '--max-pairs', 1) == 0
  with gzip.open(tmp_path / 'en.tsv.gz', 'rt', encoding='utf-8') as lines:
    assert len(lines.readlines()) == 1


def test_tfds_from_a_shell(tmp_path, capsys):
  assert _main('wmt_da')(SAMPLES / 'wmt_da', tmp_path) == 0
  out = capsys.readouterr().out
  assert '2031_de_en_reference\t2\n' in out
  assert list(tmp_path.rglob('dataset_info.json'))


def test_tasks_are_cached_by_name(tmp_path, capsys):
  parallel.register(SAMPLES / 'parallel', name='cached')
  main = _main('cache_tasks')
  module = 't5score_jax.tasks.parallel'
  command = [tmp_path, 'cached_(toy|small)', '--import', module]
  assert main(*command, '--shards', 1) == 0
  assert capsys.readouterr().out.splitlines() == [
    'cached_small: train 1',
    'cached_toy: train 3, validation 1',
  ]
  assert (tmp_path / 'cached_toy/COMPLETED').exists()
  assert main(*command) == 1
  assert 'already' in capsys.readouterr().err
  assert main(tmp_path, 'cached', '--import', module) == 1
  error = capsys.readouterr().err
  assert error.startswith("error: no task matches 'cached'; there are: ")
  assert 'cached_toy_both' in error
  assert main(tmp_path, 'x', '--import', 'no_such_module') == 1
  assert "No module named 'no_such_module'" in capsys.readouterr().err


@pytest.mark.parametrize(
  ('script', 'arguments'),
  [
    ('judgments', ['mqm']),
    ('paracotta', []),
    ('wmt_da', []),
  ],
)
def test_one_line_says_what_is_wrong(tmp_path, capsys, script, arguments):
  empty = tmp_path / 'empty'
  empty.mkdir()
  assert _main(script)(*arguments, empty, tmp_path / 'out') == 1
  error = capsys.readouterr().err
  assert error.startswith(f'error: {empty}: no ')
  assert error.count('\n') == 1
  assert not list((tmp_path).rglob('*.jsonl*'))


def test_usage(tmp_path, capsys):
  for script, arguments in (
    ('paracotta', [tmp_path, tmp_path, '--low', '9', '--high', '1']),
    ('judgments', ['wmt99', tmp_path, tmp_path]),
    ('wmt_da', [tmp_path]),
    ('cache_tasks', [tmp_path, 'x']),
  ):
    with pytest.raises(SystemExit) as caught:
      _main(script)(*arguments)
    assert caught.value.code == 2
    assert 'usage:' in capsys.readouterr().err
