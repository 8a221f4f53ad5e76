"""The config.json and preprocessor_config.json of transformers, read and written."""

import numpy as np

from keras_vit.preprocessing import Preprocessing, is_float32
from keras_vit.rules import integer, number
from keras_vit.tasks import huggingface_additions
from keras_vit.weights import pretraining
from keras_vit.weights.catalogue import NORMS
from keras_vit.weights.json_files import read_json
from keras_vit.weights.layouts import hub_config
from keras_vit.weights.layouts.additions import merged
from keras_vit.weights.layouts.hub_config import CONFIG, INTERPOLATIONS, PREPROCESSOR
from keras_vit.weights.layouts.huggingface_type_table import TOWERS, TYPES
from keras_vit.weights.layouts.huggingface_types import IMAGENET, PACKED, VIT_PROCESSOR
from keras_vit.weights.metadata import checked_options

FILES = (CONFIG, PREPROCESSOR)
PROCESSOR = "processor_config.json"
_CLIP_COLORS = dict(zip(("image_mean", "image_std"), NORMS["clip"]))
_CROP = {**VIT_PROCESSOR, "resample": 3, "do_center_crop": True}
_CLIP = {**_CROP, **_CLIP_COLORS, "size": {"shortest_edge": 224}}
_OWL = {**VIT_PROCESSOR, **_CLIP_COLORS, "do_pad": False}
_NAFLEX = "siglip2"
# The defaults of image processors, by what the names of their classes begin with.
PROCESSORS = {
    **merged(huggingface_additions(), "processors"),
    "deit": {**_CROP, "size": 256},
    "clip": _CLIP,
    "bit": _CLIP,
    **dict.fromkeys(("dinov3", "eomt"), {**VIT_PROCESSOR, **IMAGENET}),
    _NAFLEX: {**VIT_PROCESSOR, "patch_size": 16},
    "owlvit": {**_OWL, "resample": 3, "size": 768},
    "owlv2": {**_OWL, "do_pad": True, "size": 960},
    **dict.fromkeys(("siglip", "beit"), {**VIT_PROCESSOR, "resample": 3}),
}
_SWITCHES = ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
_PADDED = "owlv2"  # whose processor pads images to squares
_OF_SIZE = ("size", "do_center_crop", "crop_size")
_COLORS = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", "resample")
# Images are RGB, labels are not read, models with a palette apply it, and keypoints have parts of images.
_WITHOUT_EFFECT = ("do_convert_rgb", "do_reduce_labels", "do_color_quantize", "do_affine_transform")


def read(folder):
    """The options in config.json and preprocessor_config.json, for `Layout.read_config`."""
    config = read_json(folder / CONFIG)
    model_type, model = _described(config)
    if (pooler := model.get("pooler_act", "tanh")) != "tanh":
        raise ValueError(f"{CONFIG}: pooler_act must be 'tanh'; got {pooler!r}")
    options = options_of(model_type, model)
    architecture = "".join(config.get("architectures") or ())
    has_classifier = "ForImageClassification" in architecture
    if learned_from := pretraining.of_type(model_type.name, has_classifier):
        options["pretraining"] = learned_from
    if model_type.name == "deit" and architecture:
        options["distillation"] = architecture.endswith("WithTeacher")
    if has_classifier or model_type.segments:
        names = hub_config.numbered_names(config.get("id2label") or {}, "id2label")
        if names and not model_type.segments:
            options["num_classes"] = len(names)
        if not hub_config.are_placeholders(names):
            options["class_names"] = names
        options |= hub_config.task_options(config)
    file, processor = _stored_processor(folder)
    if processor is not None:
        checked = checked_options(options, CONFIG)
        try:
            preparation = _image_processor(processor, model_type, checked)
        except ValueError as error:
            raise ValueError(str(error).replace(PREPROCESSOR, file)) from None
        resize = preparation.get("resize", "squash")
        options["preprocessing"] = {**preparation, **hub_config.resizing_options(config, resize)}
    elif model_type.images is not None:
        options["preprocessing"] = default_preprocessing(model_type)
    return options


def _stored_processor(folder):
    """The name of the file with the image processor, and its values; None without such a file.

    transformers 5 stores the image processor of a model with a tokenizer inside of another file, which it
    reads first.
    """
    processor = read_json(folder / PROCESSOR, {}).get("image_processor")
    if processor is None and (folder / PREPROCESSOR).is_file():
        return PREPROCESSOR, read_json(folder / PREPROCESSOR)
    return PROCESSOR, processor


def default_preprocessing(kind):
    """The options of `Preprocessing` for a `ModelType` with `images`, if no file has others."""
    return {**_image_processor(kind.images, kind, {}), "antialias": True}


def options_of(kind, model):
    """The options of a `ModelType` in its configuration, a dict; missing ones have the type's defaults."""
    model = {**kind.defaults, **model}
    options = {ours: model[theirs] for theirs, ours in kind.options.items() if theirs in model}
    options["position_interpolation"] = kind.interpolation
    return options | {name: function(model) for name, function in kind.read.items()}


def _described(config):
    """The `ModelType` in config.json, and the values of its configuration."""
    name, model = config.get("model_type"), config
    if tower := TOWERS.get(name):
        # Of the two, transformers ignores the second.
        model = config.get("vision_config_dict") or config.get("vision_config") or {}
        name = model.get("model_type", tower)
        if name != tower:
            raise ValueError(f"{CONFIG} has a {name!r} image tower; expected {tower!r}")
    if name in TYPES and TYPES[name].described:
        return TYPES[name].described(config)
    if name not in TYPES:
        known = " or ".join(map(repr, (*TYPES, *TOWERS)))
        raise ValueError(f"{CONFIG} describes a {name!r} model; expected transformers' {known}")
    return TYPES[name], model


def palette(folder):
    """The palette in preprocessor_config.json as a dict of one array; empty without a palette."""
    clusters = read_json(folder / PREPROCESSOR, {}).get("clusters")
    if clusters is None:
        return {}
    try:
        colors = np.asarray(clusters, "float32")
    except (TypeError, ValueError):
        colors = np.zeros(0)
    if colors.ndim != 2:
        raise ValueError(f"{PREPROCESSOR}: clusters must be rows of numbers, one for each color")
    return {"patch_embedding/palette": colors}


def written(config, kind):
    """The values in `FILES`, for a model with this `get_config()` as a `ModelType`."""
    names = config["class_names"] or [f"LABEL_{i}" for i in range(config["num_classes"] or 0)]
    architecture = f"{kind.classifier}{'WithTeacher' * config['distillation']}"
    size, preprocessing = hub_config.stored_image_size(config), config["preprocessing"]
    packs = kind.name == PACKED
    model = {
        "architectures": [architecture if config["num_classes"] else kind.model],
        "model_type": kind.name,
        **{theirs: config[ours] for theirs, ours in kind.options.items()},
        "hidden_act": hub_config.written_activation(config.get("segmentation", config)["activation"]),
        **({} if packs else {"image_size": size[0] if size[0] == size[1] else list(size)}),
        "patch_size": config["patch_size"][0],
        **{theirs: ours(config) if callable(ours) else config[ours] for theirs, ours in kind.written.items()},
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        **hub_config.task_entry(config),
        **hub_config.resizing_entry(preprocessing),
    }
    images = {
        "image_processor_type": kind.processor,
        **VIT_PROCESSOR,
        "resample": next(n for n, name in INTERPOLATIONS.items() if name == preprocessing["interpolation"]),
        "image_mean": list(preprocessing["mean"]),
        "image_std": list(preprocessing["std"]),
    }
    if kind.head == "words":
        images["do_pad"] = preprocessing["resize"] == "pad"
    if packs:
        images = {name: value for name, value in images.items() if name not in _OF_SIZE}
        images |= {"patch_size": config["patch_size"][0], "max_num_patches": config["max_num_patches"]}
    else:
        crop = preprocessing["resize"] == "crop"
        before_crop = Preprocessing(**{**preprocessing, "image_size": size}).before_crop
        pixels = {"height": size[0], "width": size[1]}
        images["size"] = {"shortest_edge": min(before_crop)} if crop else pixels
        images |= {"crop_size": pixels, "do_center_crop": crop}
    if "clusters" in config:
        images["clusters"] = config["clusters"].tolist()
    return [model, images]


def _image_processor(stored, kind, options):
    """The options of `Preprocessing` in preprocessor_config.json.

    A square `size` before a crop is read as the shortest edge, to which DeiT's authors resize; transformers
    squashes the image to the square. Processors of DINOv2 crop 224 pixels for models of 518: of a model for
    any size only the fraction is read that the crop keeps. The processor of SigLIP 2 (NaFlex) chooses a grid
    of patches for each image, and squashes it to that; a model of one size squashes all images to its own.

    Args:
        stored: The file's values; missing ones have the defaults of transformers' class.
        kind: `ModelType` of the model.
        options: dict of the model's options in their normal forms; `image_size`, `patch_size` and
            `in_channels` are read, if they are known.

    Source: `_preprocess` of transformers' `image_processing_backends.py`.
    """
    processor = stored.get("image_processor_type") or stored.get("feature_extractor_type") or kind.processor
    begins = next((begin for begin in PROCESSORS if processor.lower().startswith(begin)), None)
    if begins == _NAFLEX:
        if not kind.processor.lower().startswith(_NAFLEX):
            raise ValueError(f"{PREPROCESSOR}: a {processor} makes images of varying sizes (NaFlex)")
        stored = {name: value for name, value in stored.items() if name != "size"}
    if kind.segments:  # which cuts or pads images to the model's size
        stored = {name: value for name, value in stored.items() if name in _COLORS}
    values = {**PROCESSORS.get(begins, VIT_PROCESSOR), **stored}
    _check_switches(values, begins)
    patch_size = options.get("patch_size")
    if begins == _NAFLEX and patch_size:
        _check(
            (values["patch_size"],) * 2 == patch_size, values, "patch_size", f"the model's {patch_size[0]}"
        )
    image_size = None if kind.any_size else options.get("image_size")
    return {**_colors(values, options.get("in_channels", 3)), **_placement(values, image_size)}


def _check(is_known, values, name, expected):
    if not is_known:
        raise ValueError(f"{PREPROCESSOR}: {name} must be {expected}; got {values[name]!r}")


def _check_switches(values, begins):
    """Refuse steps of an image processor that are not known; `begins` is the key of `PROCESSORS`."""
    for name, value in values.items():
        if name in _SWITCHES or (name == "do_pad" and begins == _PADDED):
            _check(value in (True, False, None), values, name, "true or false")  # null means false
        elif name.startswith("do_") and name not in _WITHOUT_EFFECT:
            _check(not value, values, name, "false")
    _check(values["do_resize"], values, "do_resize", "true: images are resized to the model's size")
    is_null = values.get("crop_pct") is None
    _check(is_null, values, "crop_pct", "null: size and crop_size have the fraction")


def _colors(values, channels):
    """The kernel that resizes images, and their mean and standard deviation."""
    names = ", ".join(f"{number} ({name})" for number, name in INTERPOLATIONS.items())
    _check(values["resample"] in INTERPOLATIONS, values, "resample", f"one of {names}")
    factor = values["rescale_factor"] if values["do_rescale"] else 1.0
    is_factor = is_float32(factor) and factor > 0
    _check(is_factor, values, "rescale_factor", "a positive number that float32 can represent")
    mean, std = 0.0, 1.0
    if values["do_normalize"]:
        mean, std = values["image_mean"], values["image_std"]
    mean, std = ((v,) * channels if number().accepts(v) else v for v in (mean, std))
    # `Preprocessing` normalizes pixels in [0, 1].
    return {
        "mean": tuple(m / (255 * factor) for m in mean),
        "std": tuple(s / (255 * factor) for s in std),
        "interpolation": INTERPOLATIONS[values["resample"]],
    }


def _placement(values, image_size):
    """How an image is placed in the model's (height, width), or for None in that of the file."""
    size, models = _size(values["size"]), "height and width"
    if image_size is not None:
        models = f"{image_size[0]}×{image_size[1]}"
    if not values["do_center_crop"]:
        fits = len(size) == 2 and image_size in (None, size)
        _check(fits, values, "size", f"the model's {models} because there is no center crop")
        return {"resize": "pad"} if values.get("do_pad") else {}
    crop = _size(values["crop_size"])
    fits = len(crop) == 2 and image_size in (None, crop) and crop[0] == crop[1]
    _check(fits, values, "crop_size", f"the model's {models}, if that is a square")
    is_larger = len({*size}) == 1 and size[0] >= crop[0]
    _check(is_larger, values, "size", f"one edge of at least {crop[0]} to crop from")
    return {"resize": "crop", "crop_fraction": crop[0] / size[0]}


def _size(size):
    """A size in one of transformers' forms as (height, width) or (shortest edge,); () for another form."""
    if isinstance(size, dict):
        size = {name: value for name, value in size.items() if value is not None}
        forms = (("height", "width"), ("shortest_edge",))
        size = next(([size[name] for name in names] for names in forms if {*names} == {*size}), ())
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    return size if all(map(integer(at_least=1).accepts, size)) else ()
