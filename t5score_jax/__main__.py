"""The program `t5score`, and `python -m t5score_jax`.

Ctrl-C is one line from the first import on.
"""

import sys


def main() -> int:
  """Runs the program; returns its exit code."""
  try:
    from t5score_jax import cli
  except KeyboardInterrupt:
    print('t5score: interrupted', file=sys.stderr)
    return 130
  return cli.main()


if __name__ == '__main__':
  sys.exit(main())
