# `make quickstart` and `make test` need Python 3.11, make and git; each makes its own .venv.
PYTHON ?= python3.11
BIN := .venv/bin
# The tests of a file run in one process, because they share fixtures.
PYTEST := -m pytest -n auto --dist loadfile --no-loadscope-reorder
# All tests run in four parts, since one process of all of them would need 12 GB; PART=2/4 runs the second.
PART ?= 1/4 2/4 3/4 4/4
BACKENDS ?= tensorflow jax
# A file whose fast tests take more CPU seconds fails.
BUDGET := 40
FULL := $(BIN)/python $(PYTEST) --hypothesis-profile=full
# On JAX the fast tests are the golden files, a run, and a sample of the contract of layers and models; test-full
# adds layers, models, steps, loading and saving.
JAX_TESTS := tests/contract/test_contract.py tests/layers/test_xla_form.py tests/training/test_jax_run.py \
	tests/engine/test_distributed_model.py::test_fine_tuning_follows_the_official_trajectory \
	tests/weights/test_load.py::test_a_checkpoint_computes_what_its_authors_code_computes
JAX_TESTS_FULL := tests/contract/test_contract.py tests/training/test_jax_run.py tests/layers tests/test_seeds.py \
	tests/weights/test_load.py tests/weights/test_save.py \
	$(addprefix tests/,models/vit models/test_saving.py tasks/pretraining/test_masked_patch_predictor.py) \
	tests/engine/test_distributed_model.py

.PHONY: help quickstart lint test test-full benchmark gpu wheels docs docs-figures litert-js stubs notebooks format url
help:
	@echo "make quickstart   train a Vision Transformer on scanned digits, plot, export and reload it"
	@echo "make test         ruff, the fast tests on TensorFlow with coverage, and a sample of them on JAX"
	@echo "make test-full    all tests, also the slow ones and comparisons with other packages; PART=2/4 runs a quarter, BACKENDS=jax one backend"
	@echo "make benchmark    time the package, and its peers if make .venv/peers was run; see benchmarks/"
	@echo "make gpu          time the package on an NVIDIA GPU, and its peers if they are installed; writes benchmarks/GPU.md"
	@echo "make wheels       build the distributions in dist/ and check them"
	@echo "make docs         fill the options into docs/cli*.md, draw the packages, and build the manual into site/"
	@echo "make docs-figures redraw the manual's figures: fifteen minutes of training, and Chromium for three of them"
	@echo "make litert-js    fetch LiteRT.js from npm into export/web/litert, for the pages of export"
	@echo "make stubs        write the stubs for type checkers from the code"
	@echo "make url          copy the repository's URL from setup.py into README and the notebooks"
	@echo "make notebooks    run the notebooks, or those in NAMES, and store their outputs"
	@echo "make format       fix what ruff can fix, and format the code"

# A file marks each environment as complete, so that an interrupted set-up runs again.
.venv/run: requirements.txt setup.py
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
.venv/dev: .venv/run requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	@touch $@
# Without the dependencies of these packages, some of which are for GPUs.
.venv/peers: .venv/dev requirements-peers.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-peers.txt
	@touch $@

# Environments of their own, in which tests/peers/test_engines.py runs the examples of embeddings.
ENGINES := build/beam/run build/ray/run
$(ENGINES): build/%/run: requirements.txt requirements-%.txt setup.py
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --requirement requirements.txt
	$(@D)/bin/pip install --quiet --disable-pip-version-check --requirement requirements-$*.txt
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

quickstart: .venv/run
	$(BIN)/keras-vit quickstart

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

test: lint
	$(BIN)/python -m slipcover --immediate $(PYTEST) -m "not slow"
	KERAS_BACKEND=jax $(BIN)/python $(PYTEST) -m "not slow" $(JAX_TESTS)

test-full: .venv/peers lint
	failed=0; for part in $(PART); do \
		$(if $(filter tensorflow,$(BACKENDS)),$(FULL) --part=$$part --budget=$(BUDGET) || failed=1;) \
		$(if $(filter jax,$(BACKENDS)),KERAS_BACKEND=jax $(FULL) --part=$$part $(JAX_TESTS_FULL) || failed=1;) \
	done; exit $$failed

# Peers that are not installed are skipped; `make .venv/peers` installs them.
benchmark: .venv/dev
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/scaling.py
	test ! -e .venv/peers || $(BIN)/python benchmarks/families.py
	test ! -e .venv/peers || $(BIN)/python benchmarks/detection.py
	test ! -e .venv/peers || $(BIN)/python benchmarks/depth.py
	$(BIN)/python benchmarks/checkpoints.py
	$(BIN)/python benchmarks/input_pipeline.py
	$(BIN)/python benchmarks/storage.py
	$(BIN)/python benchmarks/paths.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/embeddings.py
	$(BIN)/python benchmarks/pretraining.py
	$(BIN)/python benchmarks/distillation.py
	$(BIN)/python benchmarks/export.py
	test ! -e .venv/peers || $(BIN)/python benchmarks/servers.py

# JAX with CUDA has to be installed there, which the command tells.
gpu: .venv/dev
	KERAS_BACKEND=jax $(BIN)/python benchmarks/gpu_speed.py

wheels: requirements-release.txt
	$(PYTHON) -m venv build/release
	build/release/bin/pip install --quiet --disable-pip-version-check --requirement requirements-release.txt
	rm -rf dist
	build/release/bin/python -m build .
	build/release/bin/twine check --strict dist/*

# The variable silences mkdocs-material's announcement of its successor.
docs: .venv/dev
	$(BIN)/python docs/cli_options.py
	$(BIN)/python docs/rooms.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-figures: .venv/peers
	$(BIN)/python docs/figures.py
	PYTHONPATH=tests $(BIN)/python docs/photograph_figures.py

# The build of its WebAssembly that every browser runs, without relaxed SIMD. `gzip -n` stores no time.
LITERT := 2.5.3
litert-js:
	rm -rf build/litert && mkdir -p build/litert
	cd build/litert && npm install --silent --no-save @litertjs/core@$(LITERT) esbuild@0.25.0
	cd build/litert && echo 'export {loadLiteRt, loadAndCompile, Tensor} from "@litertjs/core";' > page.js && \
		npx esbuild page.js --bundle --minify --format=iife --global-name=LiteRT --legal-comments=none \
		--outfile=$(CURDIR)/export/web/litert/litert.js
	for part in js wasm; do gzip -9 -n < build/litert/node_modules/@litertjs/core/wasm/litert_wasm_compat_internal.$$part \
		> export/web/litert/litert_wasm.$$part.gz || exit 1; done

stubs: .venv/dev
	PYTHONPATH=tests $(BIN)/python tests/made/stubs.py

notebooks: .venv/peers
	PYTHONPATH=tests $(BIN)/python tests/made/notebooks.py $(NAMES)

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# setup.py is the one place that defines the URL; README's links and notebooks need copies of it.
REPOSITORY = $(shell sed -n 's|.*url="https://github.com/\([^"]*\)".*|\1|p' setup.py)
url:
	sed -i -E -e 's|(colab.research.google.com/github/)[^/]+/[^/]+|\1$(REPOSITORY)|g' \
		-e 's|(git\+https://github.com/)[^/]+/[^ ]+|\1$(REPOSITORY)|' \
		-e 's|(REPOSITORY = ."https://github.com/)[^"\]+|\1$(REPOSITORY)|' README.md colab/*.ipynb
