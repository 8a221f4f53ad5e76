"""The model card of an archive for TF Hub and Kaggle: what a `Description` and `Facts` contain, no more."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING

from keras_vit.export.outputs import outputs_of
from keras_vit.messages import listed, printable
from keras_vit.tasks import get_task
from keras_vit.variants import variant_of

if TYPE_CHECKING:
    from keras_vit.export.description import Description
    from keras_vit.export.hub import Facts

SHOWN = 20  # class names on the card


def model_card(description: Description, facts: Facts, where: str) -> str:
    """The card in Markdown, without a title.

    Args:
        description: `Description` of the SavedModel.
        facts: `keras_vit.export.Facts`.
        where: URL of the archive, or folder of the SavedModel, in the programs.

    Returns:
        str.

    Example:
        >>> from keras_vit.export.description import describe
        >>> from keras_vit.export.hub import Facts
        >>> model_card(describe(model), Facts(), "vit").splitlines()[0]
        'Vision Transformer for image classification, from images of 32 × 32 pixels.'
    """
    d, c = description, description.architecture
    stem = f"ResNet stem of {c['resnet']} units, " if c["resnet"] is not None else ""
    blocks = f"{c['num_layers']} blocks of {c['num_heads']} heads, " if c["num_layers"] else ""
    patch = " × ".join(map(str, c["patch_size"]))
    head = outputs_of(d).head_words
    rows = {
        "Architecture": f"{stem}patches of {patch}, {blocks}width {c['hidden_size']}, {head}",
        "Parameters": f"{d.parameters:,}",
    }
    if d.labels:
        rows["Classes"] = f"{d.num_classes:,}"
    for m in facts.accuracy:
        size = f" of {_pixels(m.image_size)}" if m.image_size else ""
        rows[plain(f"{m.metric} on {m.dataset}, {m.split}, {m.images:,} images{size}")] = f"{m.value:.4g}"
    provenance = {"Trained on": facts.trained_on, "Source": facts.source, "License": facts.license}
    rows |= {name: plain(text) for name, text in provenance.items() if text}
    rows["Exported by"] = f"keras_vit {d.version}"
    table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    return f"""\
{summary(d)}

| | |
|---|---|
{table}
## Input

{_input(d)}

## Output

{_output(d)}

## Usage

{usage(d, where)}"""


def summary(description: Description) -> str:
    """The model in one sentence."""
    name = variant_of(description.architecture)
    task = "feature vectors of images"
    if description.num_classes is not None:
        task = get_task(description.task).title
    size = "any size" if None in description.image_size else _pixels(description.image_size)
    return f"Vision Transformer{f' {name}' if name else ''} for {task}, from images of {size}."


def usage(description: Description, where: str) -> str:
    """Two programs, each complete: for TensorFlow, and for Keras 3.

    Args:
        description, where: As for `model_card`.
    """
    images = f"np.zeros({(1, *description.native_image_size, description.channels)}, 'float32')"
    handle = json.dumps(where, ensure_ascii=False)
    trust = ", trust=True" if "://" in where else ""  # A SavedModel is a program.
    return f"""\
```python
import numpy as np
import tensorflow_hub as hub

model = hub.load({handle})
{description.output} = model({images})
```

In `tf_keras`, `hub.KerasLayer` takes the same handle; in Keras 3, keras_vit's `SavedModelLayer` does:

```python
import numpy as np
from keras_vit.export import SavedModelLayer

layer = SavedModelLayer({handle}, trainable=True{trust})
{description.output} = layer({images})
```
"""


def plain(text: str) -> str:
    """A line of text that Markdown and HTML display as it is.

    >>> print(plain("<b>5 * 3</b> | `x`"))
    &lt;b&gt;5 \\* 3&lt;/b&gt; \\| \\`x\\`
    """
    # An underscore between letters or digits, as in "vit_s16", is displayed without a backslash, too.
    special = r"([\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_]))"
    return re.sub(special, r"\\\1", html.escape(printable(text), quote=False))


def _pixels(size: tuple[int | None, int | None]) -> str:
    return f"{size[0]} × {size[1]} pixels"


def _input(description: Description) -> str:
    d = description
    any_size = None in d.image_size
    height, width = ("height", "width") if any_size else d.image_size
    text = (
        f"`images`: float32, shape (batch, {height}, {width}, {d.channels}), **values in [0, 1]**: pixels "
        "divided by 255. The normalization is part of the model."
    )
    if any_size:
        return text
    if resizing := outputs_of(d).resizing:
        return f"{text} {resizing}"
    scale = "" if d.crop_fraction == 1 else f"{1 / d.crop_fraction:.4g} times "
    resizes = {
        "squash": "straight to this size",
        "crop": f"the shorter side to {scale}the size, then crop the center",
        "squash_crop": f"straight to {scale}this size, then crop the center",
        "pad": "to this size, after padding with black at the right or bottom to its aspect ratio",
    }
    antialiasing = f"{'with' if d.antialias else 'without'} antialiasing"
    return f"{text} Resize images {resizes[d.resize]}, {d.interpolation}, {antialiasing}."


def _output(description: Description) -> str:
    text = outputs_of(description).words
    names = [plain(name) for name in description.class_names or ()]
    return f"{text} They are: {listed(names, SHOWN)}." if names else text
