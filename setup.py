"""Packaging: `export/` is installed as `keras_vit.export`."""

import pathlib
import re

from setuptools import find_packages, setup

here = pathlib.Path(__file__).parent
version = re.search(r'__version__ = "(.+)"', (here / "keras_vit/__init__.py").read_text())[1]

setup(
    name="keras-vision-transformer",  # keras-vit on PyPI is another project
    version=version,
    description="Vision Transformers for Keras 3: load, fine-tune and export published checkpoints",
    long_description=(here / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    url="https://github.com/keras-vit/keras_vit",  # After a change, run make url.
    python_requires=">=3.11,<3.14",
    packages=[
        *find_packages(include=["keras_vit", "keras_vit.*"]),
        *(f"keras_vit.{package}" for package in find_packages(include=["export", "export.*"])),
    ],
    package_dir={"keras_vit.export": "export"},
    package_data={
        "keras_vit": [
            "py.typed",
            "**/*.pyi",
            "reports/*.html",
            "tasks/*/*.js",
            "training/*.yaml",
            "weights/*.csv",
            "weights/*.txt",
        ],
        "keras_vit.export": ["*.pyi", "web/*.*", "web/litert/*.*"],
    },
    py_modules=["_keras_vit_cli"],
    entry_points={"console_scripts": ["keras-vit = _keras_vit_cli:main"]},
    install_requires=[
        "absl-py",
        "ai-edge-litert",
        "filelock",
        "flatbuffers",
        "fsspec",
        "h5py",
        "huggingface_hub",
        "importlib_resources",  # tensorflow-datasets needs it to prepare data but does not require it.
        "jinja2",
        "keras>=3.14.1",  # Before, a .keras file could refer to other files through HDF5.
        "matplotlib",
        "ml_dtypes",
        "numpy",
        "pillow",
        "pyarrow",
        "pyyaml",
        "requests",
        "safetensors",
        "scikit-learn",
        "scipy",
        "tensorboard",
        "tensorflow>=2.20",  # Before, .tflite files could run all operations of TensorFlow.
        "tensorflow-datasets",
        "tqdm",
        "urllib3",
    ],
    extras_require={
        "torch": ["torch"],  # for .bin and .pth files
        # For .onnx files, which before onnxruntime 1.27 could refer to other files.
        "onnx": ["onnx", "onnxruntime>=1.27", "tf2onnx"],
        # For .xml files of OpenVINO; nncf for int8.
        "openvino": ["openvino", "nncf"],
        "text": ["tokenizers", "sentencepiece"],  # for the text towers of image-text models
        "flax": ["msgpack"],  # for the files of OWL-ViT's authors
        "search": ["usearch"],  # for keras-vit search
        "search-large": ["usearch", "faiss-cpu"],  # for its engine ivf_pq
        "heic": ["pillow-heif"],  # for photographs of phones
        "exr": ["opencv-python-headless"],  # for depth maps in OpenEXR files
        "keras-cv": ["keras-cv"],  # augmentation layers
        # For keras-vit plan: libtpu is the compiler, and each version is made for one of JAX.
        "tpu": ["jax==0.10.2", "libtpu==0.0.52"],
        # The compiler for GPUs, for an environment of its own: JAX there looks for a GPU.
        "gpu": [
            "jax==0.10.2",
            "jax-cuda12-plugin==0.10.2",
            "nvidia-cuda-nvcc-cu12>=12.6.85",
            "nvidia-cudnn-cu12>=9.8,<10",
        ],
    },
)
