"""-m, --metric and --option, as `t5score score` takes them."""

import argparse
import importlib
import json

import pytest

from t5score_jax.commands import _metric_arguments
from t5score_jax.inference import placement


def test_choices_are_those_of_the_metric():
  assert _metric_arguments.DTYPES == placement.DTYPES


def test_options_of_other_metrics(run):
  shown = run(
    *('-m', 'chrf', '-r', 'ref.txt', '-t', 'A.txt'),
    *('--option', 'word_order=2', '--option', 'lowercase=True'),
  )
  assert 'metric:chrF++' in shown.err
  assert 'case:lc' in shown.err


def test_a_model_folder_called_like_a_metric(run, fails, folder, random_bundle):
  (folder / 'bleu').symlink_to(random_bundle)
  (folder / 'bleurt').symlink_to(random_bundle)
  (folder / 'chrf').mkdir()
  files = ('-r', 'ref.txt', '-t', 'A.txt')
  error = fails('-m', 'bleu', *files, code=2)
  assert 'give ./bleu for the folder, or --metric bleu' in error
  shown = run('-m', 'chrf', *files, '--format', 'text')
  assert 'metric:chrF' in shown.err
  for name in ('./bleu', 'bleurt'):
    assert 'metric:T5Score' in run('-m', name, *files).err


def test_numbers_of_options_are_read_strictly(run, fails):
  words = '-m', 'chrf', '-r', 'ref.txt', '-t', 'A.txt', '--option'
  assert "beta='1_0'" in fails(*words, 'beta=1_0', code=2)
  assert 'beta:10|' in run(*words, 'beta=10').err


@pytest.mark.parametrize(
  ('name', 'words'),
  [
    ('comet', 'hf download Unbabel/wmt22-comet-da'),
    ('Unbabel/wmt20-comet-da', 'hf download Unbabel/wmt20-comet-da'),
    ('Unbabel/wmt22-cometkiwi-da', 'metric unified'),
    ('Unbabel/XCOMET-XL', 'hf download Unbabel/XCOMET-XL'),
    ('mt5-base', 'hf download google/mt5-base --local-dir mt5-base'),
    ('google/mt5-base', 'hf download google/mt5-base --local-dir mt5-base'),
    ('bert-base-uncased', '--metric bertscore -m ./bert-base-uncased'),
    ('bleurt', 'BLEURT is not in this library'),
    ('t5-small', 'hf download google-t5/t5-small --local-dir t5-small'),
    ('google/byt5-small', 'HF_HUB_OFFLINE'),
    ('mt5', 'hf download google/mt5-small'),
    ('bert', 'hf download google-bert/bert-base-uncased'),
    ('gpt2', 'hf download openai-community/gpt2 --local-dir gpt2'),
    ('LaBSE', 'hf download sentence-transformers/LaBSE'),
    ('moussaKam/frugalscore_tiny_bert-base_bert-score', '-m ./frugalscore_'),
    ('microsoft/deberta-xlarge-mnli', 'DeBERTa-v2 families are read, not this'),
    ('microsoft/deberta-v3-base', '--metric bertscore -m ./deberta-v3-base'),
    ('distilbert-base-uncased', 'hf download distilbert/distilbert-base-unca'),
    ('facebook/bart-large', 'hf download facebook/bart-large '),
    ('google/metricx-24', 'hf download google/metricx-24 --local-dir'),
    ('MingZhong/unieval-sum', '--metric unieval -m ./unieval-sum'),
  ],
)
def test_names_of_peers_are_explained(run, name, words):
  code = 2 if name == 'bleurt' else 1
  shown = run('-m', name, '-r', 'ref.txt', '-t', 'A.txt', code=code)
  assert words in shown.err


@pytest.mark.parametrize(
  ('tokenize', 'need'),
  [('ja-mecab', 'sacrebleu[ja]'), ('ko-mecab', 'sacrebleu[ko]')]
  + [('flores200', 'SentencePiece model'), ('flores101', '.model')],
)
def test_what_a_tokenizer_needs_is_named(fails, monkeypatch, tokenize, need):
  def fail(*arguments, **options):
    raise OSError('no network')

  for module in ('ja_mecab', 'ko_mecab'):
    name = f'sacrebleu.tokenizers.tokenizer_{module}'
    monkeypatch.setattr(importlib.import_module(name), 'MeCab', None)
  spm = importlib.import_module('sacrebleu.tokenizers.tokenizer_spm')
  monkeypatch.setattr(spm, 'download_file', fail)
  monkeypatch.setattr(spm, 'SACREBLEU_DIR', '/nowhere')
  words = '-m', 'bleu', '-r', 'ref.txt', '-t', 'A.txt', '--option'
  error = fails(*words, f'tokenize={tokenize}', code=2)
  assert tokenize in error and need in error


def test_chinese_without_a_tokenizer_is_noted(run, folder):
  (folder / 'zh.txt').write_text('猫坐在垫子上。\n')
  words = '-m', 'bleu', '-r', 'zh.txt', '-t', 'zh.txt'
  assert "tokenize='zh'" in run(*words).err
  assert "tokenize='zh'" not in run(*words, '--option', 'tokenize=zh').err
  ter = '-m', 'ter', *words[2:]
  assert 'asian_support=True' in run(*ter).err
  options = '--option', 'normalized=True', '--option', 'asian_support=True'
  assert (
    'asian_support=True' not in run(*ter, *options).err.split('signature')[0]
  )


@pytest.mark.parametrize(
  ('text', 'pair', 'tokenize'),
  [
    ('これはペンです。', None, 'ja-mecab'),
    ('แมวนั่งบนเสื่อ', None, 'char'),
    ('a cat', 'en-zh_CN', 'zh'),
    ('a cat', 'eng_Latn-jpn_Jpan', 'ja-mecab'),
    ('a cat', 'en-th', 'char'),
    ('a cat', 'zh-en', None),
    ('a 猫 in text', None, None),
  ],
)
def test_languages_without_spaces_are_noted(run, folder, text, pair, tokenize):
  row = {'hypothesis': text, 'reference': text, 'language_pair': pair}
  (folder / 'in.jsonl').write_text(json.dumps(row) + '\n')
  shown = run('-m', 'bleu', '--input', 'in.jsonl').err
  assert (f'tokenize={tokenize!r}' in shown) == (tokenize is not None)


@pytest.mark.parametrize(
  ('models', 'labels'),
  [
    (['chrf', 'runs/a/'], ['chrf', 'a']),
    (['x/tuned/model', 'folds/model'], ['tuned/model', 'folds/model']),
    (['x/a', 'y/a'], ['x/a', 'y/a']),
  ],
)
def test_names_of_several_models_in_a_table(models, labels):
  args = argparse.Namespace(model=models, metric=None, option=[])
  assert [one.label for one in _metric_arguments.chosen(args)] == labels
