import ast
import re
import subprocess
import sys
import zipfile

import pytest

import keras_vit


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory):
    """File name → text in a wheel that is built from a copy of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    ours = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "_keras_vit_cli.py")
    for name in (*ours, "keras_vit", "export", "tests"):
        subprocess.run(["cp", "-r", repository / name, folder], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
    done = subprocess.run([*command, "--wheel-dir", "built"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = (folder / "built").iterdir()
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name).decode("utf-8", "replace") for name in archive.namelist()}


def test_the_wheel_has_only_our_top_level_names(wheel):
    info = f"keras_vision_transformer-{keras_vit.__version__}.dist-info"
    assert {name.partition("/")[0] for name in wheel} == {"keras_vit", "_keras_vit_cli.py", info}


def test_the_wheel_holds_every_module_and_no_tests(wheel, repository):
    modules = {path.relative_to(repository).as_posix() for path in (repository / "keras_vit").rglob("*.py")}
    exports = (repository / "export").rglob("*.py")
    modules |= {f"keras_vit/{path.relative_to(repository).as_posix()}" for path in exports}
    modules.add("_keras_vit_cli.py")
    assert "keras_vit/export/__init__.py" in modules
    assert {name for name in wheel if name.endswith(".py")} == modules
    assert not [name for name in wheel if "test" in name]


def test_the_wheel_holds_the_tables_and_templates_that_the_package_reads(wheel, repository):
    files = (repository / "keras_vit").rglob("*.*")
    tables = {p.relative_to(repository).as_posix() for p in files if p.suffix in (".csv", ".html", ".txt")}
    names = {"imagenet_1k", "imagenet_1k_clip", "imagenet_1k_synsets", "prompts_clip_7", "prompts_clip_80"}
    texts = {f"keras_vit/weights/{name}.txt" for name in names}
    pages = {f"keras_vit/reports/{name}.html" for name in ("page", "parts")}
    assert tables == {"keras_vit/weights/catalogue.csv", *texts, *pages}
    assert tables <= wheel.keys()


def test_the_wheel_holds_the_parts_of_web_pages(wheel, repository):
    parts = [path for path in (repository / "export" / "web").rglob("*") if path.is_file()]
    assert {f"keras_vit/{path.relative_to(repository).as_posix()}" for path in parts} <= wheel.keys()
    scripts = {
        path.relative_to(repository).as_posix() for path in repository.glob("keras_vit/tasks/*/page.js")
    }
    assert len(scripts) == 4 and scripts <= wheel.keys()


def test_the_wheel_installs_the_console_script(wheel):
    (entry_points,) = (text for name, text in wheel.items() if name.endswith("/entry_points.txt"))
    assert "keras-vit = _keras_vit_cli:main" in entry_points


def test_the_wheel_requires_what_the_package_imports(wheel):
    (metadata,) = (text for name, text in wheel.items() if name.endswith("/METADATA"))
    asked = {
        re.split(r"[ <>=!;]", line[15:])[0].replace("_", "-")
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist")
    }
    found = set()
    for name, text in wheel.items():
        if name.endswith(".py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found.add(node.module.partition(".")[0])
    names = {
        "absl": "absl-py",
        "cv2": "opencv-python-headless",
        "PIL": "pillow",
        "pillow_heif": "pillow-heif",
        "yaml": "pyyaml",
        "sklearn": "scikit-learn",
        "ai_edge_litert": "ai-edge-litert",
        "ml_dtypes": "ml-dtypes",
        "huggingface_hub": "huggingface-hub",
        "tensorflow_datasets": "tensorflow-datasets",
    }
    outside = {
        names.get(name, name) for name in found - {*sys.stdlib_module_names} - {"keras_vit", "_keras_vit_cli"}
    }
    # Needed by Keras's TensorBoard callback, TensorFlow Datasets, users' layers, files of ONNX and OpenVINO,
    # tokenizers, indices of pictures and plans, without an import statement of ours.
    by_name = {"tensorboard", "importlib-resources", "keras-cv", "onnx", "onnxruntime", "tf2onnx"}
    by_name |= {"openvino", "nncf", "tokenizers", "sentencepiece", "usearch", "faiss-cpu", "libtpu"}
    by_name |= {"msgpack", "nvidia-cuda-nvcc-cu12", "nvidia-cudnn-cu12", "jax-cuda12-plugin"}
    assert outside | by_name == asked


def test_the_wheel_requires_a_keras_that_refuses_external_hdf5_storage(wheel):
    """3.13.2 refuses external storage, 3.14.1 links and virtual data sets, too."""
    (metadata,) = (text for name, text in wheel.items() if name.endswith("/METADATA"))
    (bound,) = re.findall(r"^Requires-Dist: keras>=([\d.]+)", metadata, re.MULTILINE)
    assert tuple(map(int, bound.split("."))) >= (3, 14, 1)


def test_the_version_of_setup_py_is_the_packages(repository):
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == keras_vit.__version__


def test_make_url_copies_the_url_of_setup_py_everywhere(repository, tmp_path):
    names = ("setup.py", "README.md", "CONTRIBUTING.md", "Makefile", "mkdocs.yml")
    for name in (*names, "keras_vit", "export", "docs", "colab", "benchmarks", "tests"):
        subprocess.run(["cp", "-r", repository / name, tmp_path], check=True)
    url = re.search(r'url="https://github.com/(.+?)"', (tmp_path / "setup.py").read_text())[1]

    def holders(text):
        files = [path for path in tmp_path.glob("**/*.*") if path.is_file()]
        counts = {path.relative_to(tmp_path).as_posix(): path.read_bytes().count(text) for path in files}
        return {name: count for name, count in counts.items() if count}

    before = holders(url.encode())
    notebooks = {f"colab/{path.name}" for path in (tmp_path / "colab").glob("*.ipynb")}
    assert {*before} == {"setup.py", "README.md", *notebooks}
    other = url[::-1]
    (tmp_path / "setup.py").write_text((tmp_path / "setup.py").read_text().replace(url, other))
    subprocess.run(["make", "url"], cwd=tmp_path, check=True, capture_output=True)
    assert holders(other.encode()) == before
    assert not holders(url.encode())
