"""transformers' ImageGPT and ours: outputs, loss and gradients of the same pixels, and files both ways."""

import keras
import numpy as np
import pytest
from peers.packages import torch, transformers
from peers.torch_models import assert_same_gradients, assert_same_stages, images_of, randomized
from reference.comparing import assert_close, numpy

from keras_vit import ImageGPT, PixelTransformer, from_pretrained, save_weights

COLORS, SIDE = 20, 6
SIZES = {"vocab_size": COLORS + 1, "n_positions": SIDE * SIDE, "n_embd": 24, "n_layer": 3, "n_head": 3}


def saved(folder, **changes):
    """A random model of theirs, in a folder with its image processor."""
    model = randomized(
        transformers.ImageGPTForCausalImageModeling(transformers.ImageGPTConfig(**SIZES, **changes))
    )
    model.save_pretrained(folder)
    clusters = np.random.default_rng(1).uniform(-1, 1, (COLORS, 3)).astype("float32")
    size = {"height": SIDE, "width": SIDE}
    processor = transformers.ImageGPTImageProcessor(clusters=clusters, size=size)
    processor.save_pretrained(folder)
    return model, processor


def ids_and_inputs(model, images):
    """The colors of images, and what theirs is given: the start token, and all pixels but the last."""
    ids = torch.from_numpy(numpy(model.color_ids(images)).astype("int64"))
    start = torch.full((len(ids), 1), COLORS)
    return ids, torch.cat([start, ids[:, :-1]], dim=1)


@pytest.mark.parametrize("changes", [{}, {"n_inner": 40, "activation_function": "gelu"}])
def test_a_model_is_read_and_written_with_equal_outputs(changes, tmp_path):
    theirs, processor = saved(tmp_path / "theirs", **changes)
    model, images = from_pretrained(tmp_path / "theirs", kind="pretrainer"), images_of(SIDE, SIDE)
    assert type(model) is ImageGPT
    ids, inputs = ids_and_inputs(model, images)
    with torch.no_grad():
        found = theirs(inputs, output_hidden_states=True)
    assert_close(model(images), found.logits.numpy())
    names = ("position_embedding", "encoder_block_0", "encoder_block_1", "tokens")
    assert_same_stages(model.encoder, images, dict(zip(names, found.hidden_states, strict=True)))

    save_weights(model, tmp_path / "ours", "huggingface")
    again = transformers.ImageGPTForCausalImageModeling.from_pretrained(tmp_path / "ours").eval()
    for key, value in theirs.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[key].numpy(), value.numpy(), err_msg=key)
    with torch.no_grad():
        assert_close(again(inputs).logits.numpy(), found.logits.numpy())
    for name in (*SIZES, *changes):
        assert getattr(again.config, name) == getattr(theirs.config, name)
    written = transformers.ImageGPTImageProcessor.from_pretrained(tmp_path / "ours")
    np.testing.assert_array_equal(written.clusters.numpy(), processor.clusters.numpy())
    assert_close(from_pretrained(tmp_path / "ours", kind="pretrainer")(images), found.logits.numpy())


def test_pixels_have_the_colors_of_their_processor(tmp_path):
    _, processor = saved(tmp_path)
    model = from_pretrained(tmp_path, kind="pretrainer")
    photos = np.random.default_rng(0).integers(0, 256, (2, 9, 13, 3)).astype("uint8")
    expected = [processor(photo, return_tensors="np")["input_ids"][0] for photo in photos]
    found = numpy(model.color_ids(np.concatenate([model.encoder.preprocessing(photo) for photo in photos])))
    # Torchvision rounds the resized pixels to integers, which changes a few of them.
    assert np.mean(found == np.reshape(expected, found.shape)) > 0.95


def test_the_loss_and_its_gradients_are_theirs(tmp_path):
    theirs, _ = saved(tmp_path / "theirs")
    model, images = from_pretrained(tmp_path / "theirs", kind="pretrainer"), images_of(SIDE, SIDE)
    ids, inputs = ids_and_inputs(model, images)
    # Their loss compares each output with the next input, so without the last pixel.
    loss = theirs(inputs, labels=inputs).loss
    weights = np.ones(ids.shape, "float32")
    weights[:, -1] = 0
    weights *= weights.size / weights.sum()
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def load():
        theirs.save_pretrained(tmp_path / "theirs")
        return from_pretrained(tmp_path / "theirs", kind="pretrainer")

    assert_same_gradients(
        model, lambda: cross_entropy(ids.numpy(), model(images), weights), theirs, loss, load
    )


def test_the_encoder_is_a_vision_transformer(tmp_path):
    saved(tmp_path)
    encoder = from_pretrained(tmp_path)
    assert type(encoder) is PixelTransformer
    model = from_pretrained(tmp_path, kind="pretrainer")
    images = images_of(SIDE, SIDE)
    np.testing.assert_array_equal(numpy(encoder(images)), numpy(model.encoder(images)))
    classifier = from_pretrained(tmp_path, num_classes=7)
    assert classifier.output_shape == (None, 7)
