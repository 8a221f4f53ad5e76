"""The models of transformers for depth: Depth Anything (V1, V2) and DPT, of plain Vision Transformers.

Sources: the modules `depth_anything` and `dpt` of transformers 5.23.
"""

import numpy as np

from keras_vit.layers.depth_head import FACTORS
from keras_vit.rules import integer, items, number, one_of, optional
from keras_vit.tasks.depth.dpt_head import LEVELS, conv_rows, has_dpt_head, sizes_of
from keras_vit.weights.json_files import read_json
from keras_vit.weights.layouts import hub_config
from keras_vit.weights.layouts.additions import HuggingFaceAdditions
from keras_vit.weights.layouts.hub_config import CONFIG
from keras_vit.weights.layouts.huggingface_types import (
    DINOV2,
    IMAGENET,
    VIT,
    VIT_PROCESSOR,
    squares_only,
)
from keras_vit.weights.layouts.layout import HeadOptions, ModelForm, other_values, true_reasons
from keras_vit.weights.layouts.table import CONV, Row, torch_rows

_PROCESSORS = {"dpt": {**VIT_PROCESSOR, "resample": 3, "size": {"height": 384, "width": 384}}}
_OTHER_FAMILIES = {
    "a DPT whose backbone is a BiT (DPT-hybrid)": r"dpt\.embeddings\.backbone\..*",
    "a depth estimator whose backbone is a Swin Transformer": r"backbone\.encoder\.layers\.0\.blocks\..*",
}
_UNUSED = "neck.fusion_stage.layers.0.residual_layer1"  # of the first fusion, which adds nothing
_STAGE = "stage"  # what the names of a backbone's outputs begin with
_DPT_BLOCKS = [2, 5, 8, 11]  # transformers' default, for any number of blocks


def _inside(rows, prefix):
    return tuple(row._replace(theirs=prefix + row.theirs) for row in rows)


def _norm_rows(ours, theirs):
    names = {
        "gamma": "weight",
        "beta": "bias",
        "moving_mean": "running_mean",
        "moving_variance": "running_var",
    }
    return [Row(f"{ours}/{our}", f"{theirs}.{their}") for our, their in names.items()]


def _neck_rows():
    rows = []
    for i in range(LEVELS):
        stage = f"neck.reassemble_stage.layers.{i}"
        rows += conv_rows(f"reassemble_{i}/projection", f"{stage}.projection")
        rows += conv_rows(f"reassemble_{i}/resize", f"{stage}.resize")
        rows += [Row(f"reassemble_{i}/convolution/kernel", f"neck.convs.{i}.weight", CONV)]
        rows += torch_rows({f"readout_{i}/dense": f"neck.reassemble_stage.readout_projects.{i}.0"})
        # Theirs are in the order of computation, from the coarsest map to the finest.
        ours, theirs = f"fusion_{LEVELS - 1 - i}", f"neck.fusion_stage.layers.{i}"
        rows += conv_rows(f"{ours}/projection", f"{theirs}.projection")
        for unit in (0, 1):
            names_of_unit = f"{ours}/unit_{unit}", f"{theirs}.residual_layer{unit + 1}"
            for j in (0, 1):
                rows += conv_rows(
                    f"{names_of_unit[0]}/convolution_{j}", f"{names_of_unit[1]}.convolution{j + 1}"
                )
                rows += _norm_rows(f"{names_of_unit[0]}/norm_{j}", f"{names_of_unit[1]}.batch_norm{j + 1}")
    return rows


def _head_rows(convolutions):
    names = ("decoder_convolution", "head_convolution", "output_convolution")
    return [row for ours, theirs in zip(names, convolutions) for row in conv_rows(ours, f"head.{theirs}")]


_OTHERS = rf"{_UNUSED.replace('.', '[.]')}\..*|.*\.num_batches_tracked"
_ANYTHING_HEAD = _head_rows(("conv1", "conv2", "conv3"))
_DPT_HEAD = _head_rows(("head.0", "head.2", "head.4"))
_ANYTHING, _DPT, _DPT_DINOV2 = "depth_anything", "dpt", "dpt with a dinov2 backbone"


def _backbone(config):
    """The values of the DINOv2 in config.json."""
    values = config.get("backbone_config")
    name = values.get("model_type") if isinstance(values, dict) else None
    if name != "dinov2":
        got = name or config.get("backbone")
        raise ValueError(
            f"{CONFIG}: expected a plain Vision Transformer, 'dinov2', as the backbone; got {got!r}"
        )
    return values


def _read_dpt(config):
    for name in ("is_hybrid", "add_projection"):
        if config.get(name):
            raise ValueError(
                f"{CONFIG}: {name} must be false, for a DPT of a plain Vision Transformer; got true"
            )
    if config.get("backbone_config") or config.get("backbone"):
        return _DPT_OF_DINOV2, _backbone(config)
    return _DPT_OF_VIT, config


def _combinations(encoder, **supported):
    """The `combinations` of a type, by that of its encoder and the supported values of the head's options."""

    def combinations(config):
        reasons = {**encoder.combinations(config), **squares_only(config)}
        reasons["registers"] = bool(config["num_registers"])
        for name, values in supported.items():
            value = config["depth"][name]
            reasons[f"{name}={value!r} (supported: {' or '.join(map(repr, values))})"] = value not in values
        return reasons

    return combinations


_OF_ANYTHING = {"upsampling": ("match",), "readout": ("ignore",), "head_norm": (None,)}
_OF_DPT = {
    "upsampling": ("double",),
    "readout": ("ignore", "add", "project"),
    "head_size": (32,),
    "activation": ("relu",),
}
_DEPTH_ANYTHING = DINOV2._replace(
    name=_ANYTHING,
    model="DepthAnythingForDepthEstimation",
    classifier=None,
    prefix="",
    rows=(*_inside(DINOV2.rows, "backbone."), *_neck_rows(), *_ANYTHING_HEAD),
    plain=_inside(DINOV2.plain, "backbone."),
    gated=_inside(DINOV2.gated, "backbone."),
    mark=r"head\.conv1\.weight",
    anchor="backbone.embeddings.patch_embeddings.projection.weight",
    others=rf"backbone\.embeddings\.mask_token|{_OTHERS}",
    supported={**DINOV2.supported, "pooling": ("token", "gap", None), "final_norm": (True, False)},
    combinations=_combinations(DINOV2, **_OF_ANYTHING),
    processor="DPTImageProcessor",
    images={"size": {"height": 518, "width": 518}, **IMAGENET},
    read={**DINOV2.read, "final_norm": lambda model: model.get("apply_layernorm", True)},
    spare_norm=True,
    head="depth",
    described=lambda config: (_DEPTH_ANYTHING, _backbone(config)),
)
_DPT_OF_VIT = VIT._replace(
    name=_DPT,
    model="DPTForDepthEstimation",
    classifier=None,
    prefix="",
    rows=(*_inside(VIT.rows, "dpt."), *_neck_rows(), *_DPT_HEAD),
    mark=r"dpt\.embeddings\.cls_token",
    anchor="dpt.embeddings.patch_embeddings.projection.weight",
    others=rf"dpt\.(layernorm|pooler)\..*|{_OTHERS}",
    interpolation="bilinear_half_pixel",
    supported={
        **VIT.supported,
        "representation_size": (None,),
        "pooling": ("token", "gap", None),
        "final_norm": (False,),
    },
    combinations=_combinations(VIT, **_OF_DPT),
    processor="DPTImageProcessor",
    images={},
    any_size=True,
    head="depth",
    described=_read_dpt,
)
_DPT_OF_DINOV2 = _DEPTH_ANYTHING._replace(
    name=_DPT_DINOV2,
    model="DPTForDepthEstimation",
    rows=(*_inside(DINOV2.rows, "backbone."), *_neck_rows(), *_DPT_HEAD),
    mark=r"head\.head\.0\.weight",
    anchor=None,
    combinations=_combinations(DINOV2, **_OF_DPT),
    images={**IMAGENET},
    described=_read_dpt,
)
MODEL_TYPES = (_DEPTH_ANYTHING, _DPT_OF_VIT, _DPT_OF_DINOV2)

# Of values in config.json. The projections of "project" are in the file.
_RULES_OF_DPT = {"readout_type": one_of(("ignore", "add", "project"))}
_RULES_OF_ANYTHING = {
    "depth_estimation_type": one_of(("relative", "metric")),
    "max_depth": optional(number(above=0)),
}


class DptForm(ModelForm):
    """How transformers stores a `DepthEstimator` with head "dpt".

    Its class depends on `upsampling`: Depth Anything for "match", DPT for "double". `config["depth"]` has
    what decides on the class.
    """

    usage = 'from transformers import pipeline\n\nmodel = pipeline("{task}", model="{repository}")'
    kind = "depth_estimator"

    has_head = staticmethod(has_dpt_head)

    def head_options(self, checkpoint, layout, folder):
        arrays, keys = checkpoint.arrays, checkpoint.keys
        config = read_json(folder / CONFIG, {}) if folder else {}
        if not config:
            raise ValueError(
                f"the blocks that its head reads are in {CONFIG} alone, which sha256 does not cover"
            )
        sizes = sizes_of(arrays)
        is_dpt = keys["output_convolution/kernel"].startswith("head.head.")
        _check(config, reassemble_factors=([*FACTORS],), head_in_index=(-1, LEVELS - 1))
        values = {"readout_type": "project", "depth_estimation_type": "relative", **config}
        readout = "project" if "readout_0/dense/kernel" in arrays else "ignore"
        options = {"quantity": "disparity", "upsampling": "double" if is_dpt else "match", "readout": readout}
        for name, rule in (_RULES_OF_DPT if is_dpt else _RULES_OF_ANYTHING).items():
            values[name] = rule.check(f"{CONFIG}: {name}", values.get(name))
        if is_dpt and readout == "ignore":
            options["readout"] = values["readout_type"]
        elif not is_dpt and values["depth_estimation_type"] == "metric":
            options |= {"quantity": "metric", "max_depth": float(values["max_depth"] or 1)}
        elif not is_dpt:
            # transformers multiplies relative depths by it, too.
            _check(config, max_depth=(1, None))
        head_norm = "batch" if "fusion_0/unit_1/norm_0/gamma" in arrays else None
        if is_dpt:
            _check(config, use_bias_in_fusion_residual=(None, head_norm is None))
        return {
            **sizes,
            **options,
            "blocks": _blocks(config),
            "readout_activation": hub_config.activation(config.get("hidden_act", "gelu")),
            "head_norm": head_norm,
        }

    def adapted(self, model, arrays, config):
        options = {name: getattr(model, name) for name in ("readout", "upsampling", "head_norm", "head_size")}
        # Blocks after the last one that is read are in no model.
        last = {"num_layers": max(model.read_blocks) + 1}
        return arrays, {**config, **last, "depth": HeadOptions(options, activation=model.value_activation)}

    def unsupported(self, model, config):
        is_metric = model.quantity == "metric"
        whole = is_metric and model.max_depth != int(model.max_depth)
        activation = "sigmoid" if is_metric else "relu"
        reasons = {
            f"quantity={model.quantity!r} (supported: 'disparity' or 'metric')": model.quantity
            not in ("disparity", "metric"),
            "quantity='metric' with upsampling='double' (supported: 'match')": is_metric
            and model.upsampling == "double",
            f"activation={model.value_activation!r} with quantity={model.quantity!r} (supported: "
            f"{activation!r})": model.value_activation != activation,
            f"blocks={model.read_blocks} (supported: each once)": len({*model.read_blocks}) < LEVELS,
            f"max_depth={model.max_depth} (supported: whole numbers)": whole,
        }
        return [*true_reasons(reasons), *other_values(vars(model), {"num_classes": 1})]

    def write(self, model, arrays, others):
        size, unit = model.decoder_size, {}
        for j in (1, 2):
            unit[f"convolution{j}.weight"] = np.zeros((size, size, 3, 3))
            if model.head_norm is None:
                unit[f"convolution{j}.bias"] = np.zeros(size)
            else:
                names = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
                unit |= {f"batch_norm{j}.{name}": np.full(size, float(x)) for name, x in names.items()}
        unused = {f"{_UNUSED}.{key}": array for key, array in unit.items()}
        hidden = model.encoder.hidden_size
        is_plain = "dpt.embeddings.cls_token" in arrays
        if not is_plain:
            unused["backbone.embeddings.mask_token"] = np.zeros((1, hidden))
        if not model.encoder.final_norm:
            norm = "dpt.layernorm" if is_plain else "backbone.layernorm"
            unused |= {f"{norm}.weight": np.ones(hidden), f"{norm}.bias": np.zeros(hidden)}
        return {**arrays, **{key: array.astype("float32") for key, array in unused.items()}}

    def written_config(self, model, values):
        kept = {key: values.pop(key) for key in ("keras_vit",) if key in values}
        for key in ("id2label", "label2id", "architectures"):
            values.pop(key)
        name, blocks = values.pop("model_type"), model.read_blocks
        options = {
            "neck_hidden_sizes": [model.get_layer(f"reassemble_{i}").size for i in range(LEVELS)],
            "reassemble_factors": [*FACTORS],
            "fusion_hidden_size": model.decoder_size,
            "head_in_index": -1,
        }
        stages = [block + 1 for block in blocks]
        backbone = {
            **values,
            "model_type": "dinov2",
            "out_indices": stages,
            "out_features": [f"{_STAGE}{stage}" for stage in stages],
            "apply_layernorm": model.encoder.final_norm,
            "reshape_hidden_states": False,
        }
        if name == _ANYTHING:
            is_metric = model.quantity == "metric"
            return {
                "architectures": ["DepthAnythingForDepthEstimation"],
                "model_type": _ANYTHING,
                **kept,
                "backbone_config": backbone,
                "patch_size": values["patch_size"],
                "reassemble_hidden_size": model.encoder.hidden_size,
                **options,
                "head_hidden_size": model.head_size,
                "depth_estimation_type": "metric" if is_metric else "relative",
                "max_depth": int(model.max_depth) if is_metric else 1,
            }
        dpt = {
            "architectures": ["DPTForDepthEstimation"],
            "model_type": "dpt",
            **kept,
            **options,
            "readout_type": model.readout,
            "use_batch_norm_in_fusion_residual": model.head_norm == "batch",
            "use_bias_in_fusion_residual": model.head_norm is None,
            "add_projection": False,
            "is_hybrid": False,
        }
        if name == _DPT:
            return {**values, **dpt, "backbone_out_indices": [*blocks]}
        return {
            **dpt,
            "hidden_act": hub_config.written_activation(model.readout_activation),
            "backbone_config": backbone,
        }


def _check(config, **supported):
    """Raise ValueError unless each field has one of its values, of which the first is the default."""
    for name, values in supported.items():
        if config.get(name, values[0]) not in values:
            expected = " or ".join(map(repr, values))
            raise ValueError(f"{CONFIG}: {name} must be {expected}; got {config[name]!r}")


def _blocks(config):
    """The numbers of the blocks that config.json says are read, from 0.

    Like transformers, it takes them by increasing numbers, in whatever order they are stated.
    """
    backbone = config.get("backbone_config")
    if not backbone:
        stages, first, count = config.get("backbone_out_indices", _DPT_BLOCKS), 0, 0
    else:
        # Stage 0 is the embeddings, and the last stage is the output of the last block.
        stages, first, count = backbone.get("out_indices"), 1, backbone.get("num_hidden_layers", 12) + 1
        if stages is None and (names := backbone.get("out_features")):
            numbers = [str(name).removeprefix(_STAGE) for name in names]
            stages = [int(text) if text.isdecimal() else text for text in numbers]
    field = f"{CONFIG}: the blocks that are read"
    items(integer(), LEVELS).check(field, stages)
    stages = sorted({stage + count if stage < 0 else stage for stage in stages})
    items(integer(at_least=first), LEVELS).check(field, stages)
    return tuple(stage - first for stage in stages)


ADDITIONS = HuggingFaceAdditions({"dpt_depth_estimator": DptForm()}, _PROCESSORS, _OTHER_FAMILIES)
