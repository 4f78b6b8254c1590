# Every target sets up .venv by itself; the two that matter are `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed

.PHONY: help install demo test test-fast test-slow bench docs lint format clean

help:
	@echo "make demo       train an agent without memory and one with it on the embedded world"
	@echo "make test       lint, types and every test but the slow ones"
	@echo "make test-fast  the tests of an edit-run loop (< 2 minutes)"
	@echo "make test-slow  the heavy tests"
	@echo "make bench      speed and memory as ratios, written to benchmarks/results.md"
	@echo "make docs       the documentation as a site in build/site, with an API reference"
	@echo "make lint       ruff, codespell and mypy;  make format  lets ruff rewrite"

install: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/esceme demo

test: lint
	$(BIN)/pytest -m "not slow" -n 2

test-fast: install
	$(BIN)/pytest -m "not slow and not real and not long" -n 2

test-slow: install
	$(BIN)/pytest -m slow || [ $$? -eq 5 ]  # 5: no test carries the mark

bench: install
	$(BIN)/python -m benchmarks

docs: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

lint: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell src tests docs benchmarks examples README.md CHANGELOG.md && $(BIN)/mypy

format: install
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build
