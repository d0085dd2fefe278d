"""The layers that bert-score recommends, by the name of the encoder.

They come from the table of the original package (Zhang et al. 2020), whose
authors chose them by agreement with human judgments of WMT16. Only encoders
that this library reads are listed. Not a metric by itself (hence the
underscore).
"""

from __future__ import annotations

#: Name of an encoder, without its owner -> layer number.
RECOMMENDED = {
  'bert-base-uncased': 9,
  'bert-large-uncased': 18,
  'bert-base-cased-finetuned-mrpc': 9,
  'bert-base-multilingual-cased': 9,
  'bert-base-chinese': 8,
  'bert-base-turkish-cased': 10,
  'scibert_scivocab_uncased': 8,
  'scibert_scivocab_cased': 9,
  'scibert_basevocab_uncased': 9,
  'spanbert-base-cased': 8,
  'spanbert-large-cased': 17,
  'finbert': 10,
  'roberta-base': 10,
  'roberta-large': 17,
  'roberta-large-mnli': 19,
  'roberta-base-openai-detector': 7,
  'roberta-large-openai-detector': 15,
  'xlm-roberta-base': 9,
  'xlm-roberta-large': 17,
  'distilroberta-base': 5,
  'distilbert-base-uncased': 5,
  'distilbert-base-uncased-distilled-squad': 4,
  'distilbert-base-multilingual-cased': 5,
  'distilbert-base-turkish-cased': 4,
  'deberta-v2-xlarge': 10,
  'deberta-v2-xlarge-mnli': 17,
  'deberta-v2-xxlarge': 21,
  'deberta-v2-xxlarge-mnli': 22,
  'deberta-v3-xsmall': 10,
  'deberta-v3-small': 4,
  'deberta-v3-base': 9,
  'deberta-v3-large': 12,
  'mdeberta-v3-base': 10,
  'unsup-simcse-bert-base-uncased': 10,
  'unsup-simcse-bert-large-uncased': 18,
  'unsup-simcse-roberta-base': 8,
  'unsup-simcse-roberta-large': 13,
  'sup-simcse-bert-base-uncased': 10,
  'sup-simcse-bert-large-uncased': 18,
  'sup-simcse-roberta-base': 10,
  'sup-simcse-roberta-large': 16,
  # google/bert_uncased_L-LAYERS_H-WIDTH_A-HEADS.
  **{
    f'bert_uncased_l-{depth}_h-{width}_a-{width // 64}': layer
    for depth, layers in {
      2: (1, 1, 1, 2),
      4: (3, 3, 3, 3),
      6: (5, 5, 5, 5),
      8: (7, 7, 6, 7),
      10: (8, 8, 9, 8),
      12: (10, 11, 10, 9),
    }.items()
    for width, layer in zip((128, 256, 512, 768), layers, strict=True)
  },
}


def recommended(name: str, depth: int) -> int:
  """Returns the layer for an encoder; -1 (the last) if none is recommended.

  Args:
    name: The name of the encoder's folder.
    depth: Its number of layers; a folder with this name but fewer layers holds
      another encoder.
  """
  layer = RECOMMENDED.get(name.lower(), -1)
  return layer if layer <= depth else -1
