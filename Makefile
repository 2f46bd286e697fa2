VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
ENGINES ?= .
export ENGINES := $(abspath $(ENGINES))
# Engines' environments are installed without bytecode: what a first start compiles, every later one has to find.
unexport PYTHONDONTWRITEBYTECODE
REAL := $(patsubst tests/engines/%.txt,%,$(wildcard tests/engines/*.txt))
INSTALLED := $(VENV)/.installed
OTHER ?= .venv-python
PORT ?= 8000
WORKERS := --maxprocesses 8
QUIETLY := --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup editor prometheus registry s3 browser btrfs engines $(REAL) demo check format docs docs-serve test test-thorough test-all test-fast test-python openai-fuzz soak test-gpu gpu upstream bench plugins-trt clean

help: ## Show this help.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Fill .venv with trtspec and everything it is developed with.

# The second installation is of Triton's server for Python 3.13, and nothing elsewhere: see `triton` in pyproject.toml.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -I trtspec/core/interpreter.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(QUIETLY) -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install $(QUIETLY) -c constraints.txt --no-deps nvidia-pytriton
	$(BIN)/python -c "from trtspec.kernels.host_kernels import compile_host_library as compile; compile() or print('no compiler here: conversions use numpy')"
	@touch $@

editor: setup ## Install what tests take from npm, where it is (outside this directory): a language server, axe-core, Sigstore's client.
	@$(BIN)/python -m tests._support.npm tests/editor tests/report/axe tests/store/signatures/javascript

prometheus: $(ENGINES)/.prometheus/usr/bin/promtool ## Unpack Debian's Prometheus for its tests, where apt-get is (ENGINES= says where).

# Unpacked and not installed: it needs no root, and starts no service.
$(ENGINES)/.prometheus/usr/bin/promtool:
	@mkdir -p $(ENGINES)/.prometheus && cd $(ENGINES)/.prometheus && apt-get download -q prometheus && \
	    dpkg -x prometheus_*.deb . && rm prometheus_*.deb && touch usr/bin/promtool || \
	    echo "no Debian package of prometheus: tests that ask it will be skipped"

registry: $(ENGINES)/.registry/usr/bin/skopeo ## Unpack Debian's docker-registry and skopeo for their tests, where apt-get is (ENGINES= says where).

# With the libraries of skopeo that are not installed.
$(ENGINES)/.registry/usr/bin/skopeo:
	@mkdir -p $(ENGINES)/.registry && cd $(ENGINES)/.registry && \
	    packages=$$(apt-get install -s --no-install-recommends docker-registry skopeo | awk '$$1 == "Inst" {print $$2}') && \
	    [ -n "$$packages" ] && apt-get download -q $$packages && \
	    find . -maxdepth 1 -name '*.deb' -exec dpkg -x {} . \; -delete && touch usr/bin/skopeo || \
	    echo "no Debian packages of docker-registry and skopeo: tests use the installed ones, or are skipped"

s3: $(ENGINES)/.s3/.installed ## Install real S3 servers for their tests, in an environment of their own (ENGINES= says where).

# The list is whole, so nothing is resolved.
$(ENGINES)/.s3/.installed: tests/store/registries/s3.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install $(QUIETLY) --no-deps -r $< && touch $@ || \
	    echo "no S3 servers for this Python: their tests will be skipped"

browser: $(ENGINES)/.browser/usr/lib/chromium/chromium ## Unpack Debian's Chromium for its tests, where apt-get is (ENGINES= says where).

# With those of its libraries that are not installed.
$(ENGINES)/.browser/usr/lib/chromium/chromium:
	@mkdir -p $(ENGINES)/.browser && cd $(ENGINES)/.browser && \
	    packages=$$(apt-get install -s --no-install-recommends chromium | awk '$$1 == "Inst" {print $$2}') && \
	    [ -n "$$packages" ] && apt-get download -q $$packages && \
	    find . -maxdepth 1 -name '*.deb' -exec dpkg -x {} . \; -delete && touch usr/lib/chromium/chromium || \
	    echo "no Debian package of chromium to unpack: tests ask the one that is installed, or are skipped"

btrfs: $(ENGINES)/.btrfs/sbin/mkfs.btrfs ## Unpack Debian's mkfs.btrfs for its test, where apt-get is (ENGINES= says where).

$(ENGINES)/.btrfs/sbin/mkfs.btrfs:
	@mkdir -p $(ENGINES)/.btrfs && cd $(ENGINES)/.btrfs && apt-get download -q btrfs-progs && \
	    dpkg -x btrfs-progs_*.deb . && rm btrfs-progs_*.deb && touch sbin/mkfs.btrfs || \
	    echo "no Debian package of btrfs-progs: the test of shared blocks will be skipped"

engines: $(REAL) ## Install the real engines that tests run, each in an environment of its own (ENGINES= says where).

# Each list is whole, so nothing is resolved: what an engine asks for and does not need here stays out. What NAME.source
# lists is compiled in the environment, with what that holds.
$(REAL): %: $(ENGINES)/.venv-%/.installed

$(ENGINES)/.venv-%/.installed: tests/engines/%.txt $(wildcard tests/engines/*.source)
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install $(QUIETLY) --no-compile --no-deps -r $<
	[ ! -e $(<:.txt=.source) ] || CMAKE_ARGS=-DPython_EXECUTABLE=$(@D)/bin/python \
	    $(@D)/bin/python -m pip install $(QUIETLY) --no-compile --no-deps --no-build-isolation -r $(<:.txt=.source)
	@touch $@

demo: setup ## Build, verify and serve the quickstart, and measure it on the running server.
	$(BIN)/trtspec build recipes/quickstart.yaml
	$(BIN)/trtspec verify build/quickstart
	@$(BIN)/trtspec stop quickstart >/dev/null 2>&1 || true
	$(BIN)/trtspec deploy build/quickstart --detach
	$(BIN)/trtspec bench quickstart --runs 1

check: setup ## Check format, style and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## Format the sources and mend what can be mended.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Zensical, which builds the pages, needs Python 3.11.
docs: setup ## Build the documentation site in build/site, and check all its links.
	$(BIN)/python -m docs.site

docs-serve: docs ## Show the documentation site at http://127.0.0.1:8000 (PORT= another port).
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site $(PORT)

# On all cores and in one process more: some tests wait for servers.
test: setup ## Run the tests that need no GPU, without those that only test-all runs.
	$(BIN)/pytest -n auto $(WORKERS) -m "not thorough"

test-thorough: editor
	$(BIN)/pytest -n auto $(WORKERS) -m thorough

test-all: test test-thorough ## Run all tests that need no GPU: also real engines, a browser, and exhaustive variants.

test-fast: setup ## Run those that take no time: without servers, whole builds and what is marked slow.
	$(BIN)/pytest -n logical $(WORKERS) -m "not (slow or triton or integration or gpu)" --durations 10 --durations-min 2

# One worker, so that it has a network of its own; the other files would only be imported.
test-python: ## Run the tests that each supported Python must pass, on one: make test-python PYTHON=python3.12
	@$(PYTHON) -I trtspec/core/interpreter.py
	$(PYTHON) -m venv --clear $(OTHER)
	$(OTHER)/bin/python -m pip install $(QUIETLY) --no-compile -c constraints.txt -e '.[test]'
	$(OTHER)/bin/python -m pip install $(QUIETLY) --no-compile -c constraints.txt --no-deps nvidia-pytriton
	$(OTHER)/bin/pytest -n 1 -m every_python $$(grep -rl --include='*.py' mark.every_python tests)

openai-fuzz: setup ## Send 5,000 malformed requests to the OpenAI-compatible entry before a real server.
	TRTSPEC_FUZZ_EXAMPLES=840 $(BIN)/pytest tests/serving/gateway/test_fuzz.py --timeout 3600 --basetemp build/openai-fuzz

soak: setup ## Serve for long: 64 streams for 10 minutes, and what is left of 200 faults of a draft and 1,000 rollouts.
	$(BIN)/python -m benchmarks.soak --resume --out benchmarks/results

test-gpu: setup ## Run the tests that need a CUDA device.
	$(BIN)/pytest -m gpu

gpu: ## Run what waits for a GPU, with the machine's own Python (PARTS= WHEELS= OUT= ARCH=, see docs/gpu.md).
	PYTHON=$(PYTHON) benchmarks/gpu/run.sh $(if $(PARTS),--parts $(PARTS)) $(if $(WHEELS),--wheels $(WHEELS)) \
	    $(if $(OUT),--out $(OUT)) $(if $(ARCH),--arch $(ARCH))

upstream: setup ## Compare the engines' newest wheels with the version data (UPSTREAM="vllm --write", see docs/extending.md).
	$(BIN)/python -m benchmarks.upstream $(UPSTREAM)

bench: setup ## Measure the claims again: the quickstart, all methods, other engines, and a conversion of 8 GB (75 GB of disk).
	$(BIN)/python benchmarks/quickstart.py --out benchmarks/results/quickstart.json
	$(BIN)/python benchmarks/methods.py --out benchmarks/results/methods.json
	[ ! -d $(ENGINES)/.venv-vllm ] || TRTSPEC_VLLM=$(ENGINES)/.venv-vllm $(BIN)/python benchmarks/engines.py \
	    --out benchmarks/results/engines.json
	$(BIN)/python benchmarks/convert.py --out benchmarks/results/convert.json

plugins-trt: ## Build TensorRT's plugin library (TENSORRT_ROOT=... has include/NvInferRuntime.h).
	cmake -S plugins -B build/plugins -DTENSORRT_ROOT=$(TENSORRT_ROOT)
	cmake --build build/plugins --target trtspec_tensorrt

clean: ## Remove the environment, artifacts and caches in this directory.
	rm -rf $(VENV) $(addprefix $(ENGINES)/.venv-,$(REAL)) $(ENGINES)/.prometheus $(ENGINES)/.registry $(ENGINES)/.s3 $(ENGINES)/.browser $(OTHER) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
