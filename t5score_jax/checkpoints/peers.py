"""Names of other libraries' models and metrics, and their replacements.

Nothing is downloaded here: the error for such a name states what to download,
from where, and how to use it. `packaged.py` has the encoders in packages.
"""

from __future__ import annotations

import re

_T5 = (
  '-m {folder} scores with it; without training on paraphrases its scores mean '
  'little (README, Train)'
)
_ENCODER = (
  '--metric bertscore -m {folder}; `minilm` and `e5-small` need no download'
)
# A pattern of the whole name, in lower case; the repository, for names without
# an owner; and how its folder is used.
_MODELS = (
  (
    r'(unbabel/)?((wmt\d\d-)?cometkiwi.*|unite.*)',
    'Unbabel/wmt22-cometkiwi-da',
    '-m {folder} scores with it (metric unified)',
  ),
  (
    r'(unbabel/)?xcomet.*',
    'Unbabel/XCOMET-XL',
    '-m {folder} scores with it (metric xcomet)',
  ),
  (
    r'(unbabel/)?(comet|(wmt\d\d-)?comet-.*)',
    'Unbabel/wmt22-comet-da',
    '-m {folder} scores with it (metric comes); `t5score fit` trains one',
  ),
  (
    r'(moussakam/)?frugalscore_.*',
    'moussaKam/{name}',
    '-m {folder} scores with it; `frugalscore-tiny` needs no download',
  ),
  (r't5', 'google-t5/t5-small', _T5),
  (r'(google-t5/)?t5-(small|base|large|3b|11b)', 'google-t5/{name}', _T5),
  (r'(m|um|by)t5', 'google/{name}-small', _T5),
  (r'(google/|csebuetnlp/)?(m|um|by|flan-)?t5[-_].*', 'google/{name}', _T5),
  (
    r'(openai-community/)?gpt2(-medium|-large|-xl)?',
    'openai-community/{name}',
    '-m {folder} scores with it (metric lm)',
  ),
  (r'bert', 'google-bert/bert-base-uncased', _ENCODER),
  (r'(xlm-)?roberta', 'FacebookAI/{name}-base', _ENCODER),
  (
    r'(sentence-transformers/)?(labse|all-minilm[-_].*)',
    'sentence-transformers/{name}',
    _ENCODER,
  ),
  (
    r'(google/)?metricx(-.*)?',
    'google/metricx-24-hybrid-large-v2p6',
    '-m {folder} scores with it (metric metricx), with --option vocabulary= '
    'and the spiece.model of google/mt5-large',
  ),
  (
    r'(mingzhong/)?unieval(-.*)?',
    'MingZhong/unieval-sum',
    '--metric unieval -m {folder} scores with it',
  ),
  (
    r'(facebook/)?bart(score)?([-_].*)?',
    'facebook/bart-large-cnn',
    '-m {folder} scores with it (metric bartscore)',
  ),
  (
    r'(microsoft/)?m?deberta-v[23].*',
    'microsoft/{name}',
    _ENCODER,
  ),
  (
    r'(\w+/)?distil(bert|roberta).*',
    'distilbert/{name}',
    _ENCODER,
  ),
  (
    r'((google-bert|facebookai|microsoft)/)?(bert|roberta|xlm-roberta)[-_].*',
    '{name}',
    _ENCODER,
  ),
)
_METRICS = (
  (r'(google/)?bleurt.*', 'BLEURT'),
  (r'prism.*', 'PRISM'),
  (r'meteor', 'METEOR'),
  (r'yisi.*', 'YiSi'),
  (r'gemba.*', 'GEMBA'),
)
# Encoders of kinds that this library does not read.
_OTHER_ENCODERS = r'(\w+/)?(deberta(?!-v[23])|albert|electra).*'


def advice(name: str) -> str:
  """Advice on the name of another library's model; '' for any other name.

  Args:
    name: The unknown name that was given for a model or a metric.
  """
  plain = name.lower().rstrip('/')
  for pattern, metric in _METRICS:
    if re.fullmatch(pattern, plain):
      return (
        f'{metric} is not in this library; t5score, comes (COMET), '
        'frugalscore and bertscore are learned metrics that are. Scores of '
        'other programs can be compared with `t5score correlate`'
      )
  if re.fullmatch(_OTHER_ENCODERS, plain):
    return (
      'Encoders of the BERT, RoBERTa, XLM-R and DeBERTa-v2 families are read, '
      'not this one; `minilm` and `e5-small` need no download'
    )
  for pattern, usual, use in _MODELS:
    if re.fullmatch(pattern, plain):
      folder = name.rstrip('/').rpartition('/')[2]
      repository = name.rstrip('/') if '/' in name else usual
      repository = repository.format(name=folder)
      folder = repository.rpartition('/')[2]
      return (
        f'Download it where there is a network, `hf download {repository} '
        f'--local-dir {folder}`, and give its folder: '
        + use.format(folder=f'./{folder}')
      )
  return ''
