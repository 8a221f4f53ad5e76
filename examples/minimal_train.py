"""A Vision Transformer in one file: the model, its training and its export, on scanned digits.

    python examples/minimal_train.py [FOLDER]

The model is image → patches → tokens → encoder → representation → logits, from Keras and the layers of
keras_vit only. Training takes a minute on two CPU cores, and classifies at least 97 % of the test digits
correctly. With a folder, the model is exported to it as a SavedModel, loaded again and compared.
`keras_vit.VisionTransformer` is the same model with the options of all published checkpoints.

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (arXiv 2010.11929), section 3.1.
"""

import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

from keras_vit.layers import (
    AddPositionEmbs,
    ClassToken,
    GridToTokens,
    MlpBlock,
    MultiHeadSelfAttention,
    PatchEmbedding,
)

IMAGE_SIZE, PATCH_SIZE, NUM_CLASSES = 16, 2, 10
HIDDEN_SIZE, NUM_LAYERS, NUM_HEADS, MLP_DIM = 96, 2, 6, 192
EPOCHS, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 30, 64, 2e-3, 0.5


def vision_transformer():
    """The model: images (batch, 16, 16, 1) in [-1, 1] to logits (batch, 10). Comments give the shapes."""
    images = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 1), name="images")
    # Image → patches: one linear map of the pixels of each patch.
    grid = PatchEmbedding(HIDDEN_SIZE, PATCH_SIZE, name="patch_embedding")(images)  # (b, 8, 8, 96)
    # Patches → tokens: the patches row by row, after a learned class token. Attention does not depend on the
    # order of the tokens, so a learned vector for its position is added to each.
    x = GridToTokens(name="patch_tokens")(grid)  # (b, 64, 96)
    x = ClassToken(name="class_token")(x)  # (b, 65, 96)
    side = IMAGE_SIZE // PATCH_SIZE
    x = AddPositionEmbs(grid_size=(side, side), num_prefix_tokens=1, name="position_embedding")(x)
    # Tokens → encoder.
    for i in range(NUM_LAYERS):
        x = encoder_block(x, f"block_{i}")  # (b, 65, 96)
    x = keras.layers.LayerNormalization(epsilon=1e-6, name="encoder_norm")(x)
    # Encoder → representation: the class token, which has attended to all patches.
    x = x[:, 0]  # (b, 96)
    # Representation → logits.
    logits = keras.layers.Dense(NUM_CLASSES, kernel_initializer="zeros", name="head")(x)  # (b, 10)
    return keras.Model(images, logits, name="vision_transformer")


def encoder_block(x, name):
    """Attention between the tokens, then an MLP of each; each follows a norm, and is added to its input."""
    y = keras.layers.LayerNormalization(epsilon=1e-6, name=f"{name}_attention_norm")(x)
    y = MultiHeadSelfAttention(NUM_HEADS, name=f"{name}_attention")(y)
    x = x + y
    y = keras.layers.LayerNormalization(epsilon=1e-6, name=f"{name}_mlp_norm")(x)
    y = MlpBlock(MLP_DIM, name=f"{name}_mlp")(y)
    return x + y


def load_data(generator):
    """The scans, shuffled and split: (images, labels) of 1,437 digits for training and 360 for the test."""
    digits = load_digits()
    images = digits.images[..., np.newaxis] / 8 - 1  # from 0 … 16 to -1 … 1
    images = np.asarray(keras.ops.image.resize(images.astype("float32"), (IMAGE_SIZE, IMAGE_SIZE)))
    order = generator.permutation(len(images))
    test, train = order[:360], order[360:]
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def shifted(images, generator):
    """The images, each moved by up to a pixel in both directions, so that no epoch shows the same ones."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-1)
    offsets = generator.integers(0, 3, (len(images), 2))
    windows = [image[y : y + IMAGE_SIZE, x : x + IMAGE_SIZE] for image, (y, x) in zip(padded, offsets)]
    return np.stack(windows)


def train(model, images, labels, generator):
    """Train with AdamW; the learning rate rises for a tenth of the steps, then falls to 0 as a cosine."""
    steps = EPOCHS * (len(images) // BATCH_SIZE)
    warmup = steps // 10
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - warmup, warmup_target=LEARNING_RATE, warmup_steps=warmup
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=WEIGHT_DECAY, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    for epoch in range(EPOCHS):
        order = generator.permutation(len(images))
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            batch = order[start : start + BATCH_SIZE]
            # One step: the loss of the batch, its gradients, and their update of the weights.
            scores = model.train_on_batch(shifted(images[batch], generator), labels[batch], return_dict=True)
        if (epoch + 1) % 5 == 0:
            print(f"epoch {epoch + 1}: last batch: loss {scores['loss']:.3f}, {scores['accuracy']:.1%} right")


def main(folder=None):
    """Train, print the accuracy on the test digits and return it; export to the folder if there is one."""
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    (images, labels), (test_images, test_labels) = load_data(generator)
    model = vision_transformer()
    train(model, images, labels, generator)
    logits = model.predict(test_images, verbose=0)
    accuracy = float(np.mean(logits.argmax(axis=1) == test_labels))
    print(f"test accuracy {accuracy:.1%}")
    if folder is not None:
        model.export(folder, verbose=False)
        loaded = keras.layers.TFSMLayer(folder, call_endpoint="serve")
        difference = np.abs(np.asarray(loaded(test_images)) - logits).max()
        print(f"{folder}: SavedModel, logits differ by at most {difference:.1e}")
    return accuracy


if __name__ == "__main__":
    main(*sys.argv[1:2])
