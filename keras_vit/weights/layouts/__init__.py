"""The layouts that checkpoints come in: each a table of names, read and written.

A layout module has `detect(keys)`, `read(arrays)`, `write(arrays, config)` and `implied(names)`, and
says which constructor arguments it can hold (`EXPRESSES`), whether class tokens have rows in its
position table (`PREFIX_POSITIONS`), whether its attention kernels have an axis of heads
(`HEADS_APART`), what its files end with (`SUFFIX`) and what else its `write` takes (`OPTIONS`).
"""

from keras_vit.weights.layouts import big_vision, huggingface, timm, vit_jax

LAYOUTS = {"vit_jax": vit_jax, "big_vision": big_vision, "timm": timm, "huggingface": huggingface}
