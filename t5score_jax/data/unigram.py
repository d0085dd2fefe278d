"""Builds `tokenizer.json` of Unigram tokenizers from SentencePiece models.

With it the library `tokenizers` encodes texts as SentencePiece does, and knows
the span of each piece in a text. Not here: encoding (`data/subwords.py`), other
files of a tokenizer (`checkpoints/formats/huggingface/tokenizer.py`).
"""

from __future__ import annotations

import base64
import json
from typing import Any

from sentencepiece import sentencepiece_model_pb2

#: XLM-R's first ids, which its SentencePiece model lacks or orders otherwise.
XLMR_SPECIAL = ('<s>', '<pad>', '</s>', '<unk>')

# Type checkers do not see the names that protobuf adds to the module.
_PROTO: Any = sentencepiece_model_pb2


def xlmr_json(model_bytes: bytes) -> bytes:
  """`tokenizer.json` as XLMRobertaTokenizer builds it from a model.

  Args:
    model_bytes: The content of `sentencepiece.bpe.model`.
  """
  model = _PROTO.ModelProto.FromString(model_bytes)
  vocab: list[list[Any]] = [[text, 0.0] for text in XLMR_SPECIAL]
  vocab += [[p.piece, p.score] for p in model.pieces[3:]]
  vocab.append(['<mask>', 0.0])
  special = [*range(len(XLMR_SPECIAL)), len(vocab) - 1]
  pair = '<s> A </s> </s> B </s>'
  return unigram_json(vocab, 3, special, model, '<s> A </s>', pair)


def unigram_json(
  vocab: list[list[Any]],
  unk_id: int,
  special: list[int],
  model: Any,
  single: str,
  pair: str,
) -> bytes:
  """`tokenizer.json` of a Unigram tokenizer.

  Args:
    vocab: [piece, score] by id.
    unk_id: The id of unknown pieces.
    special: Ids of pieces that are tokens wherever they occur in a text.
    model: The SentencePiece model, for its normalisation.
    single: The template of one text A, such as 'A </s>'.
    pair: The template of two texts, A and B.
  """
  ids = {text: i for i, (text, _) in enumerate(vocab)}

  def template(text: str) -> list[dict[str, Any]]:
    kinds = {'A': 'Sequence', 'B': 'Sequence'}
    return [
      {kinds.get(name, 'SpecialToken'): {'id': name, 'type_id': 0}}
      for name in text.split()
    ]

  metaspace = {
    'type': 'Metaspace',
    'replacement': '▁',
    'prepend_scheme': 'always',
    'split': True,
  }
  charsmap = model.normalizer_spec.precompiled_charsmap
  normalizer = {
    'type': 'Precompiled',
    'precompiled_charsmap': base64.b64encode(charsmap).decode(),
  }
  made = {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': [
      {
        'id': i,
        'content': vocab[i][0],
        'single_word': False,
        'lstrip': vocab[i][0] == '<mask>',
        'rstrip': False,
        'normalized': False,
        'special': True,
      }
      for i in special
    ],
    'normalizer': normalizer if charsmap else None,
    'pre_tokenizer': {
      'type': 'Sequence',
      'pretokenizers': [{'type': 'WhitespaceSplit'}, metaspace],
    },
    'post_processor': {
      'type': 'TemplateProcessing',
      'single': template(single),
      'pair': template(pair),
      'special_tokens': {
        name: {'id': name, 'ids': [ids[name]], 'tokens': [name]}
        for name in sorted(set(pair.split()) - {'A', 'B'})
      },
    },
    'decoder': metaspace,
    'model': {
      'type': 'Unigram',
      'unk_id': unk_id,
      'vocab': vocab,
      'byte_fallback': False,
    },
  }
  return (json.dumps(made, ensure_ascii=False) + '\n').encode()
