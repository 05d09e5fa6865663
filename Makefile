PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.bench-installed
TESTS ?= tests
PYTEST_ARGS ?=
# Tests that run at once; JOBS=0 runs them in one process, for a debugger.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 8))')
SERVE_ARGS ?=
BENCH_ARGS ?=

SEED ?=
SECONDS ?= 60

.PHONY: setup serve test simulate bench bench-spark lint fmt clean

# Compiled code starts in half the time. It is done here as Python does not where PYTHONDONTWRITEBYTECODE is set.
setup: $(STAMP)
	@$(BIN)/python -m compileall -q topics spark_integration

# The stamp makes a second `make setup` free; a changed dependency list installs again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "topics needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

# Settings come from TOPICS_* variables, or as SERVE_ARGS="--port 5000".
serve: setup
	@exec $(BIN)/topics serve $(SERVE_ARGS)

# What fails beside other tests is run once more, alone, so that a busy machine is told from a broken commit. What passes
# only then is named at the end: it is still a defect, of the test or of the product.
PYTEST := $(BIN)/python -m pytest
test: setup
	@$(PYTEST) -n $(JOBS) --dist worksteal $(PYTEST_ARGS) $(TESTS) || { code=$$?; test $$code -eq 1 || exit $$code; \
	  echo "==== once more, alone, what failed ===="; \
	  $(PYTEST) --last-failed --last-failed-no-failures none -v $(PYTEST_ARGS) $(TESTS); }

# The extra `bench` is optional: what cannot be installed is left out, and said so. BENCH_ARGS=--help shows the choices.
bench: $(BENCH_STAMP)
	@$(BIN)/python -m loadtest $(BENCH_ARGS)

$(BENCH_STAMP): $(STAMP)
	@for part in redis nats charts; do \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench-$$part]" -c constraints.txt \
	    || echo "the extra bench-$$part could not be installed"; done
	@touch $@

# Records/s through Spark; BENCH_ARGS="--records 100000" for a quick look.
bench-spark: setup
	@$(BIN)/python -m loadtest.spark $(BENCH_ARGS)

# Random histories of a whole shard for SECONDS; SEED=… replays one, with everything that happens in it.
simulate: setup
	@$(BIN)/python -m topics.testing.simulate $(if $(SEED),--seed $(SEED),--seconds $(SECONDS))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) bench-results build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
