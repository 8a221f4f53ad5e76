"""The page that documents an archive, as TF Hub's look: text made of a `Description` and of `Facts`.

What neither of them knows is left out.
"""

import math
import re
import typing

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit.export.hub_usage import fine_tuning, usage
from keras_vit.export.markdown import code, plain
from keras_vit.variants import cost, variant_of


class Kind(typing.NamedTuple):
    tag: str  # of tfhub.dev
    slug: str  # of the variation on Kaggle
    words: str
    output: str  # what comes out, with its size


KINDS = {
    "single_label": Kind(
        "image-classification",
        "classification",
        "image classification",
        "`logits` of {} classes; a softmax makes probabilities of them.",
    ),
    "multi_label": Kind(
        "image-classification",
        "multi-label-classification",
        "multi-label image classification",
        "`logits` of {} classes; a sigmoid makes probabilities of them.",
    ),
    "regression": Kind("image-others", "regression", "regression", "`values`: {} numbers."),
    None: Kind(
        "image-feature-vector",
        "feature-vector",
        "feature vectors of images",
        "`representation`: {} numbers, to build a head on.",
    ),
}
LICENCES = {  # that have a tag on tfhub.dev, by their SPDX names in small letters; others are "custom"
    *("apache-2.0", "bsd-2-clause", "bsd-3-clause", "gpl-2.0", "gpl-3.0", "lgpl-2.1", "lgpl-3.0", "mit"),
    *("mpl-2.0", "epl-2.0", "cc-by-nc-4.0"),
}
DATASETS = {  # in words, and their tags on tfhub.dev
    "imagenet-21k": "imagenet-21k",
    "imagenet-1k": "imagenet-ilsvrc-2012-cls",
    "cifar-10": "cifar-10",
    "cifar-100": "cifar-100",
}
SHOWN = 20  # class names on the page


def page(description, facts, inside, handle):
    """The documentation page in TF Hub's form.

    Args:
        description: `Description` of the SavedModel.
        facts: `keras_vit.export.hub.Facts`.
        inside: `Contents` of the SavedModel.
        handle: "PUBLISHER/NAME/VERSION".

    Returns:
        str, Markdown.

    Example:
        >>> from keras_vit.export.description import describe
        >>> from keras_vit.export.hub import Facts
        >>> page(describe(model), Facts(), Contents({}, 0), "me/vit/1").splitlines()[0]
        '# Module me/vit/1'

    Source: README and tools/validator.py of github.com/tensorflow/tfhub.dev.
    """
    lines = [
        f"# Module {handle}",
        summary(description),
        "",
        *(f"<!-- {key}: {value} -->" for key, value in _tags(description, facts, inside)),
        "",
        card(description, facts, inside, facts.url or handle.split("/")[1]),
    ]
    return "\n".join(lines)


def kind_of(description):
    """The key of `KINDS`: the task, None without a head."""
    return None if description.num_classes is None else description.task


def summary(description):
    """What the model is, in one sentence."""
    name = variant_of(description.architecture)
    words = KINDS[kind_of(description)].words
    return f"Vision Transformer{f' {name}' if name else ''} for {words}, from images of {_size(description)}."


def _size(description):
    return "any size" if None in description.image_size else _pixels(description.image_size)


def _pixels(size):
    return f"{size[0]} × {size[1]} pixels"


def _tags(description, facts, inside):
    if facts.url:
        yield "asset-path", facts.url
    yield "task", KINDS[kind_of(description)].tag
    yield "fine-tunable", "true" if inside.trainable else "false"
    yield "format", "saved_model_2"
    yield "network-architecture", "vit"
    for name, tag in DATASETS.items():
        if re.search(rf"{name}\b", facts.trained_on or "", re.IGNORECASE):
            yield "dataset", tag
    if facts.licence:
        licence = facts.licence.lower()
        yield "license", licence if licence in LICENCES else "custom"


def card(description, facts, inside, where):
    """The page's sections, which are also Kaggle's model card.

    Args:
        description, facts, inside: As for `page`.
        where: Address of the archive, or folder of the SavedModel, in the snippets.

    Returns:
        str, Markdown.
    """
    sections = {
        "Overview": _table(("", ""), _overview(description, facts)),
        "Input": _input(description),
        "Output": _output(description, inside.signatures),
        "Usage": usage(description, where),
        "Fine-tuning": fine_tuning(description, where, inside.trainable),
        "Training": _paragraphs(
            facts.trained_on and f"Trained on {plain(facts.trained_on)}.",
            facts.source and f"From {plain(facts.source)}.",
        ),
        "Licence": _paragraphs(facts.licence and plain(facts.licence)),
    }
    return "\n".join(f"## {title}\n\n{text}" for title, text in sections.items() if text)


def _table(titles, rows):
    lines = (titles, ["---"] * len(titles), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _paragraphs(*texts):
    return "\n".join(f"{text}\n" for text in texts if text)


def _overview(description, facts):
    """(name, value) of what is known."""
    c, flops = description.architecture, _flops(description)
    stem = "" if c["resnet"] is None else f"ResNet stem of {c['resnet']} units, "
    blocks = f"{c['num_layers']} blocks of {c['num_heads']} heads, " if c["num_layers"] else ""
    patch = " × ".join(map(str, c["patch_size"]))
    yield (
        "Architecture",
        f"{stem}patches of {patch}, {blocks}width {c['hidden_size']}, pooling {c['pooling']}",
    )
    if name := variant_of(c):
        yield "Variant", name
    yield "Parameters", f"{description.parameters:,}"
    if flops:
        yield "GFLOPs an image (multiplications and additions)", f"{flops / 1e9:.3g}"
    yield "Images", _size(description)
    if description.labels:
        yield "Classes", f"{description.num_classes:,}"
    for m in facts.accuracy:
        size = f" of {_pixels(m.image_size)}" if m.image_size else ""
        yield plain(f"{m.metric} on {m.dataset}, {m.split}, {m.images:,} images{size}"), f"{m.value:.4g}"
    yield "Exported by", f"keras_vit {description.version}"


def _input(description):
    d = description
    size = ("height", "width") if None in d.image_size else d.image_size
    side = "the size" if d.crop_fraction == 1 else f"1/{d.crop_fraction:g} of the size"
    way = {"squash": "straight to this size", "crop": f"the shorter side to {side}, then the centre cut out"}
    return _paragraphs(
        f"`images`: float32, shape (batch, {size[0]}, {size[1]}, {d.channels}), any batch, "
        "**values in [0, 1]**: pixels divided by 255. The network's own normalisation is part of the model.",
        None not in d.image_size
        and f"Resize others: {way[d.resize]}, {d.interpolation}, {'with' if d.antialias else 'without'} "
        "antialiasing.",
    )


def _output(description, signatures):
    names = [code(name) for name in description.class_names or ()]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    what = KINDS[kind_of(description)].output.format(f"{description.num_outputs:,}")
    labels = f": {', '.join(names[:SHOWN])}{more}." if names else "; only their numbers are known."
    rows = [
        (f"`{name}`", _tensors(inputs), _tensors(outputs)) for name, (inputs, outputs) in signatures.items()
    ]
    return _paragraphs(
        f"Called, the model gives {what}",
        description.labels
        and f"`assets/labels.txt` names the classes, one a line, in the order of the logits{labels}",
        rows and _table(("Signature", "Inputs", "Outputs"), rows).rstrip("\n"),
    )


def _tensors(tensors):
    return ", ".join(f"`{name}` {dtype} {shape}" for name, (dtype, shape) in tensors.items())


# What can be worked out --------------------------------------------------------------------------


def _flops(description):
    """Of one image, where `cost` knows this very model: it counts the same parameters then."""
    c, (height, width) = description.architecture, description.image_size
    name = variant_of(c)
    if name is None or height is None or height != width or c["pooling"] not in ("token", "gap"):
        return None
    counted = cost(name, height, c["num_classes"], c["pooling"])
    return counted["flops"] if counted["parameters"] == description.parameters else None


class Contents(typing.NamedTuple):
    """What is in a SavedModel besides its description.

    Args:
        signatures: dict of names to (inputs, outputs), each a dict of names to (type, shape).
        trainable: How many of its parameters can be trained.
    """

    signatures: dict
    trainable: int


def read_contents(saved_model):
    """The `Contents` of a SavedModel, read without loading it.

    Args:
        saved_model: pathlib.Path of its folder.

    Example:
        >>> inside = read_contents(export_saved_model(model, "read/1"))
        >>> inside.signatures["serving_default"][0]
        {'images': ('float32', '(batch, 32, 32, 3)')}
    """
    content = saved_model_pb2.SavedModel.FromString((saved_model / "saved_model.pb").read_bytes())
    (graph,) = content.meta_graphs
    return Contents(_signatures(graph.signature_def), _trainable(graph.object_graph_def.nodes))


def _signatures(definitions):
    def tensors(infos):
        return {
            name: (tf.as_dtype(info.dtype).name, _shape(_sizes(info.tensor_shape)))
            for name, info in sorted(infos.items())
        }

    return {
        name: (tensors(signature.inputs), tensors(signature.outputs))
        for name, signature in sorted(definitions.items())
        if not name.startswith("__")  # TensorFlow's own
    }


def _trainable(nodes):
    """Numbers in the variables of the root's list `trainable_variables`: node 0 is the root."""
    lists = [child.node_id for child in nodes[0].children if child.local_name == "trainable_variables"]
    variables = {child.node_id for node in lists for child in nodes[node].children}
    return sum(math.prod(_sizes(nodes[node].variable.shape)) for node in variables)


def _sizes(shape):
    return [dim.size for dim in shape.dim]


def _shape(sizes):
    names = ["batch" if i == 0 else "any" for i in range(len(sizes))]
    known = [str(size) if size >= 0 else name for size, name in zip(sizes, names)]
    return f"({', '.join(known)}{',' * (len(known) == 1)})"
