"""Which of timm's pretrained Vision Transformers are read, with the logits of timm's own modules.

Each architecture is built with random weights, two blocks and a small width, and every other option as
published, is saved in the form in which timm publishes it, and is read by `from_pretrained`. Writes a table
by family to standard output; `docs/checkpoints.md` has it.
"""

import argparse
import collections
import os
import pathlib
import re
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import report  # noqa: E402
from systems import declare_torchvision, save_timm  # noqa: E402

MODULES = (  # of timm.models with models that are Vision Transformers or named like one
    *("vision_transformer", "vision_transformer_hybrid", "deit", "eva", "naflexvit", "beit"),
    *(
        "vision_transformer_relpos",
        "qwen3_vit",
        "deepseek_vit",
        "gemma4_vit",
        "vision_transformer_sam",
        "cait",
    ),
)
FAMILIES = (  # the first that matches the architecture's name counts
    ("DINOv3, EUPE", "dinov3"),
    ("LingBot-Vision", "lingbot"),
    ("Sapiens2", "sapiens2"),
    ("Perception Encoder", "_pe_"),
    ("RoPE-ViT and timm's models with rotary positions", "_rope_"),
    ("EVA-02", "eva02"),
    ("EVA", "^eva_"),
    ("BEiT-3", "beit3"),
    ("BEiT, BEiT v2", "^beit"),
    ("AIMv2", "aimv2"),
    ("C-RADIO (also as NaFlexVit)", "radio"),
    ("NaFlexVit", "naflexvit"),
    ("InternViT-300M", "intern300m"),
    ("DINOv2, TIPSv2", "dinov2|tipsv2"),
    ("SigLIP, SigLIP 2", "siglip"),
    ("ViT of CLIP models", "_clip_|_mci_"),
    ("Qwen3, DeepSeek and Gemma encoders", "qwen3|deepseek|gemma4"),
    ("SAM", "^samvit"),
    ("CaiT", "^cait"),
    ("Relative positions (timm)", "relpos"),
    ("DeiT, DeiT III", "^deit"),
    ("FlexiViT", "flexivit"),
    ("ViT with a ResNet stem", r"_r\d*_s\d|_r50_|_r26_"),
    ("ViT", ""),
)
BOUND = 3e-6  # of the largest logit


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; by default all with published weights")
    names = parser.parse_args().names
    tags = pretrained()
    results = {}
    for name in names or tags:
        results[name] = result(name)
        print(f"{name}: {results[name]}", file=sys.stderr, flush=True)
    print(table({name: tags.get(name, 0) for name in results}, results))


def pretrained():
    """The number of published weights of each of timm's Vision Transformers, by architecture."""
    declare_torchvision()
    import timm
    from timm.models._registry import _model_to_module

    names = [name.split(".")[0] for name in timm.list_models(pretrained=True)]
    return collections.Counter(sorted(name for name in names if _model_to_module[name] in MODULES))


def result(name):
    """The largest difference to timm's logits, relative to the largest logit, or why the model is refused."""
    try:
        model = reduced(name)
    except (TypeError, AttributeError, AssertionError):  # other kinds of models, without these options
        model = created(name)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return largest_difference(model, save_timm(model, pathlib.Path(folder)))
    except ValueError as error:
        return re.sub(r"/\S*/", "", str(error))


def created(name, **options):
    """timm's model; without options its arrays take no memory, and have no values."""
    import timm
    import torch

    with torch.device("meta" if not options else "cpu"):
        return timm.create_model(name, **options).eval()


def reduced(name):
    """timm's model with random weights and, of its options, only the width and the depth not as published."""
    import torch

    heads = 2
    block = created(name).blocks[0]
    size = getattr(block.attn, "head_dim", None) or block.attn.qkv.in_features // block.attn.num_heads
    options = {"embed_dim": heads * size, "depth": 2, "num_heads": heads, "num_classes": 16}
    if "sapiens2" in name:
        options["num_kv_heads"] = (2, 1)
    generator = torch.Generator().manual_seed(0)
    model = created(name, **options)
    with torch.no_grad():
        for key, array in model.named_parameters():
            is_matrix = array.ndim > 1 and min(array.shape) > 1
            scale = 0.6 / array[0].numel() ** 0.5 if is_matrix else 0.1
            start = 1.0 if array.ndim == 1 and re.search(r"weight$|gamma", key) else 0.0
            if "norm3" in key:  # A deep ResNet of branches of full size would amplify rounding errors.
                start, scale = start / 8, scale / 8
            array.copy_(start + scale * torch.randn(array.shape, generator=generator))
    return model


def largest_difference(model, folder):
    """The largest difference between our logits and timm's, relative to the largest logit."""
    import numpy as np
    import torch

    from keras_vit import from_pretrained

    given, attention = {}, [module for module in model.modules() if hasattr(module, "num_heads")]
    if attention:
        given["num_heads"] = attention[0].num_heads
    # CLIP's repositories with either GELU have the same architecture's name.
    if not {"QuickGELU", "GELUTanh", "SiLU"} & {type(module).__name__ for module in model.modules()}:
        given["activation"] = "gelu_erf"
    ours = from_pretrained(folder, **given)
    images = np.random.default_rng(0).uniform(-1, 1, (1, *ours.image_size, 3)).astype("float32")
    with torch.no_grad():
        theirs = model(torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))).numpy()
    return float(np.abs(np.asarray(ours(images)) - theirs).max() / np.abs(theirs).max())


def table(tags, results):
    """Markdown: the families with the numbers of published weights that are read, and why others are not."""
    read, refused, reasons = collections.Counter(), collections.Counter(), collections.defaultdict(set)
    largest = collections.defaultdict(float)
    for name, found in results.items():
        family = next(family for family, pattern in FAMILIES if re.search(pattern, name))
        if isinstance(found, float) and found <= BOUND:
            read[family] += tags[name]
            largest[family] = max(largest[family], found)
        else:
            refused[family] += tags[name]
            reasons[family].add(found if isinstance(found, str) else f"difference of {found:.1e}")
    rows = []
    for family, _ in FAMILIES:
        if count := read[family] + refused[family]:
            rows.append((family, count, read[family], f"{largest[family]:.1e}" if read[family] else ""))
    rows.append(("together", sum(tags.values()), sum(read.values()), f"{max(largest.values()):.1e}"))
    lines = [report.table(("family", "weights", "read", "largest difference"), rows)]
    for family, why in reasons.items():
        lines += ["", f"{family}:", *(f"* {reason}" for reason in sorted(why))]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
