"""transformers' EoMT and our segmenters: outputs, files in both directions, loss and gradients."""

import types

import keras
import numpy as np
import pytest
from peers.packages import torch, transformers
from peers.torch_models import assert_same_gradients, channels_first, images_of, randomized
from reference.comparing import assert_close, numpy

from keras_vit import VisionTransformer, from_pretrained, save_weights
from keras_vit.tasks.segmentation.loss import query_loss
from keras_vit.tasks.segmentation.panoptic_segments import segments
from keras_vit.tasks.segmentation.query_outputs import query_outputs

SIZES = {
    **{"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 32},
    **{"patch_size": 8, "num_blocks": 2, "num_queries": 7, "num_upscale_blocks": 2},
    **{"id2label": {0: "sky", 1: "road", 2: "tree", 3: "car"}, "num_register_tokens": 2},
}
MODELS = {
    "DINOv2": ("Eomt", {"mlp_ratio": 2}),
    "DINOv2, gated": ("Eomt", {"mlp_ratio": 2, "use_swiglu_ffn": True, "num_register_tokens": 0}),
    "DINOv3": ("EomtDinov3", {"intermediate_size": 40}),
    "DINOv3, gated": (
        "EomtDinov3",
        {"intermediate_size": 40, "use_gated_mlp": True, "num_upscale_blocks": 1},
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)
POINTS = 50


def made(name, masked=True, **changes):
    """A random model of theirs, whose masks restrict the attention or not."""
    kind, options = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(
        **{**SIZES, **options, **changes}, train_num_points=POINTS
    )
    model = randomized(getattr(transformers, f"{kind}ForUniversalSegmentation")(config))
    model.attn_mask_probs.fill_(float(masked))
    return model


def theirs_of(model, images):
    """Their logits, as ours are arranged."""
    with torch.no_grad():
        found = model(channels_first(images))
    return {
        "masks": found.masks_queries_logits.numpy().transpose(0, 2, 3, 1),
        "classes": found.class_queries_logits.numpy(),
    }


def assert_same_queries(model, expected, images):
    found = model.query_predictions()(images)
    for name, theirs in expected.items():
        assert_close(found[name], theirs)


# Their options that our models do not have; they derive label2id when they read a file.
UNSAVED = ("architectures", "_name_or_path", "layerscale_value", "train_num_points", "pos_embed_rescale")
UNSAVED += ("hidden_dropout_prob", "attention_probs_dropout_prob", "dtype", "label2id")
UNSAVED = dict.fromkeys(UNSAVED)


@every_model
@pytest.mark.parametrize("masked", [True, False])
def test_a_model_is_read_and_written_with_equal_outputs(name, masked, tmp_path):
    theirs, images = made(name, masked), images_of(32, 32)
    theirs.save_pretrained(tmp_path / "theirs")
    expected = theirs_of(theirs, images)
    model = from_pretrained(tmp_path / "theirs")
    assert model.masked_attention == masked
    assert model.class_names == ("sky", "road", "tree", "car")
    assert_same_queries(model, expected, images)
    save_weights(model, tmp_path / "ours", "huggingface")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    for key, value in theirs.state_dict().items():
        np.testing.assert_allclose(again.state_dict()[key].numpy(), value.numpy(), atol=1e-6, err_msg=key)
    assert {**again.config.to_dict(), **UNSAVED} == {**theirs.config.to_dict(), **UNSAVED}
    for name, array in theirs_of(again, images).items():
        assert_close(array, expected[name])
    assert_same_queries(from_pretrained(tmp_path / "ours"), expected, images)


def test_pixels_have_the_scores_of_their_processor(tmp_path):
    theirs, images = made("DINOv2"), images_of(32, 32)
    theirs.save_pretrained(tmp_path)
    found = theirs_of(theirs, images)
    masks = torch.nn.functional.interpolate(channels_first(found["masks"]), (32, 32), mode="bilinear")
    classes = torch.from_numpy(found["classes"]).softmax(-1)[..., :-1]
    expected = torch.einsum("bqc,bqhw->bhwc", classes, masks.sigmoid()).numpy()
    assert_close(np.exp(numpy(from_pretrained(tmp_path)(images))), expected)


def test_the_backbone_and_other_classes_are_read(tmp_path):
    theirs, images = made("DINOv3", masked=False), images_of(32, 32)
    theirs.save_pretrained(tmp_path)
    encoder = from_pretrained(tmp_path, num_classes=0)
    assert type(encoder) is VisionTransformer
    tokens = encoder.feature_extractor("encoder_block_0")(images)["encoder_block_0"]
    other = from_pretrained(tmp_path, num_classes=3)
    assert_close(other.feature_extractor("encoder_block_0")(images)["encoder_block_0"], numpy(tokens))
    assert (other(images).shape[-1], other.class_names) == (3, None)


def fixed_points(monkeypatch):
    """Let both draw the same points: they depend on the shape only, and are equal for all masks."""

    def points(shape):
        values = np.random.default_rng(shape[-2]).uniform(size=shape[-2:]).astype("float32")
        values *= shape[-2] > 7  # The shifts of the masks' points are 0.
        return np.broadcast_to(values, tuple(int(side) for side in shape))

    monkeypatch.setattr(torch, "rand", lambda *shape, device=None: torch.from_numpy(points(shape).copy()))
    return points


def random_labels(rng, count, size=32):
    """Maps of a few classes each, in blocks of 8 pixels."""
    few = rng.choice(4, count, replace=False)
    return np.kron(few[rng.integers(0, count, (size // 8, size // 8))], np.ones((8, 8), "int64"))


def their_targets(labels):
    present = np.unique(labels)
    masks = torch.from_numpy(np.stack([labels == number for number in present]).astype("float32"))
    return [masks], [torch.from_numpy(present)]


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_and_the_matching_are_theirs(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    draw = fixed_points(monkeypatch)
    masks = rng.standard_normal((1, 16, 16, 7)).astype("float32") * 3
    classes = rng.standard_normal((1, 7, 5)).astype("float32")
    labels = random_labels(rng, 1 + seed % 4)
    model = made("DINOv2")
    logits = channels_first(masks), torch.from_numpy(classes)
    losses = model.get_loss_dict(*logits, *their_targets(labels), None)
    expected = float(model.get_loss(losses))
    found = numpy(query_loss(masks, classes, labels[np.newaxis], draw, POINTS))
    assert_close(found, np.array([expected], "float32"), 1e-5)


@pytest.mark.parametrize("name", ["DINOv2", "DINOv3"])
def test_the_gradients_of_a_training_step_are_theirs(name, tmp_path, monkeypatch):
    changes = {} if name == "DINOv2" else {"pos_embed_rescale": None}
    theirs, images = made(name, **changes), images_of(32, 32, batch=1)
    theirs.save_pretrained(tmp_path)
    model = from_pretrained(tmp_path)
    draw = fixed_points(monkeypatch)
    labels = random_labels(np.random.default_rng(0), 3)
    loss = theirs.train()(channels_first(images), *their_targets(labels)).loss
    model.compile("sgd", keras.losses.MeanSquaredError())
    query_loss = model._query_losses[True]
    query_loss.draw, query_loss.num_points = draw, POINTS

    def compute_loss():
        return model.compute_loss(images, labels[np.newaxis], model(images, training=True))

    def load():
        theirs.save_pretrained(tmp_path)
        return from_pretrained(tmp_path)

    assert_same_gradients(model, compute_loss, theirs, loss, load, bound=1e-5)


def instances_of_the_authors(masks, classes, top):
    """As EoMT's `MaskClassificationInstance.eval_step`, of an image's logits at its size, (q, h, w)."""
    scores, pairs = classes.softmax(-1)[:, :-1].flatten().topk(top)
    numbers = classes.shape[1] - 1
    masks = masks[pairs // numbers]
    inside = (masks > 0).float()
    quality = (masks.sigmoid() * inside).sum((1, 2)) / (inside.sum((1, 2)) + 1e-6)
    best = torch.argsort(scores * quality, descending=True)
    return [each[best].numpy() for each in (scores * quality, pairs % numbers, masks > 0)]


@pytest.mark.parametrize("size", [(32, 32), (20, 40), (64, 48)])
def test_objects_are_those_of_the_authors_and_of_their_processor(size, tmp_path):
    """The authors keep all pairs of a query and a class, the processor a query's best class, unsorted."""
    processing = pytest.importorskip("transformers.models.eomt.image_processing_eomt")
    made("DINOv2").save_pretrained(tmp_path)
    model = from_pretrained(tmp_path)
    photo = np.random.default_rng(1).integers(0, 256, (*size, 3)).astype("uint8")
    [(_, classes, masks_of)] = query_outputs(model, photo)
    classes, raw = torch.from_numpy(classes), masks_of.args[0]
    masks = torch.from_numpy(np.asarray(masks_of(range(7))).transpose(2, 0, 1).copy())
    found = model.instances(photo, threshold=0.0, top=20)[0]
    scores, numbers, inside = instances_of_the_authors(masks, classes, 20)
    kept = inside.any((1, 2))  # An object has a pixel here.
    assert kept.sum() > 3
    assert_close(found.scores, scores[kept], 1e-5)
    np.testing.assert_array_equal(found.classes, numbers[kept])
    np.testing.assert_array_equal(found.masks, inside[kept])

    outputs = types.SimpleNamespace(
        masks_queries_logits=channels_first(raw), class_queries_logits=classes[np.newaxis]
    )
    processor = processing.EomtImageProcessor(size={"shortest_edge": 32, "longest_edge": 32})
    [each] = processor.post_process_instance_segmentation(outputs, [size], threshold=0.0)
    found, best = model.instances(photo, threshold=0.0, top=28)[0], {}
    for score, number, mask in zip(found.scores, found.classes, found.masks):
        best.setdefault(mask.tobytes(), (score, number))
    segments = sorted(each["segments_info"], key=lambda row: -row["score"])
    np.testing.assert_allclose([row["score"] for row in segments], [s for s, _ in best.values()], atol=2e-6)
    assert [row["label_id"] for row in segments] == [number for _, number in best.values()]
    # The processor's map has the masks above each other, the last query's as a whole.
    assert (each["segmentation"] == len(segments) - 1).numpy().tobytes() in best


@pytest.mark.parametrize("things", [None, (0, 2)])
def test_panoptic_segments_are_theirs(things, rng):
    theirs = pytest.importorskip("transformers.models.eomt.image_processing_eomt")
    for _ in range(100):
        coarse = rng.standard_normal((7, 4, 5)).astype("float32")
        logits = np.kron(coarse, np.ones((1, 3, 3), "float32")) + 0.3
        scores, classes = rng.uniform(0.5, 1, 7).astype("float32"), rng.integers(0, 4, 7)
        stuff = [] if things is None else [1, 3]
        expected, details = theirs.compute_segments(
            *map(torch.from_numpy, (logits, scores, classes)), stuff, overlap_mask_area_threshold=0.61
        )
        found = segments(
            lambda masks, logits=logits: logits.transpose(1, 2, 0)[..., masks],
            logits.shape[1:],
            scores,
            classes,
            things,
            0.61,
        )
        np.testing.assert_array_equal(found[..., 1], expected.numpy() + 1)
        names = {each["id"] + 1: each["label_id"] for each in details} | {0: 255}
        np.testing.assert_array_equal(found[..., 0], np.vectorize(names.get)(found[..., 1]))
