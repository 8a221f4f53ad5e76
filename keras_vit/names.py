"""The names of what the registries hold, for help texts; this module imports nothing.

`tests/cli/test_cli.py` compares them with the registries. What follows
a `:`, `=` or space explains a name.
"""

TARGETS = ("mean_color", "downsized", "pixels")  # of masked_patch
DATA_SETS = (
    *("digits", "digits_scenes", "digits_words", "folder:PATH", "hf:ORG/NAME[@REVISION][/CONFIG]"),
    *("parquet:PATH", "tfds:NAME[/CONFIG]", "vtab:TASK", "webdataset:PATH"),
)
SPLITS = ("train", "validation", "test")
SHARD_FORMATS = ("webdataset", "parquet")
EMBEDDING_OUTPUTS = ("pooled", "tokens", "logits", "classes", "captions")
EMBEDDING_DTYPES = ("float16", "float32")
EMBEDDING_FORMATS = (
    *("tflite_float32", "tflite_float16", "tflite_dynamic_int8", "onnx_float32", "onnx_dynamic_int8"),
    *("openvino_float32", "openvino_bfloat16"),
)
SEARCH_ENGINES = ("exact", "hnsw", "ivf_pq")
ON_BAD_IMAGE = ("fail", "skip", "keep")
STRATEGIES = ("auto", "single", "mirrored", "multi_worker (reads TF_CONFIG)", "tpu")
JAX_STRATEGIES = ("single", "data_parallel", "fsdp", "model_parallel=AxB")
COMPUTE_DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
RUN_DTYPES = ("auto", *COMPUTE_DTYPES)
STORED_DTYPES = ("float32", "float16", "bfloat16", "float64")
LAYOUTS = ("vit_jax", "big_vision", "timm", "huggingface", "open_clip", "scenic")
PUSHED_LAYOUTS = ("huggingface", "timm")
FORMATS = ("saved_model", "tflite", "onnx", "openvino", "hub", "web")
LITERT_PRECISIONS = ("float32", "float16", "dynamic_int8", "int8", "full_int8")
ONNX_PRECISIONS = ("float32", "dynamic_int8", "int8")
OPENVINO_PRECISIONS = ("float32", "bfloat16", "int8")
