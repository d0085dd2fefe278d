"""`python -m t5score_jax` is `t5score`."""

import sys

from t5score_jax import cli

if __name__ == '__main__':
  sys.exit(cli.main())
