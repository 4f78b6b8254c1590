# Every target sets up .venv by itself; the two that matter are `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
SEED   ?= 0
# The tests of a file run in one of the two processes, so that its fixtures are made once.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help install demo test test-fast test-slow test-floors test-python fuzz kills full-disk bench screenshots docs lint format clean

help:
	@echo "make demo       train an agent without memory and one with it on the embedded world"
	@echo "make test       lint, types and every test but the slow ones"
	@echo "make test-fast  the tests of an edit-run loop (< 2 minutes)"
	@echo "make test-slow  the heavy tests"
	@echo "make test-floors  the tests with the lowest supported version of every dependency, in .venv-floors"
	@echo "make test-python  the tests with Python 3.12 and 3.13 where present, in .venv-3.12 and .venv-3.13"
	@echo "make fuzz       N=10000 SEED=0: damaged files of every kind"
	@echo "make kills      N=300: commands that are stopped and run again;  make full-disk  N=50"
	@echo "make bench      speed and memory as ratios, written to benchmarks/results.md"
	@echo "make screenshots  the pictures of docs/view.md from the demo; needs Chromium"
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
	$(PYTEST) -m "not slow"

test-fast: install
	$(PYTEST) -m "not slow and not real and not long"

test-slow: install
	$(BIN)/pytest -m slow || [ $$? -eq 5 ]  # 5: no test carries the mark

# torch of PyPI brings several gigabytes of CUDA packages. TORCH=<version> takes another one in both targets, for example
# one with a CPU wheel at hand.
PYTHONS ?= 3.12 3.13
TORCH   ?=

test-floors:
	$(call test_in_venv,$(PYTHON),.venv-floors,constraints-floors.txt)

test-python: $(PYTHONS:%=test-python-%)

test-python-%:
	@if python$* --version; then $(call test_in_venv,python$*,.venv-$*,constraints.txt); \
	else echo "Python $* is absent and was not tested"; fi

# Arguments: interpreter, folder of its virtual environment, constraints.
test_in_venv = $(1) -m venv $(2) \
	&& sed '$(TORCH:%=s/^torch==.*/torch==%/)' $(3) > $(2)/constraints.txt \
	&& $(2)/bin/python -m pip install --quiet --constraint $(2)/constraints.txt --editable '.[test]' \
	&& $(PYTEST:$(BIN)/%=$(2)/bin/%) -m "not slow"

fuzz: install
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.fuzzer --cases $(or $(N),10000) --seed $(SEED)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.service_requests --cases $(or $(N),10000) --seed $(SEED)

kills: install
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.kills --kills $(or $(N),300) --seed $(SEED)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.store_kills --kills $(or $(N),300) --seed $(SEED)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.service_kills --kills $(or $(N),300) --seed $(SEED)

full-disk: install
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.kills --full-disks $(or $(N),50) --seed $(SEED)

bench: install
	$(BIN)/python -m benchmarks

DEMO ?= demo
screenshots: install
	$(BIN)/python docs/make_screenshots.py $(DEMO) "$$($(BIN)/python -c 'import esceme; print(esceme.embedded_world(esceme.WorldConfig()))')"

docs: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

lint: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell src tests docs benchmarks examples README.md CHANGELOG.md && $(BIN)/mypy

format: install
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache build
