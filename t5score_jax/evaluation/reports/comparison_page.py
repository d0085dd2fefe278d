"""A comparison of systems as one HTML file, with segments to inspect.

It has tables, and the segments on which two systems differ most, with coloured
tokens or errors. The file makes no requests: style, script and data are inline,
a content security policy blocks anything else, and the script inserts texts as
plain text.
Not here: the tests (`evaluation/paired_tests.py`), reading and scoring.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5score_jax.evaluation.paired_tests import Comparison

_FOLDER = Path(__file__).with_name('comparison')
# Where errors overlap the gravest is shown.
_GRAVITY = ('minor', 'major', 'critical')

#: An error: its first character, the one after its last, and its severity.
Error = tuple[int, int, str]


@dataclasses.dataclass(frozen=True)
class Output:
  """What a system wrote for a segment.

  Attributes:
    text: The text.
    score: Its score.
    tokens: The text of each token and its log-probability, if known.
    errors: The errors in the text; None if it was not annotated.
  """

  text: str
  score: float
  tokens: Sequence[tuple[str, float]] | None = None
  errors: Sequence[Error] | None = None


@dataclasses.dataclass(frozen=True)
class Shown:
  """A segment with the outputs of all systems, in the order of the systems.

  Attributes:
    id: Its ids, in words.
    source: The source, if there is one.
    references: Any number of references.
    outputs: One for each system.
  """

  id: str
  source: str | None
  references: Sequence[str]
  outputs: Sequence[Output]

  @property
  def spread(self) -> float:
    """The difference between its highest and its lowest score."""
    scores = [output.score for output in self.outputs]
    return max(scores) - min(scores)


def render(
  comparisons: Mapping[str, Comparison],
  segments: Mapping[str, Sequence[Shown]],
  *,
  title: str,
  notes: Sequence[str] = (),
  digits: int = 4,
  most: int = 2000,
) -> str:
  """The page.

  Args:
    comparisons: By language pair, '' where there is none.
    segments: The segments of each language pair.
    title: The heading.
    notes: Sentences to add, the metric's signature among them.
    digits: Decimals of scores.
    most: Maximum number of segments per language pair. Those with the largest
      spread of scores are kept; the page states the total.
  """
  pairs = [
    _pair(name, comparison, _kept(segments[name], most))
    for name, comparison in comparisons.items()
  ]
  outputs = [o for rows in segments.values() for s in rows for o in s.outputs]
  data = {
    'notes': list(notes),
    'digits': digits,
    'has_tokens': any(o.tokens is not None for o in outputs),
    'has_errors': any(o.errors is not None for o in outputs),
    'pairs': pairs,
  }
  style, script = _read('page.css'), _read('page.js')
  policy = (
    f"default-src 'none'; style-src '{_digest(style)}'; "
    f"script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
  )
  page = _read('page.html')
  for name, text in {
    'POLICY': policy,
    'STYLE': style,
    'SCRIPT': script,
    'TITLE': html.escape(title),
    # Last, so that nothing in the data is mistaken for one of these names.
    'DATA': _json(data),
  }.items():
    page = page.replace(f'@{name}@', text)
  return page


def _kept(segments: Sequence[Shown], most: int) -> list[Shown]:
  """The segments with the largest spread, in the order in which they came."""
  by_spread = sorted(range(len(segments)), key=lambda n: -segments[n].spread)
  return [segments[n] for n in sorted(by_spread[:most])]


def _pair(
  name: str, comparison: Comparison, segments: Iterable[Shown]
) -> dict[str, Any]:
  return {
    'name': name,
    'count': comparison.segments,
    'systems': [
      {'name': system, 'value': value, 'low': low, 'high': high}
      for system, value, (low, high) in zip(
        comparison.systems,
        comparison.values.tolist(),
        comparison.intervals.tolist(),
        strict=True,
      )
    ],
    'comparisons': [dataclasses.asdict(row) for row in comparison.rows],
    'segments': [
      {
        'id': segment.id,
        'source': segment.source,
        'references': list(segment.references),
        'outputs': [_output(output) for output in segment.outputs],
      }
      for segment in segments
    ],
  }


def _output(output: Output) -> dict[str, Any]:
  found: dict[str, Any] = {
    'text': output.text,
    'score': float(f'{output.score:.7g}'),
  }
  if output.tokens is not None:
    found['tokens'] = _whole_characters(output.tokens)
  if output.errors is not None:
    found['errors'] = runs(output.text, output.errors)
  return found


def _whole_characters(
  tokens: Iterable[tuple[str, float]],
) -> list[tuple[str, float]]:
  """Merges tokens without a whole character (bytes) into the next token."""
  joined: list[tuple[str, float]] = []
  waiting = 0.0
  for text, value in tokens:
    waiting += value
    if text:
      # The first word's own space is not part of the text.
      text = text if joined else text.lstrip() or text
      joined.append((text, round(waiting, 3)))
      waiting = 0.0
  return joined


def runs(text: str, errors: Iterable[Error]) -> list[tuple[str, str]]:
  """Splits a text where errors begin and end.

  >>> runs('the cat sat', [(4, 7, 'major'), (0, 7, 'minor')])
  [('the ', 'minor'), ('cat', 'major'), (' sat', '')]

  Args:
    text: The text.
    errors: Errors in it, in any order; they may overlap.

  Returns:
    The parts in order, each with its gravest severity, '' for none.
  """
  ordered = sorted(errors, key=lambda error: _gravity(error[2]))
  marks = [''] * len(text)
  for start, end, severity in ordered:
    marks[start:end] = [severity] * (end - start)
  parts: list[tuple[str, str]] = []
  for character, mark in zip(text, marks, strict=True):
    if parts and parts[-1][1] == mark:
      parts[-1] = (parts[-1][0] + character, mark)
    else:
      parts.append((character, mark))
  return parts


def _gravity(severity: str) -> int:
  return _GRAVITY.index(severity) if severity in _GRAVITY else -1


def _json(value: object) -> str:
  """JSON in which no HTML parser finds the end of its element."""
  text = json.dumps(value, ensure_ascii=False, separators=(',', ':'))
  for character in '<>&\u2028\u2029':
    text = text.replace(character, f'\\u{ord(character):04x}')
  # Half a surrogate pair cannot be written.
  return text.encode('utf-8', 'backslashreplace').decode('utf-8')


def _read(name: str) -> str:
  return (_FOLDER / name).read_text('utf-8')


def _digest(text: str) -> str:
  sha256 = hashlib.sha256(text.encode('utf-8')).digest()
  return f'sha256-{base64.b64encode(sha256).decode()}'
