# Decides the order of set-up, build and tests; every rule says in one line what it is for (make help).
# Knows no compiler flag and no source file: those are in CMakeLists.txt and pyproject.toml.

VENV ?= .venv
BUILD ?= build
JOBS ?= 2
PY := $(VENV)/bin/python
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CMAKE_BINARY_DIR := $(abspath $(BUILD))/release
# Who installs has another compiler, which may warn of something else.
export CMAKE_ARGS := -DWEFT_WERROR=ON

PYTHON_SOURCES = $(wildcard transport congestion bench examples tests setup.py)
NATIVE_SOURCES = $(shell find native tests -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

.DEFAULT_GOAL := help
.PHONY: help setup build run test lint format test-walls test-native test-python \
        test-native-asan test-native-tsan test-rdma test-rdma-smoke conformance golden swarm schedules fuzz docs tidy wheel clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

# The stamp makes a second call quick; it is redone when what is asked for changes.
$(VENV)/.ready: pyproject.toml .ci/setup
	@.ci/setup $(VENV)
	@touch $@

setup: $(VENV)/.ready ## Create .venv with everything the build and the tests need

$(VENV)/bin/weft: $(VENV)/.ready setup.py
	@$(VENV)/bin/pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

build: $(VENV)/bin/weft ## Build the extension, the plugin and the shipped policies in place
	@$(PY) setup.py --quiet build_ext --inplace

run: build ## Move real data between two processes over eight lossy paths and print the table
	@$(PY) -m examples.first_run

test: ## Everything .ci/run runs: walls, lint, build, native tests, pytest, sanitizers, RDMA in a guest
	@$(MAKE) --no-print-directory test-walls
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint build
	@$(MAKE) --no-print-directory test-native
	@$(MAKE) --no-print-directory test-python
	@$(MAKE) --no-print-directory test-native-asan
	@$(MAKE) --no-print-directory test-native-tsan
	@$(MAKE) --no-print-directory test-rdma-smoke
	@echo "make test: all passed"

test-walls: ## Check imports, includes, file sizes and first lines; needs nothing installed
	@python3 tests/test_walls.py

lint: $(VENV)/.ready ## ruff, mypy and clang-format, changing nothing
	@$(VENV)/bin/ruff check $(PYTHON_SOURCES)
	@$(VENV)/bin/ruff format --check $(PYTHON_SOURCES)
	@$(VENV)/bin/mypy $(PYTHON_SOURCES)
	@$(VENV)/bin/clang-format --dry-run --Werror $(NATIVE_SOURCES)

format: $(VENV)/.ready ## Let ruff and clang-format rewrite what lint would refuse
	@$(VENV)/bin/ruff check --fix $(PYTHON_SOURCES)
	@$(VENV)/bin/ruff format $(PYTHON_SOURCES)
	@$(VENV)/bin/clang-format -i $(NATIVE_SOURCES)

tidy: build ## clang-tidy over the native sources
	@$(VENV)/bin/clang-tidy --quiet -p $(BUILD)/release $(filter native/%.cc,$(NATIVE_SOURCES))

test-native: build ## Native tests, and the host program of the plugin tests
	@$(VENV)/bin/cmake --build $(BUILD)/release --parallel $(JOBS) --target weft_tests
	@$(VENV)/bin/ctest --test-dir $(BUILD)/release --output-on-failure --parallel $(JOBS)

# Tests in virtual time, which a busy neighbour does not disturb: side by side.
COMPUTING := tests/policies tests/compiler tests/replay tests/conformance tests/golden tests/core tests/sim tests/swarm

test-python: build ## pytest
	@$(VENV)/bin/cmake --build $(BUILD)/release --parallel $(JOBS) --target weft_tests
	@$(PY) -m pytest --build-tree $(BUILD)/release --numprocesses $(JOBS) $(COMPUTING)
	@$(PY) -m pytest --build-tree $(BUILD)/release tests $(COMPUTING:%=--ignore=%)

test-native-asan: SANITIZE := address
test-native-asan: $(VENV)/.ready ## Native tests under the address and undefined-behaviour sanitizers
	@$(sanitized)

test-native-tsan: SANITIZE := thread
test-native-tsan: $(VENV)/.ready ## Native tests under the thread sanitizer
	@$(sanitized)

define sanitized
set -e; \
$(VENV)/bin/cmake -S . -B $(BUILD)/$(SANITIZE) -GNinja -DWEFT_SANITIZE=$(SANITIZE) $(CMAKE_ARGS) \
  $(if $(wildcard $(BUILD)/release/policies/.stamp),-DWEFT_BUILT_POLICIES=$(abspath $(BUILD))/release/policies) \
  -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja -DPython_EXECUTABLE=$(abspath $(PY)) >/dev/null; \
$(VENV)/bin/cmake --build $(BUILD)/$(SANITIZE) --parallel $(JOBS) --target weft_tests; \
$(VENV)/bin/ctest --test-dir $(BUILD)/$(SANITIZE) --output-on-failure --parallel $(JOBS)
endef

GUEST := $(PY) -m tests.rdma.guest

test-rdma: build ## RDMA over Soft-RoCE in a QEMU guest (RDMA_LONG=1: 10^4 messages a case as well, hours)
	@$(VENV)/bin/cmake --build $(BUILD)/release --parallel $(JOBS) --target weft_tests
	@$(GUEST) deps
	@$(GUEST) run --timeout $(if $(RDMA_LONG),36000,3600) -- $(PY) -m pytest -s -p no:cacheprovider tests/rdma

test-rdma-smoke: build ## The part of it that takes two minutes; left out, with the reason, where there is no guest
	@if $(GUEST) deps; then \
	  $(GUEST) run --timeout 600 -- $(PY) -m pytest -p no:cacheprovider tests/rdma/test_smoke.py; \
	else \
	  echo "RDMA tests left out: the line above says what this host lacks"; \
	fi

golden: build ## Write the golden tables, traces and plots anew: read the difference, say why
	@$(PY) -m tests.golden.rewrite

conformance: build ## Every registered policy against the whole suite, a million events each
	@CONFORMANCE=full $(PY) -m pytest --build-tree $(BUILD)/release tests/conformance

swarm: build ## Planted mistakes, then 10,000 drawn scenarios of the simulated fabric: nightly, some minutes
	@SWARM=full $(PY) -m pytest --build-tree $(BUILD)/release tests/swarm/test_defects.py
	@$(VENV)/bin/weft swarm --seeds 1-10000 --jobs $(JOBS) --out $(BUILD)/swarm-findings

schedules: build ## A thousand random schedules of real processes, and five planted mistakes (root, an hour)
	@PROCESS_SCHEDULES=1000 $(PY) -m pytest --build-tree $(BUILD)/release tests/processes

fuzz: build ## The control plane's parsers, 10^8 bodies, and 10^6 whole handshakes at a live listener: half an hour
	@$(VENV)/bin/cmake --build $(BUILD)/release --parallel $(JOBS) --target test_frames test_handshakes
	@WEFT_FUZZ_FRAMES=100000000 $(BUILD)/release/test_frames
	@WEFT_HANDSHAKES=1000000 $(BUILD)/release/test_handshakes

docs: build ## Regenerate the documentation that comes from tables
	@mkdir -p docs
	@$(VENV)/bin/weft knobs --markdown > docs/KNOBS.md
	@$(VENV)/bin/weft counters --markdown > docs/COUNTERS.md
	@$(VENV)/bin/weft counters --stub > transport/_native_counters.pyi

wheel: $(VENV)/.ready ## Build a wheel into dist/
	@CMAKE_BINARY_DIR= $(VENV)/bin/pip wheel --no-build-isolation --no-deps --wheel-dir dist .

clean: ## Remove what was built, keep .venv
	@rm -rf $(BUILD) dist transport/lib transport/policies transport/_native*.so
