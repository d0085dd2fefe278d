# Each target starts from nothing but Python 3.10+ and installs what it needs
# into one virtual environment; a second call installs nothing.
#
#   make demo                   score shipped sentences with the embedded model
#   make test                   run the quick tests, two files at a time
#   make test-slow              run the slow tests (clean installs, several processes,
#                               recipes, further variants of quick tests)
#   make parity                 compare with transformers and torch
#   make test-all               run the three above
#   make lint                   run ruff and mypy, as CI and pre-commit do
#   make bench                  measure speed beside peers; writes BENCHMARKS.md
#   make docs                   build the site of docs/ into build/site
#   make wheel                  build dist/*.whl and dist/*.tar.gz
#   make clean                  remove everything that make has made
#
#   make PYTHON=python3.12 ...  use another interpreter
#   make VENV=/tmp/venv ...     put the environment elsewhere (no spaces)
#   make PYTEST_ARGS='-k tau' test
#   make JOBS=8 test            test eight files at a time
#   make BENCH_ARGS=--quick bench

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# The release that the parity tests were last run with. Where a CPU build of it
# lies at hand pip takes that; otherwise pip may choose a CUDA build of several
# gigabytes.
TORCH ?= torch==2.13.0

# See `python benchmarks/bench.py --help`. The peers' packages are pinned in
# benchmarks/peers.txt; they want Python 3.10 to 3.12.
BENCH_ARGS ?=
PEERS_PYTHON ?= $(PYTHON)

python := $(VENV)/bin/python
pip := $(python) -m pip install --disable-pip-version-check -q

# Stamps live in the environment, so that they go with it; the first one names
# the Python release, so that another PYTHON makes a new environment.
release := $(shell $(PYTHON) -c \
  'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
venv := $(VENV)/.venv-$(release)
base := $(VENV)/.base-$(release)
test := $(VENV)/.test-$(release)
parity := $(VENV)/.parity-$(release)
dev := $(VENV)/.dev-$(release)
bench := $(VENV)/.bench-$(release)
docs := $(VENV)/.docs-$(release)
peers := build/bench-peers
metadata := setup.py pyproject.toml

# A file's tests share their fixtures, so a worker takes whole files.
JOBS ?= 2
# Tiny networks spend their time in the compiler: this takes a sixth of it. The
# slow and the parity tests compile as users do.
quick := XLA_FLAGS='--xla_backend_optimization_level=0 \
  --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
pytest := JAX_PLATFORMS=cpu $(python) -m pytest -n $(JOBS) --dist loadfile \
  $(PYTEST_ARGS)

# All targets install into the same environment: one at a time, also under -j.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow parity test-all lint bench docs wheel clean

help:
	@sed -n '/^#   /s/^#   //p' Makefile

demo: $(base)
	@$(python) -m t5score_jax.cli demo

test: $(test)
	$(quick) $(pytest) -m 'not slow and not parity'

test-slow: $(test)
	$(pytest) -m 'slow and not parity'

parity: $(parity)
	$(pytest) -m parity

test-all: test test-slow parity

# mypy reads the layout of an installed library, where tasks/ and gin_configs/
# lie inside the package; links make it.
lint: $(dev)
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	@rm -rf build/types && mkdir -p build/types/t5score_jax
	@cd build/types/t5score_jax && \
	  ln -s ../../../t5score_jax/* ../../../tasks ../../../gin_configs .
	cd build/types && $(abspath $(python)) -m mypy \
	  --config-file ../../pyproject.toml t5score_jax ../../scripts

# Nothing that a page loads may lie on another host.
bench: $(bench) $(peers)/.installed
	$(python) benchmarks/bench.py $(BENCH_ARGS)

docs: $(docs)
	NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build -q
	@! grep -rnoE '<(script|img|link)[^>]*(src|href)="https?:[^"]*' \
	  --include='*.html' build/site | grep -v 'rel="canonical"'

wheel: $(dev)
	rm -rf dist
	$(python) -m build --outdir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info
	rm -rf .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(venv):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "PYTHON=$(PYTHON): Python 3.10 or newer is needed;" \
	    "name another one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "Making $(VENV) with Python $(release) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(pip) --upgrade pip
	@touch $@

$(base): $(venv) $(metadata)
	@echo "Installing t5score_jax; the first time this takes a minute ..."
	@$(pip) -e .
	@touch $@

$(test): $(base)
	@echo "Installing what training and the tests need ..."
	@$(pip) -e '.[train,test]'
	@touch $@

$(parity): $(test)
	@echo "Installing the reference implementations ..."
	@$(pip) '$(TORCH)'
	@$(pip) -e '.[train,test,parity]'
	@touch $@

$(dev): $(test)
	@echo "Installing the developers' tools ..."
	@$(pip) -e '.[train,test,dev]'
	@touch $@

$(docs): $(base)
	@echo "Installing what the site needs ..."
	@$(pip) -e '.[docs]'
	@touch $@

$(bench): $(test)
	@echo "Installing the encoders that are measured ..."
	@$(pip) -e '.[train,test,encoders]'
	@touch $@

$(peers)/.installed: benchmarks/peers.txt
	@echo "Installing the peers into $(peers) ..."
	@$(PEERS_PYTHON) -m venv --clear $(peers)
	@$(peers)/bin/python -m pip install --disable-pip-version-check -q \
	  -r benchmarks/peers.txt
	@touch $@
