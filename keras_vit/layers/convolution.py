"""Convolution whose empty batches have the right shape."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.hints import FREE
from keras_vit.types import Tensor


@keras.saving.register_keras_serializable("keras_vit")
class Conv2D(keras.layers.Conv2D):
    """`keras.layers.Conv2D`, also of empty batches.

    The class has Keras's name because files name layers by their classes.

    Args:
        filters, kernel_size, …: As `keras.layers.Conv2D`, but `data_format` "channels_last" alone.

    Input shape: (batch, height, width, channels).
    Output shape: (batch, new height, new width, filters).

    Example:
        >>> Conv2D(8, 3, padding="same")(np.zeros((0, 6, 6, 4))).shape
        TensorShape([0, 6, 6, 8])

    Source: `keras.layers.Conv2D`.
    """

    sharding = FREE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"data_format": "channels_last", **kwargs})

    def convolution_op(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        outputs = super().convolution_op(inputs, kernel)
        if inputs.shape[0]:
            return outputs
        # TensorFlow's oneDNN convolution returns an empty batch in the shape of its input (seen in 2.21),
        # which a reshape corrects.
        batch, *size, _ = ops.shape(inputs)
        for i, (side, stride) in enumerate(zip(size, self.strides)):
            if self.padding == "same":
                size[i] = -(-side // stride)
            else:
                reach = (self.kernel_size[i] - 1) * self.dilation_rate[i] + 1
                size[i] = (side - reach) // stride + 1
        return ops.reshape(outputs, (batch, *size, self.filters))
