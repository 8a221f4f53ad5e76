# `make quickstart` and `make test` need Python 3.11, make and git; each makes its own .venv.
PYTHON ?= python3.11
BIN := .venv/bin
# A file's tests share what is dear to make; conftest.py says which files start first.
PYTEST := -m pytest -n auto --dist loadfile --no-loadscope-reorder $(if $(FULL),,-m "not slow")
# What computes with Keras; the rest is TensorFlow's own, or about files and NumPy, which save.py is too.
JAX_TESTS := tests/layers $(addprefix tests/models/test_,vit.py resnet_stem.py masked_patch.py saving.py) \
	tests/contract/test_contract.py tests/weights/test_load.py \
	tests/weights/test_save.py$(if $(FULL),,::test_a_checkpoint_is_written_as_it_was)

.PHONY: help quickstart test test-full benchmark docs docs-figures format address
help:
	@echo "make quickstart   train a Vision Transformer on scanned digits, draw, export, load back"
	@echo "make test         every check: ruff, pytest on TensorFlow and on JAX, coverage"
	@echo "make test-full    the same with the long checks at their full numbers, and against other projects"
	@echo "make benchmark    time the package, and its peers if make .venv/peers was run; see benchmarks/"
	@echo "make docs         build the manual into site/"
	@echo "make docs-figures draw the manual's figures anew: two minutes of training, and Chromium for one of them"
	@echo "make address      fill the repository's URL in setup.py into README and the notebooks"
	@echo "make format       put the code into the form that make test asks for"

# The environments are marked by files, so that a set-up that was cut off is done again.
.venv/run: requirements.txt setup.py
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
.venv/dev: .venv/run requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	@touch $@
# What other projects' own packages are needed for; without their requirements, which are for GPUs.
.venv/peers: .venv/dev requirements-peers.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-peers.txt
	@touch $@

quickstart: .venv/run
	$(BIN)/keras-vit quickstart

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m slipcover $(PYTEST)
	KERAS_BACKEND=jax $(BIN)/python $(PYTEST) $(JAX_TESTS)

test-full: .venv/peers
	FULL=1 $(MAKE) test

# Contenders that are not installed are left out; `make .venv/peers` brings them.
benchmark: .venv/dev
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/checkpoints.py
	$(BIN)/python benchmarks/input_pipeline.py
	$(BIN)/python benchmarks/masked_patch.py
	$(BIN)/python benchmarks/export.py

# The environment variable: mkdocs-material says at every build that it will have a successor.
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-figures: .venv/run
	$(BIN)/python docs/figures.py

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What Colab and its notebooks install from is filled in from setup.py, the one place that holds the URL.
REPOSITORY = $(shell sed -n 's|.*url="https://github.com/\([^"]*\)".*|\1|p' setup.py)
address:
	sed -i -E -e 's|(colab.research.google.com/github/)[^/]+/[^/]+|\1$(REPOSITORY)|g' \
		-e 's|(REPOSITORY = ."https://github.com/)[^"\]+|\1$(REPOSITORY)|' README.md colab/*.ipynb
