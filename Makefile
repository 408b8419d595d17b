# `make train` and `make test` need nothing but python3 and make; both install what is pinned into .venv, once.
PYTHON := python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet

.PHONY: train watch test check test-oldest test-newest test-scripts test-details test-changes test-site test-gpu \
	test-slurm test-docker test-environments results gallery docs lock clean

train: .venv/train
	$(BIN)/python cleanrl/ppo.py --env-id CartPole-v1

# An agent that is trained already; the video is benchmark/agents/cartpole/evaluation.mp4
watch: .venv/train
	$(BIN)/python cleanrl/ppo.py --evaluate benchmark/agents/cartpole --capture-video --episodes 3

test: .venv/test
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# For the loop of a change: lint, types, the agreement of the copies, and the quick tests
check: .venv/test
	$(BIN)/python -m mypy
	$(call CHECKS,$(BIN))

define CHECKS
	$(1)/python -m ruff check
	$(1)/python -m ruff format --check
	$(1)/python -m tests.check_variants
	$(1)/python -m pytest -q -n 2 --dist loadfile tests/test_details.py tests/test_numpy.py
endef

# make check without types, and a short training of each script, with the oldest packages that pyproject.toml allows or
# the newest, in .venv/oldest or .venv/newest; on Python 3.11 or 3.12. torch is as uv finds it, on Linux with CUDA, several GB;
# UV_TORCH_BACKEND=cpu makes it small.
test-oldest: RESOLUTION = lowest-direct
test-newest: RESOLUTION = highest
UV = .venv/lock/bin/uv pip install --quiet --python .venv/$*
test-oldest test-newest: test-%: | .venv/bin/python
	$(PYTHON) -m venv .venv/lock && .venv/lock/bin/python -m pip install --quiet uv
	.venv/lock/bin/uv venv --quiet --clear --python $(BIN)/python .venv/$*
	$(UV) --resolution $(RESOLUTION) -e '.[atari,envpool,mujoco]'
	$(UV) $$(grep -E '^(pytest|pytest-xdist|ruff)==' requirements-dev.txt)
	$(UV) --no-deps -r requirements-procgen.txt
	$(call CHECKS,.venv/$*/bin)
	.venv/$*/bin/python -m pytest -q tests/short_trainings.py

# What the scripts do, without the tools and the pages: for another Python
test-scripts: .venv/test
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore=tests/tools --ignore=tests/test_docs.py \
		--ignore=tests/test_readme.py --ignore=tests/test_conformance.py --ignore=tests/test_build_it.py

# For each detail: its tests pass, and fail on a copy of the repository in which a diff of benchmark/ablations takes it out
test-details: .venv/test
	$(BIN)/python -m pytest -q tests/details_taken_out.py

# Each edit of tests/changes in each script that it fits, and a compiled policy: some 20 minutes
test-changes: .venv/test
	$(BIN)/python -m pytest -q -n 2 -m "seldom or not seldom" tests/test_changes.py tests/tools/test_check_edit.py
	$(BIN)/python -m pytest -q -m seldom tests/test_envpool.py tests/tools/test_throughput.py

# The site as mkdocs builds it: every link, and each page in a browser; apt-get install chromium chromium-driver
test-site: .venv/test
	$(BIN)/python -m pytest -rs -m seldom tests/test_docs.py

# The torch scripts on a GPU, with a torch that finds one: whether runs repeat and resume
test-gpu: .venv/test
	$(BIN)/python -m pytest -rs tests/on_gpu.py

# A real Slurm on this machine, as root: apt-get install slurmctld slurmd slurm-client munge
test-slurm: .venv/test
	$(BIN)/python -m pytest -rs tests/tools/slurm_array.py

# Builds the Dockerfile without a daemon and runs every script in it, as root: apt-get install buildah crun debootstrap
test-docker:
	tests/docker_build.sh

# Other people's environments, from PyPI, and the table of docs/other-environments.md. A package that would replace
# others' has a virtual environment of its own
test-environments: .venv/test
	$(PYTHON) -m venv .venv/others && .venv/others/bin/python -m pip install --disable-pip-version-check --quiet uv
	$(BIN)/python tests/other_environments.py

.PHONY: test-simulators
# The files of benchmark/simulators for MuJoCo Playground, brax and mjlab, on a CPU, each in an environment of its own
test-simulators: .venv/playground/done .venv/mjlab/done
	.venv/playground/bin/python -m pytest --noconftest -rs tests/simulators.py -k jax
	.venv/mjlab/bin/python -m pytest --noconftest -rs tests/simulators.py -k mjlab

# Without what they depend on: mjlab would bring a torch for CUDA 13
.venv/%/done: tests/requirements-%.txt | .venv/bin/python
	$(PYTHON) -m venv .venv/$*
	.venv/$*/bin/python -m pip install --disable-pip-version-check --quiet torch==2.13.0
	.venv/$*/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r $<
	touch $@

# Rebuilds the pages' tables and pictures from benchmark/results and benchmark/agents
results: .venv/test
	$(BIN)/python docs/build/result_tables.py
	$(BIN)/python docs/build/ablation_tables.py
	$(BIN)/python docs/build/memory.py
	$(BIN)/python docs/build/time_limits.py
	$(BIN)/python docs/how_many_seeds.py
	$(BIN)/python docs/build/drawings.py
	$(BIN)/python docs/build/gallery.py rebuild

# Plays the agents of benchmark/agents anew: the README's strip and the videos of docs/gallery.md
gallery: .venv/test
	$(BIN)/python docs/build/gallery.py play

# The version is looked at first: with an older Python the installation fails late, and leaves a .venv behind.
OLD = import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, and $(PYTHON) is " \
	+ sys.version.split()[0] + "; name another one: make PYTHON=python3.12 $(MAKECMDGOALS)")
.DELETE_ON_ERROR: # without python3-venv, Debian's Python leaves an environment that has no pip
.venv/bin/python:
	@$(PYTHON) -c '$(OLD)'
	$(PYTHON) -m venv .venv

.venv/train: requirements.txt | .venv/bin/python
	@echo "Installing requirements.txt into .venv (once; a few minutes)"
	$(PIP) -r requirements.txt
	touch $@

.venv/test: requirements-dev.txt requirements-docs.txt requirements-procgen.txt | .venv/bin/python
	@echo "Installing requirements-dev.txt and requirements-docs.txt into .venv (once; a few minutes)"
	$(PIP) -r requirements-dev.txt -r requirements-docs.txt
	$(PIP) --no-deps -r requirements-procgen.txt
	touch $@ .venv/train

# The pages, into site/; a warning is an error. (Material's notice on the future of mkdocs isn't one, and is left out.)
docs: .venv/docs/done
	NO_MKDOCS_2_WARNING=1 .venv/docs/bin/python -m mkdocs build --strict

.venv/docs/done: requirements-docs.txt
	$(PYTHON) -m venv .venv/docs
	.venv/docs/bin/python -m pip install --disable-pip-version-check --quiet -r requirements-docs.txt
	touch $@

# Upgrades the pins of the three files to the newest releases that pyproject.toml allows, for all Pythons and systems, and
# shows what changed.
# torch's own CUDA packages stay unpinned, so that its small CPU build can be installed instead.
PINS = .venv/lock/bin/uv pip compile --universal --python-version 3.11 --upgrade --quiet --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links pyproject.toml
TESTED = dev track benchmark tune mujoco box2d dm-control pybullet atari envpool
lock: | .venv/bin/python
	$(PYTHON) -m venv .venv/lock && .venv/lock/bin/python -m pip install --quiet uv
	$(PINS) --all-extras -o requirements-all.txt
	$(PINS) -c requirements-all.txt -o requirements.txt
	$(PINS) -c requirements-all.txt $(foreach extra,$(TESTED),--extra $(extra)) -o requirements-dev.txt
	sed -i -E '/^(cuda-|nvidia-|triton)/d' requirements.txt requirements-dev.txt requirements-all.txt
	git --no-pager diff --unified=0 -- requirements.txt requirements-dev.txt requirements-all.txt

clean:
	rm -rf .venv
