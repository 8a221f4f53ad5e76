"""The model card of an archive for TF Hub and Kaggle: what a `Description` and `Facts` contain, no more."""

import html
import json
import re

from keras_vit.messages import listed, printable
from keras_vit.tasks import get_task
from keras_vit.variants import variant_of

SHOWN = 20  # class names on the card


def model_card(description, facts, where, trainable):
    """The card in Markdown, without a title.

    Args:
        description: `Description` of the SavedModel.
        facts: `keras_vit.export.Facts`.
        where: URL of the archive, or folder of the SavedModel, in the programs.
        trainable: Whether any of its variables can be trained.

    Returns:
        str.

    Example:
        >>> from keras_vit.export.description import describe
        >>> from keras_vit.export.hub import Facts
        >>> model_card(describe(model), Facts(), "vit", True).splitlines()[0]
        'Vision Transformer for image classification, from images of 32 × 32 pixels.'
    """
    rows = "".join(f"| {name} | {value} |\n" for name, value in _overview(description, facts))
    sections = {
        "Input": _input(description),
        "Output": _output(description),
        "Usage": usage(description, where, trainable),
        "Training": _sentences(
            facts.trained_on and f"Trained on {plain(facts.trained_on)}.",
            facts.source and f"From {plain(facts.source)}.",
        ),
        "Licence": facts.licence and plain(facts.licence),
    }
    text = f"{summary(description)}\n\n| | |\n|---|---|\n{rows}"
    return text + "".join(f"\n## {title}\n\n{body.strip()}\n" for title, body in sections.items() if body)


def summary(description):
    """The model in one sentence."""
    name = variant_of(description.architecture)
    task = "feature vectors of images"
    if description.num_classes is not None:
        task = get_task(description.task).title
    size = "any size" if None in description.image_size else _pixels(description.image_size)
    return f"Vision Transformer{f' {name}' if name else ''} for {task}, from images of {size}."


def usage(description, where, trainable):
    """Two programs, each complete: for TensorFlow, and for fine-tuning in Keras 3.

    Args:
        description, where, trainable: As for `model_card`.
    """
    height, width = description.usual_size
    shape, handle = (height, width, description.channels), json.dumps(where, ensure_ascii=False)
    trust = ", trust=True" if "://" in where else ""  # A SavedModel is a program.
    pool = "keras.layers.GlobalAveragePooling1D(), " if description.architecture["pooling"] is None else ""
    train = (
        f"""\
model.compile(
    keras.optimizers.SGD(0.003, momentum=0.9, global_clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(np.zeros({(8, *shape)}, "float32"), np.zeros(8, "int64"))  # your images and labels
"""
        if trainable
        else ""
    )
    return f"""\
```python
import tensorflow as tf
import tensorflow_hub as hub

model = hub.load({handle})
{description.output} = model(tf.zeros({(1, *shape)}))
```

In `tf_keras`, `hub.KerasLayer` takes the same handle; in Keras 3, keras_vit's `SavedModelLayer` does:

```python
import keras
import numpy as np
from keras_vit.export import SavedModelLayer

layer = SavedModelLayer({handle}, trainable={trainable}{trust})
model = keras.Sequential([keras.Input({shape}), layer, {pool}keras.layers.Dense(5)])
{train}```
"""


def plain(text):
    """A line of text that Markdown and HTML display as it is.

    >>> print(plain("<b>5 * 3</b> | `x`"))
    &lt;b&gt;5 \\* 3&lt;/b&gt; \\| \\`x\\`
    """
    return re.sub(r"([\\`*\[\]|])", r"\\\1", html.escape(printable(text), quote=False))


def _pixels(size):
    return f"{size[0]} × {size[1]} pixels"


def _sentences(*sentences):
    return " ".join(filter(None, sentences))


def _overview(description, facts):
    c = description.architecture
    stem = "" if c["resnet"] is None else f"ResNet stem of {c['resnet']} units, "
    blocks = f"{c['num_layers']} blocks of {c['num_heads']} heads, " if c["num_layers"] else ""
    patch = " × ".join(map(str, c["patch_size"]))
    yield (
        "Architecture",
        f"{stem}patches of {patch}, {blocks}width {c['hidden_size']}, pooling {c['pooling']}",
    )
    yield "Parameters", f"{description.parameters:,}"
    if description.labels:
        yield "Classes", f"{description.num_classes:,}"
    for m in facts.accuracy:
        size = f" of {_pixels(m.image_size)}" if m.image_size else ""
        yield plain(f"{m.metric} on {m.dataset}, {m.split}, {m.images:,} images{size}"), f"{m.value:.4g}"
    yield "Exported by", f"keras_vit {description.version}"


def _input(description):
    d = description
    any_size = None in d.image_size
    height, width = ("height", "width") if any_size else d.image_size
    scale = "" if d.crop_fraction == 1 else f"{1 / d.crop_fraction:.4g} times "
    crop = f"the shorter side to {scale}the size, then crop the center"
    resize = "straight to this size" if d.resize == "squash" else crop
    antialiasing = f"{'with' if d.antialias else 'without'} antialiasing"
    return _sentences(
        f"`images`: float32, shape (batch, {height}, {width}, {d.channels}), **values in [0, 1]**: pixels "
        "divided by 255. The normalisation is part of the model.",
        not any_size and f"Resize images {resize}, {d.interpolation}, {antialiasing}.",
    )


def _output(description):
    count = f"{description.num_outputs:,}"
    if description.output != "logits":
        return f"`{description.output}`: {count} numbers."
    activation = get_task(description.task).activation
    names = [plain(name) for name in description.class_names or ()]
    return _sentences(
        f"`logits` of {count} classes; {activation} turns them into probabilities.",
        "`assets/labels.txt` names the classes in this order, one a line.",
        names and f"They are: {listed(names, SHOWN)}.",
    )
