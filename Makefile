# Every target makes what it needs: an environment of its own in .venv, from the Python that PYTHON names.
#
#   make demo          a private Prefect server, a sweep, a retraining pipeline, pictures of what happened (a minute)
#   make demo KEEP=1   the same, and leaves server and worker up until Enter, to look around
#   make cluster-demo  three Docker nodes on this machine, a sweep, a gang, and a node that is lost on the way (root)
#   make test          lint, and tests of every behaviour that needs nothing but Python (at most 10 minutes on 2 cores)
#   make test-all      what that leaves out: clusters, S3, PostgreSQL, browsers, frameworks, papers, long runs
#   make test-quick    the tests that take no more than a few seconds each
#   make docs          the documentation site, in site/; every link in it is checked
#   make docs-serve    the site at http://127.0.0.1:8000, built again whenever a page changes
#   make lint          style, types, and which package may import which
#   make env           only the environment, with everything that developers use
#   make clean         remove the environment and everything that was made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
TRIALS ?= 12
OUTPUT ?= demo-output
PYTEST_ARGS ?=
# Tests and demo start hundreds of processes. Without bytecode, each of them would compile all of our modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo cluster-demo test test-all test-quick docs docs-serve lint env clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.demo
	@$(PY) -m prefect_gpu.demo --trials $(TRIALS) --output "$(OUTPUT)" $(if $(KEEP),--keep)

cluster-demo: $(VENV)/.demo
	@$(PY) -m prefect_gpu.demo.cluster --output "$(OUTPUT)"

# Lint runs beside the tests. What `make test` leaves out, and for want of what, it says at its end.
test test-all: $(VENV)/.dev
	@$(PY) -m tests.suite $@ $(PYTEST_ARGS)

test-quick: $(VENV)/.dev
	$(PY) -m pytest -n 2 --dist loadfile -m "not slow and not full" $(PYTEST_ARGS)

# The theme tells of its successor at each start: docs/design/dependencies.md does.
docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "The site is in site/: open site/index.html"

docs-serve: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --no-strict

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

env: $(VENV)/.dev

clean:
	rm -rf $(VENV) demo-output site .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps say what was installed; a change of what is needed installs again. uv comes from pip, at the version in
# constraints.txt, because it installs in seconds what takes pip minutes.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(PY) -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.demo $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/uv
	@echo "Installing what the demo needs into $(VENV) (once) ..."
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(PY) -c constraints.txt -e '.[demo]'
	@touch $@

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "Python 3.10 or newer is needed, and $(PYTHON) is not. Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "No virtual environment could be made. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
