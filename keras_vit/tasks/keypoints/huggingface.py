"""The models of transformers for keypoints: ViTPose, and ViTPose+ with one of its experts.

Sources: the modules `vitpose` and `vitpose_backbone` of transformers 5.23.
"""

from __future__ import annotations

import pathlib
import re
import shutil

import numpy as np

from keras_vit.rules import integer, number, one_of
from keras_vit.tasks.keypoints.model import HEADS, SCALE
from keras_vit.tasks.keypoints.names import mirrored_by_name
from keras_vit.types import Path
from keras_vit.weights.array_files import read_arrays, write_arrays
from keras_vit.weights.json_files import read_json
from keras_vit.weights.layouts.additions import HuggingFaceAdditions
from keras_vit.weights.layouts.hub_config import CONFIG, PREPROCESSOR, as_text
from keras_vit.weights.layouts.huggingface_types import IMAGENET, USAGE, VIT, VIT_BLOCK, VIT_PROCESSOR
from keras_vit.weights.layouts.layout import COMMON, HeadOptions, ModelForm, other_values
from keras_vit.weights.layouts.table import CONV, Row, torch_rows
from keras_vit.writing import atomic_path

DECODER_WIDTH, PADDING, SIZE = 256, 2, (256, 192)  # constants of theirs, and the default size of its images
HEAD = "keypoint_head"  # until it is known that it is no head of a classifier
_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_TABLE = "position_embedding/table"
_LAST = re.compile(r"(backbone\.(?:encoder\.layer|blocks)\.\d+\.mlp\.)fc2\.(weight|bias)")
_NAMES, _OURS = re.compile(r"LABEL_\d+"), "keras_vit"
_MODEL = "VitPoseForPoseEstimation"


def head_rows(last, layers):
    """The rows of the heads.

    Args:
        last: The name of the last convolution.
        layers: The names of each transposed convolution and its norm.
    """
    rows = [Row(f"{HEAD}/kernel", f"{last}.weight", CONV), Row(f"{HEAD}/bias", f"{last}.bias")]
    for i, (deconvolution, norm) in enumerate(layers):
        # Their transposed convolutions have the axes of a convolution in the other direction, like ours.
        rows.append(Row(f"deconvolution_{i}/kernel", f"{deconvolution}.weight", CONV))
        rows += [Row(f"norm_{i}/{our}", f"{norm}.{their}") for our, their in _NORM.items()]
    return rows


def _rows():
    block = {**VIT_BLOCK, "mlp/dense_0": "mlp.fc1", "mlp/dense_1": "mlp.fc2"}
    names = {
        _TABLE: "embeddings.position_embeddings",
        "patch_embedding": "embeddings.patch_embeddings.projection",
        "encoder_norm": "layernorm",
    }
    return (
        *torch_rows(names, theirs="backbone."),
        *torch_rows(block, "encoder_block_{i}/", "backbone.encoder.layer.{i}."),
        *head_rows("head.conv", [(f"head.deconv{i}", f"head.batchnorm{i}") for i in (1, 2)]),
    )


def with_expert(arrays, index):
    """The arrays of ViTPose+, in which the last layers of the MLPs are whole, with those of an expert.

    The experts compute the last channels of these layers, each for the images of another data set.
    """
    whole = dict(arrays)
    for key in arrays:
        if match := _LAST.fullmatch(key):
            expert = f"{match[1]}experts.{index}.{match[2]}"
            if expert in whole:
                whole[key] = np.concatenate([arrays[key], whole.pop(expert)])
    return whole


def _renamed(arrays, keys):
    whole = with_expert(arrays, 0)
    return whole, {key: name for key, name in keys.items() if key in whole}


def _after_reading(mapped):
    """All patches have the first position, too, which is the class token's elsewhere."""
    table = mapped.arrays.get(_TABLE)
    if table is not None and table.ndim == 3:
        mapped.arrays[_TABLE] = table[:, 1:] + table[:, :1]


def _before_writing(arrays, config):
    return {**arrays, _TABLE: np.pad(arrays[_TABLE], ((0, 0), (1, 0), (0, 0)))}


def _mlp_dim(model):
    integer(at_least=1).check(f"{CONFIG}: hidden_size", model["hidden_size"])
    number(above=0).check(f"{CONFIG}: mlp_ratio", model["mlp_ratio"])
    return int(model["hidden_size"] * model["mlp_ratio"])


def _combinations(config):
    ratio = f"mlp_dim={config['mlp_dim']} (supported: multiples of hidden_size={config['hidden_size']})"
    return {ratio: bool(config["mlp_dim"] and config["mlp_dim"] % config["hidden_size"])}


def _described(config):
    """ViTPose and the values of its backbone in config.json."""
    backbone = config.get("backbone_config")
    name = backbone.get("model_type") if isinstance(backbone, dict) else None
    if name != "vitpose_backbone":
        raise ValueError(f"{CONFIG}: expected 'vitpose_backbone' as the backbone; got {name!r}")
    return _VITPOSE, backbone


_VITPOSE = VIT._replace(
    name="vitpose",
    model=_MODEL,
    classifier=None,
    prefix="",
    rows=_rows(),
    mark=r"head\.conv\.weight",
    others=r"head\.batchnorm\d\.num_batches_tracked|backbone\.encoder\.layer\.\d+\.mlp\.experts\.[1-9]\d*\..*",
    options={theirs: ours for theirs, ours in VIT.options.items() if ours != "mlp_dim"},
    defaults={**VIT.defaults, "hidden_size": 768, "image_size": SIZE, "patch_size": 16, "mlp_ratio": 4},
    read={**VIT.read, "mlp_dim": _mlp_dim, "patch_padding": lambda model: PADDING},
    written={
        **{name: value for name, value in VIT.written.items() if not name.startswith("pooler")},
        "mlp_ratio": lambda config: config["mlp_dim"] // config["hidden_size"],
    },
    supported={
        **COMMON,
        "class_token": (False,),
        "qkv_bias": (True, False),
        "pooling": ("gap", None),
        "patch_padding": (PADDING,),
    },
    combinations=_combinations,
    processor="VitPoseImageProcessor",
    images={},
    head="keypoints",
    described=_described,
    renamed=_renamed,
    after_reading=_after_reading,
    before_writing=_before_writing,
    implied=lambda keys, metadata: {"patch_padding": PADDING},
)
MODEL_TYPES = (_VITPOSE,)


class VitPoseForm(ModelForm):
    """How transformers stores a `KeypointEstimator` with a head: "classic" or "simple"."""

    usage = USAGE
    kind = "keypoint_estimator"

    def __init__(self, head):
        super().__init__()
        self.head = head

    def has_head(self, arrays):
        is_classic = "deconvolution_0/kernel" in arrays
        return f"{HEAD}/kernel" in arrays and is_classic == (self.head == "classic")

    def head_options(self, checkpoint, layout, folder):
        arrays, keys = checkpoint.arrays, checkpoint.keys
        for name in [name for name in arrays if name.startswith(HEAD)]:
            path = name.removeprefix("keypoint_")
            arrays[path], keys[path] = arrays.pop(name), keys.pop(name)
        kernel = arrays["head/kernel"]
        options = {"num_classes": kernel.shape[-1], "head": self.head}
        if self.head == "classic":
            options["decoder_width"] = kernel.shape[-2]
        config = read_json(folder / CONFIG, {}) if folder else {}
        if not config:
            return options
        _check_config(config, checkpoint.arguments["num_layers"])
        return {**options, **_points(config, kernel.shape[-1])}

    def adapted(self, model, arrays, config):
        arrays = {f"keypoint_{name}" if name.startswith("head/") else name: x for name, x in arrays.items()}
        return arrays, {**config, "keypoints": HeadOptions(head=model.head)}

    def unsupported(self, model, config):
        expected = {"decoder_width": DECODER_WIDTH} if model.head == "classic" else {}
        return other_values(vars(model), expected)

    def write(self, model, arrays, others):
        # transformers would report that it lacks them, although its default momentum does without.
        counts = [f"head.batchnorm{i}.num_batches_tracked" for i in (1, 2) if self.head == "classic"]
        return {**arrays, **dict.fromkeys(counts, np.zeros((), "float32"))}

    def written_config(self, model, values):
        further = values.pop(_OURS, {})
        by_names = mirrored_by_name(model.class_names) if model.class_names else None
        if model.flip_index not in (None, by_names):
            further["flip_index"] = [*model.flip_index]
        if model.sigmas is not None:
            further["sigmas"] = [*model.sigmas]
        labels = {name: values.pop(name) for name in ("id2label", "label2id")}
        for name in ("architectures", "model_type"):
            values.pop(name)
        size, layers = values["image_size"], model.encoder.num_layers
        backbone = {
            "model_type": "vitpose_backbone",
            **values,
            "image_size": size if isinstance(size, list) else [size, size],
            "patch_size": [*model.encoder.patch_size],
            "num_experts": 1,
            "out_indices": [layers],
            "out_features": [f"stage{layers}"],
        }
        return {
            "architectures": [_MODEL],
            "model_type": "vitpose",
            **({_OURS: further} if further else {}),
            "backbone_config": backbone,
            "use_simple_decoder": model.head == "simple",
            "scale_factor": SCALE,
            **labels,
            "edges": [[*line] for line in model.skeleton or ()],
        }


def _check_config(config, num_layers):
    """Raise ValueError for a configuration of a model that computes something else."""
    backbone = config["backbone_config"]
    stages = backbone.get("out_indices") or [-1]
    if stages[-1:] not in ([num_layers], [-1]):
        raise ValueError(f"{CONFIG}: out_indices must end with the last block, {num_layers}; got {stages}")
    if (factor := config.get("scale_factor", SCALE)) != SCALE:
        raise ValueError(f"{CONFIG}: scale_factor must be {SCALE}; got {factor}")


def _points(config, count):
    """The arguments of a `KeypointEstimator` that tell what its points are."""
    labels, further = config.get("id2label") or {}, config.get(_OURS, {})
    names = [labels.get(str(number)) for number in range(count)]
    if labels and (len(labels) != count or None in names):
        raise ValueError(f"{CONFIG}: id2label must name the {count} points of the head; got {len(labels)}")
    is_named = bool(labels) and not all(map(_NAMES.fullmatch, names))
    names = tuple(names) if is_named else None
    return {
        "class_names": names,
        "flip_index": further.get("flip_index"),
        "skeleton": config.get("edges") or None,
        "sigmas": further.get("sigmas"),
    }


def one_expert(folder: Path, path: Path, dataset_index: int = 0) -> pathlib.Path:
    """Write the ViTPose that a ViTPose+ is with one of its experts.

    An expert computes a part of the channels of each MLP. Those of the published models are, from 0: COCO, AI
    Challenger, MPII, AP-10K, APT-36K and COCO-WholeBody. `from_pretrained` of a ViTPose+ takes the first.

    Args:
        folder: A ViTPose+ as transformers saves it, with config.json and model.safetensors.
        path: The folder to write, which transformers and `from_pretrained` read.
        dataset_index: Number of the expert, from 0.

    Returns:
        pathlib.Path of the folder.

    Raises:
        ValueError: for a model without experts, a number of none of them, or an existing path.

    Example:
        >>> plus = "vitpose-plus-base"  # which `hf download usyd-community/vitpose-plus-base` has written
        >>> one_expert(plus, "animals", dataset_index=3)  # doctest: +SKIP
        PosixPath('animals')

    Source: Xu et al. 2022 (ViTPose++, arXiv 2212.04246); `tools/model_split.py` of ViTAE-Transformer/ViTPose;
    `modeling_vitpose_backbone.py` of transformers, whose `dataset_index` it is.
    """
    folder, path = pathlib.Path(folder), pathlib.Path(path)
    config = read_json(folder / CONFIG)
    _, backbone = _described(config)
    experts = backbone.get("num_experts", 1)
    if experts < 2:
        raise ValueError(f"{folder / CONFIG}: expected a ViTPose+ with several experts; got {experts}")
    one_of(range(experts)).check("dataset_index", dataset_index)
    with atomic_path(path, overwrite=False) as written:
        arrays = with_expert(read_arrays(folder / "model.safetensors"), dataset_index)
        arrays = {key: array for key, array in arrays.items() if ".mlp.experts." not in key}
        written.mkdir()
        config = {**config, "backbone_config": {**backbone, "num_experts": 1}}
        (written / CONFIG).write_text(as_text(config))
        if (folder / PREPROCESSOR).is_file():
            shutil.copyfile(folder / PREPROCESSOR, written / PREPROCESSOR)
        write_arrays(arrays, written / "model.safetensors")
    return path


ADDITIONS = HuggingFaceAdditions(
    {f"{head}_keypoint_estimator": VitPoseForm(head) for head in HEADS},
    {"vitpose": {**VIT_PROCESSOR, **IMAGENET, "size": {"height": SIZE[0], "width": SIZE[1]}}},
)
