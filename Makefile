# Everything that one does here, from a bare clone. `make help` lists it; CONTRIBUTING.md says more.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMPS := $(VENV)/stamps
BIN := build-support/bin
CHECKS := build-support/checks
# The tools of a release, of the documentation site and of the manifests have environments of their own: no other target needs them.
RELEASE := build/release
DOCS := build/docs
INFRA := build/infra
# Compilers and tests share the machine with whatever else runs on it.
JOBS ?= 2
export CARGO_BUILD_JOBS := $(JOBS)

DISTRIBUTIONS := $(sort $(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml services/*/pyproject.toml)))
NATIVE := crates/ringcast-core-py
# In a directory of its own: cargo lets one build after another into a directory, and those of tests and clippy take long.
MATURIN := CARGO_TARGET_DIR=$(CURDIR)/target/make PATH=$(CURDIR)/$(VENV)/bin:$$PATH maturin
RUST_SOURCES := Cargo.toml $(wildcard Cargo.lock) $(shell find crates -name '*.rs' -o -name '*.toml')

.PHONY: help
help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- Set-up: stamp files say what is done, so that a second run takes no time.

.PHONY: setup
setup: $(STAMPS)/lock $(STAMPS)/native $(STAMPS)/distributions ## Make .venv with everything in it, the native core built
	@$(BIN)/check-tools

$(STAMPS)/lock: build-support/locks/default.txt
	@$(BIN)/check-tools
	@echo "setup: installing $<"
	@$(BIN)/install-lock $(VENV)
	@mkdir -p $(@D) && touch $@

$(STAMPS)/native: $(STAMPS)/lock $(RUST_SOURCES)
	@echo "setup: building the native core"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(MATURIN) develop --quiet --release --locked --uv -m $(NATIVE)/Cargo.toml
	@touch $@

$(STAMPS)/distributions: $(STAMPS)/lock $(addsuffix /pyproject.toml,$(DISTRIBUTIONS))
	@echo "setup: installing our distributions, editable"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/uv pip install --quiet --offline --no-deps --no-build-isolation \
	  $(addprefix -e ,$(DISTRIBUTIONS))
	@touch $@

# --- What one runs every day.

.PHONY: test
test: setup ## Run every test, Rust included: under Pants, or with plain pytest where Pants can't run
	@$(BIN)/run-tests

.PHONY: pytest
pytest: setup ## Run the same tests with plain pytest in .venv
	@$(PYTHON) -m pytest

.PHONY: sdks
sdks: setup ## Run Dapr's SDKs for Go and JavaScript, from their registries, against the agent
	@$(PYTHON) -m pytest -q tests/sdks

.PHONY: lint
lint: setup ## Format, types, clippy, stubs, generated code, structure: everything that is checked without running it
	@echo "lint: ruff" && $(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check --quiet .
	@echo "lint: mypy" && $(BIN)/typecheck
	@echo "lint: stubtest" && $(VENV)/bin/stubtest --mypy-config-file pyproject.toml ringcast_core._native
	@echo "lint: rustfmt" && cargo fmt --all --check
	@echo "lint: clippy" && cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
	@echo "lint: generated code" && $(PYTHON) $(BIN)/generate-protos --check
	@echo "lint: CockroachDB's grammar" && $(PYTHON) $(CHECKS)/cockroach_grammar.py
	@echo "lint: structure" && $(PYTHON) $(CHECKS)/structure.py && $(PYTHON) $(CHECKS)/tree.py
	@$(PYTHON) $(CHECKS)/pants_refuses.py

.PHONY: docs
docs: setup $(DOCS)/stamp ## Build the documentation site into build/site; a warning or a link that leads nowhere fails
	@# Not --quiet, which hides the warnings from --strict too.
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --clean --config-file build-support/docs/mkdocs.yml
	@echo "docs: build/site has $$(find build/site -name '*.html' | wc -l) pages"

.PHONY: manifests
manifests: $(INFRA)/stamp ## Hold manifests, Helm chart and dashboards against the schemas of Kubernetes and Grafana
	@$(INFRA)/bin/python $(CHECKS)/manifests.py
	@$(INFRA)/bin/python $(CHECKS)/dashboards.py

.PHONY: format
format: setup ## Format Python and Rust, and mend what ruff can
	@$(VENV)/bin/ruff check --fix . && $(VENV)/bin/ruff format . && cargo fmt --all

.PHONY: demo
demo: setup ## Show the main job on this machine: a list shared out, changes, a worker killed and replaced
	@$(PYTHON) -m demo

.PHONY: demo-release
demo-release: setup ## Show releases: a bad list is refused, a worse one undone by itself, a good one proven
	@$(PYTHON) -m demo.release

.PHONY: first-hour
FIRST_HOUR ?=
first-hour: setup ## Type docs/tutorial.md on a bare Debian that it makes for that (root and debootstrap; FIRST_HOUR="--help")
	@$(PYTHON) -m tests.integration.first_hour $(FIRST_HOUR)

.PHONY: demo-spark
demo-spark: setup ## Bring half a million real IP ranges into a store by Spark, change 1 %, and stream the changes out
	@$(PYTHON) -m demo.spark

# A release that build-support/releases.txt names; by default the last one.
FROM ?= $(lastword $(shell awk '/^[0-9]/ { print $$1 }' build-support/releases.txt))

.PHONY: demo-upgrade
demo-upgrade: setup ## Replace each process of a system under load by this tree's and back, without a failed call (FROM=0.1.0)
	@$(BIN)/build-release $(FROM) build/releases/$(FROM)
	@$(PYTHON) -W ignore -m tests.integration.rolling build/releases/$(FROM) --name $(FROM)

.PHONY: bench
bench: setup ## Measure single operations, each against a peer in the same run, and report
	@mkdir -p build/bench
	@$(PYTHON) -m pytest benchmarks/micro --benchmark-enable --benchmark-only --benchmark-group-by=group \
	  --benchmark-columns=min,median,ops,rounds --benchmark-json=build/bench/bench.json
	@$(PYTHON) benchmarks/ratios.py build/bench/bench.json
	@$(PYTHON) -m benchmarks.envelope.report

.PHONY: envelope
ENVELOPE ?=
envelope: setup ## Walk the operating envelope with real servers, and report (ENVELOPE="--only latency --quick", "--help")
	@$(PYTHON) -m benchmarks.envelope $(ENVELOPE)

.PHONY: bench-compare
bench-compare: setup ## Compare two runs of make envelope as ratios with their noise (A=directory B=directory)
	@$(PYTHON) -m benchmarks.envelope.compare $(A) $(B)

CHAOS ?=

.PHONY: simulate
SEEDS ?= 10000
simulate: setup ## Run SEEDS=10000 seeds of the simulation, from FIRST=0; SEED=n: that one with its trace; STICKY=1: of exclusive ownership; EXCLUSIVE=1: of the same with real workers; MIGRATION=1: of stores that migrate to it; GROUPS=1: of groups that hosts share; RELEASES=1: of releases
	@$(PYTHON) -m tests.simulation $(if $(STICKY),--sticky) $(if $(EXCLUSIVE),--exclusive) $(if $(MIGRATION),--migration) $(if $(GROUPS),--groups) $(if $(RELEASES),--releases) $(if $(SEED),--seed $(SEED) --trace,--seeds $(SEEDS) --first $(or $(FIRST),0))

.PHONY: chaos
chaos: setup ## Do many real faults to a system under load and judge it (CHAOS="--faults 64 --seed 1 --kinds …")
	@$(PYTHON) -W ignore -m tests.integration.faults $(CHAOS)

DRILLS ?=

.PHONY: drills
drills: setup ## Cause every shipped alert by a real fault, with a real Prometheus (DRILLS="--only RingcastWorkerDown", "--list")
	@$(PYTHON) -W ignore -m tests.integration.drills $(DRILLS)

# --- What ships, and what is generated.

.PHONY: wheels
wheels: setup ## Build a wheel of every distribution into dist/
	@rm -f dist/*.whl && mkdir -p dist
	@$(MATURIN) build --quiet --release --locked --strip -m $(NATIVE)/Cargo.toml -o dist
	@for directory in $(DISTRIBUTIONS); do \
	  (cd $$directory && $(CURDIR)/$(VENV)/bin/hatchling build -t wheel -d $(CURDIR)/dist); \
	done
	@ls dist/*.whl

.PHONY: check-install
check-install: wheels ## Install every wheel alone into an empty environment, and import it
	@$(PYTHON) $(CHECKS)/install_alone.py dist

.PHONY: sdists
sdists: setup ## Build a source distribution of every distribution into dist/
	@rm -f dist/*.tar.gz && mkdir -p dist
	@$(MATURIN) sdist -m $(NATIVE)/Cargo.toml -o dist
	@for directory in $(DISTRIBUTIONS); do \
	  (cd $$directory && $(CURDIR)/$(VENV)/bin/hatchling build -t sdist -d $(CURDIR)/dist); \
	done
	@ls dist/*.tar.gz

# Rust's target, and what the wheel is tagged with.
CROSS ?= x86_64-unknown-linux-gnu:manylinux_2_28 aarch64-unknown-linux-gnu:manylinux_2_28 \
  x86_64-unknown-linux-musl:musllinux_1_2 aarch64-unknown-linux-musl:musllinux_1_2

.PHONY: cross-wheels
cross-wheels: setup $(RELEASE)/stamp ## Build the core for Linux, x86_64 and aarch64, glibc 2.28 and musl (CROSS="target:tag …")
	@rm -f dist/ringcast_core-*.whl && mkdir -p dist
	@for pair in $(CROSS); do \
	  echo "cross-wheels: $$pair"; \
	  CARGO_TARGET_DIR=$(CURDIR)/target/cross PATH=$(CURDIR)/$(RELEASE)/bin:$$PATH $(CURDIR)/$(VENV)/bin/maturin build --quiet \
	    --release --locked --strip --zig --target $${pair%%:*} --compatibility $${pair##*:} -m $(NATIVE)/Cargo.toml -o dist; \
	done
	@ls dist/ringcast_core-*.whl

.PHONY: release-check
release-check: wheels sdists $(RELEASE)/stamp ## Check what a release would upload, and leave SBOMs in dist/sbom (TAG=ringcast-wire-0.1.0)
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH $(PYTHON) $(CHECKS)/release.py dist --tools $(RELEASE)/bin $(if $(TAG),--tag $(TAG))

$(RELEASE)/stamp $(DOCS)/stamp $(INFRA)/stamp: build/%/stamp: build-support/locks/%.txt $(STAMPS)/lock
	@$(BIN)/install-tools $(CURDIR)/$(@D) $<
	@touch $@

.PHONY: lock
lock: setup ## Resolve build-support/*.in into the hash-pinned locks
	@$(BIN)/lock

.PHONY: proto
proto: setup ## Generate the protobuf modules beside their .proto files
	@$(PYTHON) $(BIN)/generate-protos

.PHONY: clean
clean: ## Remove what was built here; the caches of Pants and uv in the home directory stay
	@rm -rf $(VENV) build dist target .pants.d .pids .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	@find crates packages services tests benchmarks demo -name __pycache__ -prune -exec rm -rf {} +
	@find crates -name '*.so' -delete
