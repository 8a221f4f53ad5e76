"""The inputs of a model: images of one size, or packed patches of images of any aspect ratio."""

import keras

from keras_vit.layers import PaddingBias


def model_inputs(config, dtype):
    """The inputs, and what the layers after them need.

    Args:
        config: A `ViTConfig`.
        dtype: The layers' dtype policy.

    Returns:
        (the model's inputs, images (batch, height, width, channels), the bias of the attention to padding or
        None, the rows and columns of each image's patches or None).
    """
    c = config
    if c.max_num_patches is None:
        images = keras.Input((*c.image_size, c.in_channels), name="images")
        return images, images, None, None
    n, (height, width) = c.max_num_patches, c.patch_size
    patches = keras.Input((n, height * width * c.in_channels), name="patches")
    grids = keras.Input((2,), dtype="int32", name="grids")
    bias = PaddingBias(dtype=dtype, name="padding_bias")(patches, grids)  # (b, 1, 1, n)
    # One below the other, the patches are an image.
    column = (n * height, width, c.in_channels)
    images = keras.layers.Reshape(column, dtype=dtype, name="patch_column")(patches)
    return {"patches": patches, "grids": grids}, images, bias, grids
