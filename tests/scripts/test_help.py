"""Every option of a script and of a benchmark is explained by its --help."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
  str(path.relative_to(ROOT))
  for folder in ('scripts', 'benchmarks')
  for path in (ROOT / folder).rglob('*.py')
)


def _unexplained(source):
  """Yields the name of each option that is added without a help text."""
  for node in ast.walk(ast.parse(source)):
    if not isinstance(node, ast.Call) or not node.args:
      continue
    if getattr(node.func, 'attr', None) != 'add_argument':
      continue
    if not {'help', None} & {keyword.arg for keyword in node.keywords}:
      yield ast.unparse(node.args[0])


def test_what_is_looked_for():
  source = "p.add_argument('--x')\np.add_argument('-y', help='of z')"
  assert list(_unexplained(source)) == ["'--x'"]


@pytest.mark.parametrize('program', PROGRAMS)
def test_options_are_explained(program):
  assert not list(_unexplained((ROOT / program).read_text('utf-8')))
