# Runs set-up, build and tests; `make help` lists the targets. Compiler flags and source files are
# in CMakeLists.txt and pyproject.toml.

VENV ?= .venv
BUILD ?= build
JOBS ?= 2
PY := $(VENV)/bin/python
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CMAKE_BINARY_DIR := $(abspath $(BUILD))/release
# Only here: users may have a compiler with other warnings.
export CMAKE_ARGS := -DWEFT_WERROR=ON

PYTHON_SOURCES = $(wildcard transport congestion bench examples tests setup.py)
NATIVE_SOURCES = $(shell find native bench tests -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

.DEFAULT_GOAL := help
.PHONY: help setup build run test lint format test-walls test-native test-python \
        test-computing test-network test-alone test-only test-long test-beside weft-tests bench-native \
        test-sanitized test-native-asan test-native-tsan test-rdma test-rdma-smoke test-roots test-aarch64 conformance golden swarm schedules fuzz scale docs tidy wheel sdist clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

# The stamps avoid running the set-up again unless its requirements change. `make run` leaves out the compiler for older
# systems; what only developers need is as large as all the rest.
BUILDS := build run wheel sdist bench-native
READY = $(VENV)/.ready$(if $(filter-out run,$(MAKECMDGOALS)),$(if $(filter-out $(BUILDS),$(MAKECMDGOALS)),-dev,-build))

$(VENV)/.ready: pyproject.toml .ci/setup
	@.ci/setup $(VENV) here
	@touch $@

$(VENV)/.ready-build: pyproject.toml .ci/setup
	@.ci/setup $(VENV)
	@touch $(VENV)/.ready $@

$(VENV)/.ready-dev: pyproject.toml .ci/setup
	@.ci/setup $(VENV) dev
	@touch $(VENV)/.ready $(VENV)/.ready-build $@

setup: $(VENV)/.ready-dev ## Create .venv with everything that tests and lint need (1.5 GB)

$(VENV)/bin/weft: $(READY) setup.py
	@$(VENV)/bin/pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

build: $(VENV)/bin/weft ## Build the extension, the plugin and the shipped policies in place (3 minutes)
	@$(PY) setup.py --quiet build_ext --inplace
	@cd / && $(abspath $(PY)) -c 'import transport; raise SystemExit(transport.__file__ != "$(CURDIR)/transport/__init__.py")' || \
	  { echo "$(VENV) has a weft that is not this checkout: installing this one again"; \
	    $(abspath $(VENV))/bin/pip install --quiet --no-build-isolation --no-deps --editable $(CURDIR); }

run: build ## For everybody: send data over eight lossy paths and print a table (2.5 minutes, 0.7 GB)
	@$(PY) -m examples.first_run

test: ## For each change: import rules, lint, build, the main tests of each room (10 minutes after the build)
	@$(MAKE) --no-print-directory test-walls
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint build
	@$(MAKE) --no-print-directory test-only
	@echo "make test: all passed"

test-only: test-native test-python ## Run the tests of `make test`, without import rules and lint

test-long: ## Before a merge: all tests that `make test` leaves out, clang-tidy, RDMA in a guest (6 minutes)
	@$(MAKE) --no-print-directory LENGTH=long test-python
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target tidy test-rdma-smoke
	@echo "make test-long: all passed"

test-beside: weft-tests ## For changes of tests: the tests of `make test` beside busy loops and random pauses (SEED=N)
	@$(PY) -m tests.beside $(if $(SEED),--seed $(SEED)) -- $(MAKE) --no-print-directory test-only

test-walls: ## Check imports, includes, file sizes and first lines, without an installation
	@python3 tests/test_walls.py

lint: $(READY) ## Check with ruff, mypy and clang-format, without changing files, and commit messages
	@$(PY) tests/test_history.py
	@$(VENV)/bin/ruff check $(PYTHON_SOURCES)
	@$(VENV)/bin/ruff format --check $(PYTHON_SOURCES)
	@$(VENV)/bin/mypy $(PYTHON_SOURCES)
	@$(VENV)/bin/clang-format --dry-run --Werror $(NATIVE_SOURCES)

format: $(READY) ## Format the sources with ruff and clang-format
	@$(VENV)/bin/ruff check --fix $(PYTHON_SOURCES)
	@$(VENV)/bin/ruff format $(PYTHON_SOURCES)
	@$(VENV)/bin/clang-format -i $(NATIVE_SOURCES)

# The sources are compiled several at a time (CMakeLists.txt), and checked so.
tidy: build ## Run clang-tidy on all native sources but those of the tests
	@grep -oE '"file": "[^"]*"' $(BUILD)/release/compile_commands.json | cut -d'"' -f4 | \
	  awk '!/cmake_pch/ && (!/\/tests\// || /\/tests\/(softverbs\/native|native\/(rig|verbs|bind))\//)' | sort -u | \
	  xargs -P $(JOBS) -n 1 $(VENV)/bin/clang-tidy --quiet -p $(BUILD)/release

test-native: weft-tests ## Run native tests, and build the host program of the plugin tests
	@$(VENV)/bin/ctest --test-dir $(BUILD)/release --output-on-failure --parallel $(JOBS)

# Tests in virtual time or of files.
COMPUTING := tests/policies tests/compiler tests/replay tests/conformance tests/golden tests/core tests/ground tests/sim tests/swarm \
  tests/trace tests/diagnose tests/estimate tests/fuzz

# Tests that look at the whole machine, such as at all labs: never two at once. They mostly wait, and `test` runs those
# in virtual time beside them.
ALONE := tests/lab tests/plan tests/processes tests/benches tests/live

# Which tests run: those marked `long`, or all others.
LENGTH := not long
PYTEST = $(PY) -m pytest --build-tree $(BUILD)/release -m "$(LENGTH)"

test-python: weft-tests ## Run pytest
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-computing test-alone
	@$(MAKE) --no-print-directory test-network

bench-native: build ## Build the native loops of `python -m bench` core, gpu, trace_events and verbs (1 minute)
	@$(VENV)/bin/cmake --build $(BUILD)/release --parallel $(JOBS) --target weft_bench_extension

weft-tests: build
	@$(VENV)/bin/cmake --build $(BUILD)/release --parallel $(JOBS) --target weft_tests

test-computing: weft-tests ## Run the tests in virtual time and those of files
	@$(PYTEST) --numprocesses $(JOBS) $(COMPUTING)

test-network: weft-tests ## Run the tests of the network that can share the machine
	@$(PYTEST) --numprocesses $(JOBS) --dist loadfile tests $(COMPUTING:%=--ignore=%) $(ALONE:%=--ignore=%) --ignore=tests/roots

test-alone: weft-tests ## Run the tests that look at the whole machine
	@$(PYTEST) $(ALONE)

# Not part of `test`, because it takes as long as all of it: to be run after each change of native code.
test-sanitized: ## Run native tests under the address, undefined-behaviour and thread sanitizers (20 minutes)
	@$(MAKE) --no-print-directory test-native-asan
	@$(MAKE) --no-print-directory test-native-tsan

test-native-asan: SANITIZE := address
test-native-asan: $(READY) ## Run native tests under the address and undefined-behaviour sanitizers
	@$(sanitized)

test-native-tsan: SANITIZE := thread
test-native-tsan: $(READY) ## Run native tests under the thread sanitizer
	@$(sanitized)

define sanitized
set -e; \
$(VENV)/bin/cmake -S . -B $(BUILD)/$(SANITIZE) -GNinja -DWEFT_SANITIZE=$(SANITIZE) $(CMAKE_ARGS) \
  $(if $(wildcard $(BUILD)/release/policies/.stamp),-DWEFT_BUILT_POLICIES=$(abspath $(BUILD))/release/policies) \
  -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja -DPython_EXECUTABLE=$(abspath $(PY)) >/dev/null; \
$(VENV)/bin/cmake --build $(BUILD)/$(SANITIZE) --parallel $(JOBS) --target weft_tests -- --quiet; \
$(VENV)/bin/ctest --test-dir $(BUILD)/$(SANITIZE) --output-on-failure --parallel $(JOBS)
endef

GUEST := $(PY) -m tests.rdma.guest

test-rdma: build ## Test RDMA over Soft-RoCE in a QEMU guest (RDMA_LONG=1: also 10^4 messages a case, hours)
	@$(VENV)/bin/cmake --build $(BUILD)/release --parallel $(JOBS) --target weft_tests
	@$(GUEST) deps
	@$(GUEST) run --timeout $(if $(RDMA_LONG),36000,3600) -- $(PY) -m pytest -s -p no:cacheprovider tests/rdma

test-rdma-smoke: build ## Run the two-minute part of test-rdma, or skip it with the reason if there is no guest
	@if $(GUEST) deps; then \
	  $(GUEST) run --timeout 600 -- $(PY) -m pytest -p no:cacheprovider tests/rdma/test_smoke.py; \
	else \
	  echo "RDMA tests skipped: see the line above for what this host lacks"; \
	fi

test-roots: wheel sdist ## Test the plugin and the wheels in root file systems of Debian 11, 12 and 13 (root, some minutes)
	@$(PY) -m pytest -p no:cacheprovider tests/roots

test-aarch64: $(READY) ## Cross-compile for aarch64 and run the native tests under qemu-user (half an hour)
	@$(PY) -m tests.aarch64

golden: build ## Rewrite the golden tables, traces and plots; commit a difference with its reason
	@$(PY) -m tests.golden.rewrite

conformance: build ## Run the whole suite on every registered policy, a million events each
	@CONFORMANCE=full $(PY) -m pytest --build-tree $(BUILD)/release tests/conformance

swarm: build ## Find planted mistakes, then run 10,000 random simulator scenarios (some minutes)
	@SWARM=full $(PY) -m pytest --build-tree $(BUILD)/release tests/swarm/test_defects.py
	@$(PY) -m tests.swarm --seeds 1-10000 --jobs $(JOBS) --out $(BUILD)/swarm-findings

schedules: build ## Run a thousand random process schedules, and find planted mistakes (root, an hour)
	@$(VENV)/bin/cmake --build $(BUILD)/release --parallel $(JOBS) --target weft_tests
	@SCHEDULES=full $(PY) -m pytest --build-tree $(BUILD)/release tests/schedules/test_defects.py
	@PROCESS_SCHEDULES=1000 $(PY) -m pytest --build-tree $(BUILD)/release tests/processes

FUZZ_JUDGE := tests/fuzz/test_summaries.py::test_summary__that_is_accepted_costs_at_most_its_host
# Inputs of each native target (ten of them) and of each Python target.
FUZZ_NATIVE ?= 10000000
FUZZ_PYTHON ?= 200000

fuzz: build ## Fuzz everything that reads bytes from outside, native and Python (an hour)
	@$(VENV)/bin/cmake --build $(BUILD)/release --parallel $(JOBS) --target weft_fuzz test_handshakes
	@for target in $(sort $(notdir $(basename $(shell find tests/native -name 'fuzz_*.cc')))); do \
	  echo $$target; WEFT_FUZZ_EXECUTIONS=$(FUZZ_NATIVE) $(BUILD)/release/$$target || exit 1; \
	done
	@WEFT_FUZZ_EXECUTIONS=$(FUZZ_PYTHON) $(PY) -m pytest --build-tree $(BUILD)/release tests/fuzz --deselect $(FUZZ_JUDGE)
	@WEFT_FUZZ_EXECUTIONS=500 $(PY) -m pytest --build-tree $(BUILD)/release $(FUZZ_JUDGE)
	@WEFT_HANDSHAKES=1000000 $(BUILD)/release/test_handshakes
	@WEFT_FUZZ_TRACES=10000 WEFT_FUZZ_READER=1000000 WEFT_FUZZ_COMMANDS=10000 \
	  $(PY) -m pytest tests/trace -k "damage or other_versions"

scale: build ## Compare matrices of 256 and 1,024 simulated ranks with arithmetic (some minutes)
	@SIM_RANKS="256 1024" $(PY) -m pytest tests/trace/test_sim_trace.py -k "arithmetic or more_ranks"

docs: build ## Regenerate the documentation and the stub made from tables
	@mkdir -p docs
	@$(VENV)/bin/weft knobs --markdown > docs/KNOBS.md
	@$(VENV)/bin/weft counters --markdown > docs/COUNTERS.md
	@$(VENV)/bin/weft counters --stub > transport/_native_counters.pyi

# The interpreters that wheels are built for, as far as they run; PYTHONS='/opt/py/bin/python3.12' names others.
PYTHONS ?= python3.11 python3.12 python3.13

wheel: $(READY) ## Build a wheel into dist/ for each Python of 3.11 to 3.13 that is installed, and check them
	@set -e; for python in $(PYTHONS); do \
	  $$python -c "" 2>/dev/null || { echo "no wheel for $$python: it is not installed"; continue; }; \
	  place=$(abspath $(BUILD))/wheel-$$(basename $$python); \
	  [ -x $$place/venv/bin/python ] || $$python -m venv $$place/venv; \
	  .ci/setup $$place/venv; \
	  CMAKE_BINARY_DIR=$$place/tree $$place/venv/bin/pip --quiet wheel --no-build-isolation --no-deps --wheel-dir dist .; \
	  $(PY) -m tests.wheel "$$(ls -t dist/weft-*.whl | head -1)"; \
	done

sdist: $(READY) ## Build the source distribution into dist/
	@$(PY) setup.py --quiet sdist
	@ls -t dist/weft-*.tar.gz | head -1

clean: ## Remove all build outputs, but not .venv
	@rm -rf $(BUILD) dist transport/lib transport/policies/*.so transport/_native*.so
