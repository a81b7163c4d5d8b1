# make run        everything from nothing: environment, server, worker; runs RECIPE=quickstart to its table
# make up         environment, server and worker, a deployment per recipe; RUNS=1 at a time
# make down       ends what up and run started
# make env        the environment alone, in .venv: EXTRA=cpu or gpu, as found; PYTHON=/path/to/python3.11
# make clean-env  removes it
# make study      trains STUDY x SEEDS, prints their tables, draws FIGURE; fails unless DEMANDS are met
# make test       all tests but the slow ones, on the real components; TESTS=tests/... for some
# make packages   installs packages of the system that the tests lack, or names them; so does make test
# make test-slow  those that take over ten seconds
# make lint       ruff and pyright; make format changes what ruff can
# make chaos      deals N=12 blows to runs (kills, hangs, full disks, silent buckets); fails if one loses anything
# make bench      runs BENCH=speed (beside TRL and the machine's rates), or another benchmark; fails if a bound is broken
# make screenshots  pictures of the newest runs' pages on the server of make up, in runs/screenshots; SITE=.prefect
# make architectures  takes a small model of each class through the pipeline; writes its page
# make versions   records the code of each stage: under its raised version, or as code of equal results
# make docs       writes the generated pages of docs/reference, and docs/recipe.schema.json
# make site       builds docs as a website with search, in runs/site/html; fails if a link is broken
SYSTEM := $(shell uname -s)-$(shell uname -m)
ifeq ($(filter Linux-x86_64 Linux-aarch64,$(SYSTEM)),)
$(error This project runs on Linux x86_64 and aarch64, and this is $(SYSTEM); use a container, a virtual machine, or WSL 2 on Windows)
endif
ifeq ($(filter oneshell,$(.FEATURES)),)
$(error This Makefile needs GNU make 3.82 or newer, and this is $(MAKE_VERSION); install it, and run it as gmake where it is called that)
endif
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
# Heavy imports take seconds longer in every process if their bytecode is not cached.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help run study packages test test-slow chaos bench screenshots architectures docs site versions lint format env up down clean-env

RECIPE ?= quickstart
OVERRIDES ?= {}
# Limit of concurrent runs on this machine, over all deployments (default: as it is, 1 at first).
RUNS ?=
STUDY ?= $(foreach a,grpo ppo dapo rloo gspo gepo vapo remax,hard-$(a))
SEEDS ?= 0 1 2
DEMANDS ?= --sampled --min-spread 0.15
# Three processes on two cores, as tests wait half of their time; two have a server (tests/conftest.py).
IN_PARALLEL = --numprocesses 3 --dist loadscope --no-loadscope-reorder
FIGURE ?= infra/figures/learning.png
ifndef PYTHON
# Looked for once, where it is needed: each look starts up to four interpreters.
PYTHON = $(eval PYTHON := $$(shell for p in python3.11 python3.12 python3.13 python3; do \
	"$$$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo "$$$$p" && break; done))$(PYTHON)
endif
EXTRA ?= $(if $(shell nvidia-smi --list-gpus 2>/dev/null),gpu,cpu)
BIN := .venv/bin
STAMP := .venv/.installed-$(EXTRA)
comma := ,

help:
	@sed -n 's/^# make/make/p' Makefile
	echo
	echo "Then, in this folder: .venv/bin/rl-pipeline --help"

run: $(STAMP)
	@exec $(BIN)/python -m flows.local --recipe '$(RECIPE)' --overrides '$(OVERRIDES)' $(addprefix --runs ,$(RUNS))

# Continues an earlier study that was stopped.
study: $(STAMP)
	@exec $(BIN)/rl-pipeline study $(STUDY) --seeds $(SEEDS) $(DEMANDS) --png $(FIGURE)

up: $(STAMP)
	@exec $(BIN)/rl-pipeline up $(addprefix --runs ,$(RUNS))

down: $(STAMP)
	@exec $(BIN)/rl-pipeline down

packages:
	@exec infra/packages.sh

test: packages $(STAMP)
	@exec $(BIN)/python -m pytest -m 'not slow' $(IN_PARALLEL) $(TESTS)

# With the extra real, which brings a real model.
test-slow:
	@infra/packages.sh --slow
	$(MAKE) --no-print-directory env EXTRA=$(EXTRA),real
	exec $(BIN)/python -m pytest -m slow $(IN_PARALLEL) $(TESTS)

N ?= 12
chaos: $(STAMP)
	@exec $(BIN)/python -m tests.chaos --blows $(N) $(CHAOS)

BENCH ?= speed
bench: $(STAMP)
	@exec $(BIN)/python -m tests.bench $(BENCH)

SITE ?= .prefect
screenshots: $(STAMP)
	@exec $(BIN)/python -m tests.screenshots --home $(SITE)

architectures: $(STAMP)
	@exec $(BIN)/python -m tests.architectures --write

docs: $(STAMP)
	@exec $(BIN)/python -m tests.reference_pages

# With the extra site, which brings the builder. It takes pages and configuration from one folder.
site:
	@$(MAKE) --no-print-directory env EXTRA=$(EXTRA),site
	rm -rf runs/site
	mkdir -p runs/site
	cp -r docs infra/site.toml runs/site
	$(BIN)/zensical build --strict --config-file runs/site/site.toml
	echo "Open runs/site/html/index.html"

versions: $(STAMP)
	@exec $(BIN)/python -m rlcore.store.versions

lint: $(STAMP)
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

env: $(STAMP)

# uv resolves and unpacks in parallel. Wheels found through pip's own settings (environment or
# pip.conf) are offered to it as well: the CPU build of torch often comes that way. What the first
# start waits for, Prefect, is compiled here on all cores.
$(STAMP): pyproject.toml infra/constraints.txt infra/overrides.txt
	@if [ -z "$(PYTHON)" ]; then echo "make: no Python 3.11-3.13 on the PATH; install one or run make PYTHON=/path/to/python3.11" >&2; exit 1; fi
	echo "Setting up .venv ($(EXTRA)) with $$($(PYTHON) --version); the first time takes a minute or two."
	if [ ! -x $(BIN)/uv ]; then
		uv=(--quiet --quiet --disable-pip-version-check install --constraint infra/constraints.txt uv)
		[ -x $(BIN)/python ] || $(PYTHON) -m venv --without-pip .venv
		# A pip that is there saves the seconds in which venv installs one.
		$(PYTHON) -m pip --python $(BIN)/python "$${uv[@]}" 2>/dev/null || {
			$(PYTHON) -m venv .venv
			$(BIN)/python -m pip "$${uv[@]}"
		}
	fi
	configured() { "$$1" -m pip config get global.find-links 2>/dev/null; }
	links="$${UV_FIND_LINKS:-$${PIP_FIND_LINKS:-$$(configured $(PYTHON) || configured $(BIN)/python || true)}}"
	export UV_FIND_LINKS="$$(echo $$links | tr ' ' ',')" VIRTUAL_ENV="$$PWD/.venv"
	install() {
		$(BIN)/uv pip install --quiet --constraint infra/constraints.txt --overrides infra/overrides.txt "$$@"
	}
	install --compile-bytecode prefect
	install --editable '.[$(EXTRA),dev]' pip
	rm -f .venv/.installed-*
	touch $@ .venv/.installed-$(firstword $(subst $(comma), ,$(EXTRA)))

clean-env:
	@rm -rf .venv
