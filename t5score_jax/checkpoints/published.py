"""Published models that this library reads, by their names on the Hub.

`t5score models` lists them besides the models at hand. With the extra `hub`,
`-m OWNER/NAME` downloads one (`hub.py`); without it, -m takes a local folder.
Sizes and licences are static hints: a model's card is authoritative. Not here:
other models of the same families, which are recognised by their architecture,
and suggestions for wrong names (`peers.py`).
"""

from __future__ import annotations

import dataclasses

_NOT_COMMERCIAL = 'CC-BY-NC-SA-4.0'
_ANY = 'reference, source or both'


@dataclasses.dataclass(frozen=True)
class Published:
  """A published model.

  Attributes:
    name: OWNER/NAME on the Hub.
    metrics: The metrics that read it.
    millions: Parameters, in millions.
    licence: As the publisher states it; '' where none is stated.
    reads: The texts that it reads besides the hypothesis.
    gated: Whether the Hub requires a login (HF_TOKEN) and consent to its terms.
    needs: The option for a part that its repository lacks, and the repository
      that has it: 'tokenizer: OWNER/NAME'; '' for none.
  """

  name: str
  metrics: tuple[str, ...]
  millions: float
  licence: str
  reads: str
  gated: bool = False
  needs: str = ''


def _encoder(name: str, millions: float, licence: str) -> Published:
  metrics = ('bertscore', 'moverscore')
  return Published(name, metrics, millions, licence, 'reference')


def _t5(name: str, millions: float) -> Published:
  reads = 'reference or source' if 'mt5' in name else 'reference'
  return Published(name, ('t5score',), millions, 'Apache-2.0', reads)


def _metricx(name: str, millions: float) -> Published:
  reads = 'reference' if '-23-' in name else _ANY
  return Published(
    name,
    ('metricx',),
    millions,
    'Apache-2.0',
    reads,
    needs='vocabulary: google/mt5-large',
  )


def _gated(name: str, metric: str, millions: float, reads: str) -> Published:
  return Published(
    name, (metric,), millions, _NOT_COMMERCIAL, reads, True, _tokenizer(name)
  )


def _tokenizer(name: str) -> str:
  """COMET's repositories hold no tokenizer."""
  if name.endswith('22-cometkiwi-da'):
    return 'tokenizer: microsoft/infoxlm-large'
  for size in ('xl', 'xxl'):
    if name.lower().endswith(f'-{size}'):
      return f'tokenizer: facebook/xlm-roberta-{size}'
  return 'tokenizer: FacebookAI/xlm-roberta-large'


MODELS = (
  Published(
    'Unbabel/wmt22-comet-da',
    ('comes',),
    581,
    'Apache-2.0',
    'source and reference',
    needs=_tokenizer('Unbabel/wmt22-comet-da'),
  ),
  _gated('Unbabel/wmt22-cometkiwi-da', 'unified', 565, 'source'),
  _gated('Unbabel/wmt23-cometkiwi-da-xl', 'unified', 3500, 'source'),
  _gated('Unbabel/wmt23-cometkiwi-da-xxl', 'unified', 10700, 'source'),
  _gated('Unbabel/XCOMET-XL', 'xcomet', 3500, _ANY),
  _gated('Unbabel/XCOMET-XXL', 'xcomet', 10700, _ANY),
  _metricx('google/metricx-23-large-v2p0', 1200),
  _metricx('google/metricx-23-xl-v2p0', 3700),
  _metricx('google/metricx-23-xxl-v2p0', 13000),
  _metricx('google/metricx-24-hybrid-large-v2p6', 1200),
  _metricx('google/metricx-24-hybrid-xl-v2p6', 3700),
  _metricx('google/metricx-24-hybrid-xxl-v2p6', 13000),
  Published(
    'MingZhong/unieval-sum', ('unieval',), 783, '', 'source and reference'
  ),
  Published(
    'facebook/bart-large-cnn',
    ('bartscore',),
    406,
    'MIT',
    'reference or source',
  ),
  Published(
    'moussaKam/frugalscore_tiny_bert-base_bert-score',
    ('frugalscore',),
    4.4,
    '',
    'reference',
  ),
  Published(
    'moussaKam/frugalscore_medium_bert-base_bert-score',
    ('frugalscore',),
    41.4,
    '',
    'reference',
  ),
  _encoder('google-bert/bert-base-uncased', 110, 'Apache-2.0'),
  _encoder('google-bert/bert-base-multilingual-cased', 178, 'Apache-2.0'),
  _encoder('FacebookAI/roberta-large', 355, 'MIT'),
  _encoder('FacebookAI/xlm-roberta-base', 278, 'MIT'),
  _encoder('FacebookAI/xlm-roberta-large', 560, 'MIT'),
  _encoder('microsoft/deberta-v3-large', 435, 'MIT'),
  _encoder('distilbert/distilbert-base-uncased', 66, 'Apache-2.0'),
  _t5('google/mt5-small', 300),
  _t5('google/mt5-base', 580),
  _t5('google/mt5-large', 1200),
  _t5('google/mt5-xl', 3700),
  _t5('google/t5-v1_1-base', 248),
  Published('openai-community/gpt2', ('lm',), 124, 'MIT', 'nothing'),
)
