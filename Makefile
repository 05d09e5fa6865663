PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTS ?= tests
PYTEST_ARGS ?=
SERVE_ARGS ?=

.PHONY: setup serve test lint fmt clean

setup: $(STAMP)

# The stamp makes a second `make setup` free; a changed dependency list installs again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "topics needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

# Settings come from TOPICS_* variables, or as SERVE_ARGS="--port 5000".
serve: setup
	@exec $(BIN)/topics serve $(SERVE_ARGS)

test: setup
	$(BIN)/python -m pytest $(PYTEST_ARGS) $(TESTS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
