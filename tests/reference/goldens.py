"""The golden checkpoints: file, layout, and what has to be told to load them."""

import numpy as np
from safetensors.numpy import load_file

GOLDENS = {
    "token": ("token.npz", "vit_jax", {}),
    "token_rep": ("token_rep.npz", "vit_jax", {}),
    "gap": ("gap.npz", "vit_jax", {}),
    "hybrid": ("hybrid.npz", "vit_jax", {}),
    "hybrid_root": ("hybrid_root.npz", "vit_jax", {}),
    "bigvision_gap_sincos": ("bigvision_gap_sincos.npz", "big_vision", {"image_size": 32}),
    "bigvision_map": ("bigvision_map.npz", "big_vision", {}),
    "timm_token": ("timm_token.safetensors", "timm", {"num_heads": 3}),
    "timm_avg": ("timm_avg.safetensors", "timm", {"num_heads": 3}),
    "hf_vit": ("hf_vit/model.safetensors", "huggingface", {}),
}


def stored(golden, name):
    """A golden file's arrays by its own keys, read without the package."""
    file = golden / GOLDENS[name][0]
    if file.suffix == ".safetensors":
        return load_file(file)
    with np.load(file) as arrays:
        return dict(arrays)
