"""Input formats of MetricX and UniEval: a segment's texts in one input.

The published models were trained with these formats. Not here:
networks (`nn/first_step.py`), scores (`metrics/metricx.py`, `unieval.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from t5score_jax.data.vocab import Vocabulary

#: The piece whose logit is MetricX's prediction, `<extra_id_10>` of mT5.
METRICX_ID = 250089
#: MetricX's predictions, an MQM error score: 0 is perfect, 25 the worst.
METRICX_RANGE = (0.0, 25.0)
#: Tokens of an input by version, the `</s>` that is removed included.
METRICX_LENGTHS = {23: 1024, 24: 1536}
#: The texts in MetricX's inputs besides the hypothesis.
FORMS = ('reference', 'source', 'source+reference')


def metricx(
  version: int,
  form: str,
  hypothesis: str,
  source: str | None,
  reference: str | None,
) -> str:
  """The input of MetricX (its predict.py, both versions).

  Args:
    version: 23 or 24.
    form: One of `FORMS`. Version 23 has no form with both texts. Version 24 has
      both or only the source; with 'reference', the source is empty.
    hypothesis: The translation.
    source: The source; not used with form 'reference'.
    reference: The reference; not used with form 'source'.
  """
  if version == 23:
    if form == 'source':
      return f'candidate: {hypothesis} source: {source}'
    return f'candidate: {hypothesis} reference: {reference}'
  text = f'source: {"" if form == "reference" else source}'
  text += f' candidate: {hypothesis}'
  return text if form == 'source' else f'{text} reference: {reference}'


def encode_metricx(
  texts: Sequence[str], vocabulary: Vocabulary, max_length: int
) -> tuple[list[list[int]], list[bool]]:
  """Ids of inputs of MetricX, and which were cut.

  Args:
    texts: From `metricx`.
    vocabulary: The model's.
    max_length: Tokens including `</s>`, which is then removed.
  """
  rows = vocabulary.encode_batch(texts)
  most = max_length - 1
  return [ids[:most] for ids in rows], [len(ids) > most for ids in rows]


@dataclasses.dataclass(frozen=True)
class Question:
  """A question of UniEval about one quality dimension.

  Attributes:
    text: The question.
    fields: Names of the texts in the input, and the texts: 'hypothesis',
      'source' or 'reference'. In dialogues the fact takes the place of the
      reference, which no question about dialogues uses.
    sentences: 'mean' or 'sum' if the question is asked about each sentence of
      the hypothesis, and the answers combined so; '' for the whole hypothesis.
  """

  text: str
  fields: tuple[tuple[str, str], ...]
  sentences: str = ''

  @property
  def needs(self) -> tuple[str, ...]:
    """The texts beside the hypothesis."""
    return tuple(text for _, text in self.fields[1:])


def _question(text: str, *fields: str, sentences: str = '') -> Question:
  pairs = (field.rsplit(':', 1) for field in fields)
  return Question(text, tuple((a, b) for a, b in pairs), sentences)


_CONSISTENCY = _question(
  'Is this claim consistent with the document?',
  'claim:hypothesis',
  'document:source',
  sentences='mean',
)
#: UniEval's questions (its utils.py) by task and dimension, in its order.
UNIEVAL: Mapping[str, Mapping[str, Question]] = {
  'summarization': {
    'coherence': _question(
      'Is this a coherent summary to the document?',
      'summary:hypothesis',
      'document:source',
    ),
    'consistency': _CONSISTENCY,
    'fluency': _question(
      'Is this a fluent paragraph?', 'paragraph:hypothesis', sentences='mean'
    ),
    'relevance': _question(
      'Is this summary relevant to the reference?',
      'summary:hypothesis',
      'reference:reference',
    ),
  },
  'dialogue': {
    'naturalness': _question(
      'Is this a natural response in the dialogue?', 'response:hypothesis'
    ),
    'coherence': _question(
      'Is this a coherent response given the dialogue history?',
      'response:hypothesis',
      'dialogue history:source',
    ),
    'engagingness': _question(
      'Is this an engaging and informative response according to the dialogue '
      'history and fact?',
      'response:hypothesis',
      'dialogue history:source',
      'fact:reference',
      sentences='sum',
    ),
    'groundedness': _question(
      'Is this response consistent with knowledge in the fact?',
      'response:hypothesis',
      'fact:reference',
    ),
    'understandability': _question(
      'Is this an understandable response in the dialogue?',
      'response:hypothesis',
    ),
  },
  'data2text': {
    'naturalness': _question(
      'Is this a fluent utterance?', 'utterance:hypothesis'
    ),
    'informativeness': _question(
      'Is this sentence informative according to the reference?',
      'sentence:hypothesis',
      'reference:reference',
    ),
  },
  'fact': {'consistency': _CONSISTENCY},
}


def unieval(question: Question, texts: Mapping[str, str]) -> tuple[str, ...]:
  """The input of UniEval: its parts, to be separated by `</s>`.

  Args:
    question: The question.
    texts: The texts of its fields.
  """
  parts = [f' {name}: {texts[text]} ' for name, text in question.fields]
  parts[-1] = parts[-1][:-1]
  return (f'question: {question.text} ', *parts)


def encode_unieval(
  inputs: Sequence[tuple[str, ...]], vocabulary: Vocabulary, max_length: int
) -> tuple[list[list[int]], list[bool]]:
  """Ids of inputs of UniEval, `</s>` last, and which were cut.

  Args:
    inputs: From `unieval`.
    vocabulary: The model's.
    max_length: Tokens, `</s>` included.
  """
  encoded = iter(vocabulary.encode_batch([p for row in inputs for p in row]))
  end = vocabulary.eos_id
  rows = [[i for _ in row for i in (*next(encoded), end)] for row in inputs]
  cut = [len(ids) > max_length for ids in rows]
  return [
    [*ids[: max_length - 1], end] if long else ids
    for ids, long in zip(rows, cut, strict=True)
  ], cut


# An end of a sentence with closing quotes and brackets, and white space; after
# Chinese and Japanese ends there is none.
_END = re.compile(
  r'([.!?\u2026]+["\'\u2019\u201d)\]]*)\s+|([\u3002\uff01\uff1f])'
)
_NO_END = re.compile(
  r'(?:^|[\s("\'])(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Gov|Sen|Rep|Lt|Col'
  r'|vs|etc|e\.g|i\.e|cf|No|Inc|Ltd|Co|Corp|(?:[A-Za-z]\.)+[A-Za-z])\.$'
)


def sentences(text: str) -> list[str]:
  """Splits a text into sentences by its punctuation.

  A full stop after an initial or a common abbreviation, or before a lower-case
  letter, does not end a sentence. UniEval's program uses NLTK's Punkt model,
  which has learned other abbreviations and can split differently.

  Returns:
    At least one sentence: the text itself if it has no end of a sentence.
  """
  found, start = [], 0
  for match in _END.finditer(text):
    end = match.start(1) + len(match[1]) if match[1] else match.end()
    following = text[match.end() : match.end() + 1]
    if match[1] and (
      following.islower()
      or (match[1] == '.' and _NO_END.search(text[start:end]))
    ):
      continue
    found.append(text[start:end].strip())
    start = match.end()
  if rest := text[start:].strip():
    found.append(rest)
  return found or [text]
