"""The programs on the page of a published model: each runs by itself, as it stands there."""

import json

from keras_vit.export.markdown import code


def usage(description, where):
    """Three ways to run it, each a program of its own.

    Args:
        description: `Description`.
        where: Address of the archive, or folder of the SavedModel.
    """
    shape, quoted = _example_shape(description), json.dumps(where, ensure_ascii=False)
    colours = "RGB, " if description.channels == 3 else ""
    unpacked = (
        ""
        if "/" in where or "$" in where
        else f"{code(where)} is the folder with what is in the archive.\n\n"
    )
    return f"""\
{unpacked}With TensorFlow:

```python
import tensorflow as tf
import tensorflow_hub as hub

model = hub.load({quoted})
images = tf.zeros({shape})  # {colours}in [0, 1]
{description.output} = model(images)
```

In a model of Keras 2, which is `tf_keras`:

```python
import tensorflow_hub as hub
import tf_keras

layer = hub.KerasLayer({quoted})
model = tf_keras.Sequential([tf_keras.Input({shape[1:]}), layer])
```

In a model of Keras 3, with keras_vit:

```python
import keras
from keras_vit.export.layer import SavedModelLayer

layer = SavedModelLayer({quoted}{_trust(where)})
model = keras.Sequential([keras.Input({shape[1:]}), layer])
```
"""


def fine_tuning(description, where, trainable):
    """How to train it under a head of one's own, in Keras 3 and in Keras 2; "" if nothing of it can be.

    Args:
        description, where: As for `usage`.
        trainable: How many of its parameters can be trained.
    """
    if not trainable:
        return ""
    told = ["With `trainable=True` all its weights are trained."]
    if trainable < description.parameters:
        some = f"{trainable:,} of its {description.parameters:,} parameters"
        told = [f"With `trainable=True` {some} are trained; the others are frozen in the export."]
    if description.output != "representation":
        told += [
            f"The new head is put on the `{description.output}` here; an export written with "
            "`--representation` gives it the feature vector instead."
        ]
    shape, quoted = _example_shape(description, batch=8), json.dumps(where, ensure_ascii=False)
    rows = description.architecture["pooling"] is None  # an output for each patch
    pool = ["keras.layers.GlobalAveragePooling1D()"] if rows else []
    parts = ["layer", *pool, "keras.layers.Dense(5)"]
    return f"""\
{" ".join(told)} In Keras 3:

```python
import keras
import numpy as np
from keras_vit.export.layer import SavedModelLayer

images, labels = np.zeros({shape}, "float32"), np.zeros(8, "int64")  # put yours here
layer = SavedModelLayer({quoted}, trainable=True{_trust(where)})
{_training_program("keras", shape, parts)}
```

In Keras 2:

```python
import numpy as np
import tensorflow_hub as hub
import tf_keras

images, labels = np.zeros({shape}, "float32"), np.zeros(8, "int64")  # put yours here
layer = hub.KerasLayer({quoted}, trainable=True)
{_training_program("tf_keras", shape, [part.replace("keras.", "tf_keras.") for part in parts])}
```
"""


def _trust(where):
    """What `SavedModelLayer` wants besides an address, since a SavedModel is a program."""
    return ", trust=True" if "://" in where else ""


def _training_program(keras, shape, parts):
    return f"""\
model = {keras}.Sequential([{keras}.Input({shape[1:]}), {", ".join(parts)}])
model.compile(
    {keras}.optimizers.SGD(0.003, momentum=0.9, global_clipnorm=1.0),
    {keras}.losses.SparseCategoricalCrossentropy(from_logits=True),
)
model.fit(images, labels, batch_size=4)"""


def _example_shape(description, batch=1):
    """(batch, height, width, channels) of images that the model takes."""
    return (batch, *description.usual_size, description.channels)
