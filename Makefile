# Everything happens in $(VENV), which is made on first use and again when the pins change: first with
# what the package needs, which is enough for the demo, then with what tests and checks need.

PYTHON   ?= python3
VENV     ?= .venv
ARGS     ?=
PYTHONS  ?= 3.11 3.12 3.13
POSTGRES ?= 14 18

# REPORT=--report: the checks of words and layout only count their findings.
REPORT   ?=

BIN   := $(VENV)/bin
PACKAGE := $(VENV)/.package
STAMP := $(VENV)/.installed
# The packages whose coverage has a lower limit, and the limit in percent.
COVERED  := */oncebox/model/*,*/oncebox/storage/*,*/oncebox/processing/*,*/oncebox/operations/*
COVERAGE := 90

# `make test` keeps its files in memory where there are 4 GB for them; `make slow` has them on disk.
FREE   := $(shell df --output=avail /dev/shm 2>/dev/null | tail -n 1)
MEMORY := $(shell test -w /dev/shm && test "$(FREE)" -ge 4194304 2>/dev/null && echo /dev/shm)

# The tests start hundreds of processes: let them find compiled code, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo picture soak test slow fuzz torture check release-check format coverage api matrix bench constraints clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Make the virtual environment

# No build isolation: the build backend then comes from the pins as well, whatever the age of pip.
$(PACKAGE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt hatchling
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable .
	@touch $@

$(STAMP): $(PACKAGE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(PACKAGE)  ## Payments, duplicates and kill -9 for half a minute; ARGS="--seconds 10"
	$(BIN)/oncebox demo $(ARGS)

picture: $(STAMP)  ## Draw docs/demo.svg, the picture in README.md, from a run of the demo
	$(BIN)/python tools/demo_picture.py $(ARGS)

soak: $(STAMP)  ## A million lines, and 100,000 messages of Kafka, through workers that are killed
	ONCEBOX_SOAK_LINES=$(or $(SOAK_LINES),1000000) ONCEBOX_SOAK_MESSAGES=$(or $(SOAK_MESSAGES),100000) \
	  $(BIN)/python -m pytest tests/acceptance/test_soak.py tests/brokers/test_kafka_soak.py $(ARGS)

test: $(STAMP)  ## Run the tests, but for the slow ones; ARGS="-k name -x" goes to pytest
	$(if $(MEMORY),TMPDIR=$(MEMORY)) $(BIN)/python -m pytest $(or $(ARGS),-m "not slow" -n 3 --dist worksteal)

slow: $(STAMP)  ## Run the slow tests: most of Kafka, faults on more adapters
	$(BIN)/python -m pytest $(or $(ARGS),-m slow -n 2 --dist worksteal)

fuzz: $(STAMP)  ## Hostile deliveries, ended transactions, interrupts at more lines; ONCEBOX_FUZZ_EXAMPLES=5000 for longer
	ONCEBOX_FUZZ_EXAMPLES=$${ONCEBOX_FUZZ_EXAMPLES:-500} $(BIN)/python -m pytest \
	  tests/faults/test_hostile_input.py tests/faults/test_transaction_ends.py \
	  tests/faults/test_interrupts.py --timeout 3600 $(or $(ARGS),-n 2)

torture: $(STAMP)  ## Kill and stop workers for minutes; ONCEBOX_TORTURE_SEEDS=10 for longer
	ONCEBOX_TORTURE_SEEDS=$${ONCEBOX_TORTURE_SEEDS:-2} $(BIN)/python -m pytest \
	  tests/faults/test_drain_model.py tests/faults/test_retention_model.py $(or $(ARGS),-n 2)

check: $(STAMP)  ## Check format, style, types, layers, words and layout
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/mypy tests tools
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python tools/check_generators.py
	$(BIN)/python tools/check_words.py $(REPORT)
	$(BIN)/python tools/check_layout.py $(REPORT)

release-check: $(STAMP)  ## Build the wheel and the sdist, install them into empty environments, and use them
	$(BIN)/python tools/check_release.py

api: $(STAMP)  ## Write the public names and signatures to tests/public_api.txt
	$(BIN)/python tools/public_api.py > tests/public_api.txt

format: $(STAMP)  ## Format the code and fix what can be fixed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

coverage: $(STAMP)  ## Run the tests with branch coverage; model, storage, processing and operations must reach 90 %
	$(BIN)/python -m pytest --cov --cov-report= $(or $(ARGS),-n 2)
	$(BIN)/coverage report
	$(BIN)/coverage report --include='$(COVERED)' --fail-under=$(COVERAGE)

matrix:  ## Run the tests on every Python and PostgreSQL that can be had
	@for version in $(PYTHONS); do \
	  found=; \
	  for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
	    if "$$python" -c pass 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then summary="$$summary\n  Python $$version: not found"; continue; fi; \
	  for postgres in $(POSTGRES); do \
	    echo "== Python $$version ($$found), PostgreSQL $$postgres"; \
	    if ONCEBOX_TEST_POSTGRES_VERSION=$$postgres $(MAKE) --no-print-directory test \
	      PYTHON="$$found" VENV=.venv-$$version; \
	    then result=passed; else result=FAILED; failed=1; fi; \
	    summary="$$summary\n  Python $$version, PostgreSQL $$postgres: $$result"; \
	  done; \
	done; \
	printf "== matrix$$summary\n"; [ -z "$$failed" ]

bench: $(STAMP)  ## Measure throughput
	$(BIN)/python -m bench $(ARGS)

constraints:  ## Pin the newest versions of everything in constraints.txt
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	$(PYTHON) -m venv "$$scratch" && "$$scratch/bin/python" -m pip install --quiet uv && \
	UV_PYTHON_DOWNLOADS=never "$$scratch/bin/uv" pip compile --quiet --upgrade --universal \
	  --no-annotate --no-header --no-emit-index-url --python-version 3.11 --all-extras \
	  --output-file constraints.txt pyproject.toml

clean:  ## Remove everything that git does not track and make can make again
	rm -rf .venv .venv-* build dist .coverage .coverage.* htmlcov
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
