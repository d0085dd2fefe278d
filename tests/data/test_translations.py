"""Files of texts with their translations, and what is wrong with some."""

import gzip
import json

import pytest

from t5score_jax.data import translations
from t5score_jax.data.files import RecordError

OTHER = ('inputs', 'prediction')


def test_both_formats_and_both_names(tmp_path):
  tsv = tmp_path / 'a.tsv'
  tsv.write_text('score\tsource\ttarget\n1\tein Hund\ta dog\n')
  jsonl = tmp_path / 'a.jsonl.gz'
  row = {'inputs': 'ein Hund', 'prediction': 'a dog', 'tokens': 3}
  jsonl.write_bytes(gzip.compress(json.dumps(row).encode() + b'\n'))
  for path, line in ((tsv, 2), (jsonl, 1)):
    found = list(translations.read(path, translations.PAIR, OTHER))
    assert found == [(line, 'ein Hund', 'a dog')]
  assert list(translations.read_pairs(tsv)) == [('ein Hund', 'a dog')]


@pytest.mark.parametrize(
  ('name', 'content', 'line', 'message'),
  [
    ('a.tsv', 'source\tmt\na\tb\n', 1, "'source' and 'target'.*: source, mt"),
    ('a.jsonl', '{"source": "a"}\n', 1, "needs the columns 'source'"),
    ('a.jsonl', '{"source": "a", "target": ["b"]}\n', 1, 'must be a text'),
    (
      'a.jsonl',
      '{"source": "a", "target": "b"}\n{"source": "c"}\n',
      2,
      'must be a text',
    ),
    ('a.tsv', 'source\ttarget\na\tb\nc\t \n', 3, 'an empty text'),
    ('a.tsv', '', None, 'the file is empty'),
  ],
)
def test_errors_name_the_line(tmp_path, name, content, line, message):
  (tmp_path / name).write_text(content)
  with pytest.raises(RecordError, match=message) as caught:
    list(translations.read_pairs(tmp_path / name))
  assert caught.value.line == line
  assert caught.value.path == str(tmp_path / name)
