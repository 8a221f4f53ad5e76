"""A model to a repository of a hub on the loopback, and back."""

import dataclasses
import json

import numpy as np
import pytest
from huggingface_hub import close_session
from made.servers import asked_hub
from made.tables import by_table
from reference.small import HYBRID, images_for, one_block

from keras_vit import ImageSegmenter, KeypointEstimator, Preprocessing, from_pretrained
from keras_vit.weights.push import push_to_hub

# The library's own, where it uploads large files without its compiled half.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
ERF = {"activation": "gelu_erf"}
CROP = Preprocessing(16, resize="crop", crop_fraction=0.5, antialias=True, mean=(0.1, 0.2, 0.3))
RECTANGLE = dataclasses.replace(CROP, image_size=(16, 24))
NAMES = ("ant", "bee", "cat", "crane", "crane")
MODELS = {  # changed options of a small model, the requested layout, and the chosen one
    "plain": ({"class_names": NAMES}, None, "huggingface"),
    "prepared": ({"preprocessing": CROP, "norm_epsilon": 1e-12}, None, "huggingface"),
    "distilled": ({"distillation": True, **ERF}, None, "huggingface"),
    "any size": ({"image_size": (None, None), "position_grid": (3, 2)}, None, "huggingface"),
    "mean": ({"pooling": "gap"}, None, "timm"),
    "as I-JEPA": ({"pooling": "gap"}, "huggingface", "huggingface"),
    "as timm": ({"class_names": NAMES, "preprocessing": CROP}, "timm", "timm"),
    "as torchvision": (
        {"preprocessing": dataclasses.replace(CROP, crop_rounding="even"), "norm_epsilon": 1e-12},
        *(None, "huggingface"),
    ),
    "squashed": ({"preprocessing": dataclasses.replace(CROP, resize="squash_crop"), **ERF}, None, "timm"),
    "rectangle": ({"image_size": (16, 24), "preprocessing": RECTANGLE, **ERF}, None, "timm"),
    "pooled": ({"pooling": "gap", "norm_after_pooling": True, "mlp_dim": 49}, None, "timm"),
    "registers": ({"num_registers": 4, "prefix_positions": False, "layer_scale": 0.1}, None, "timm"),
    "clip": ({"pre_norm": True, "norm_epsilon": 1e-5, "activation": "quick_gelu"}, None, "timm"),
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub without repositories, and a token for it."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with asked_hub(tmp_path / "hub", monkeypatch) as server:
        yield server


def files_of(hub, repository):
    return hub.repositories[repository]["main"][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_pushed_model_comes_back_the_same(hub, name):
    options, asked, layout = MODELS[name]
    model = one_block(**options)
    assert push_to_hub(model, "me/flowers", layout=asked) == f"{hub.url}/me/flowers"
    files = files_of(hub, "me/flowers")
    preprocessor = {"preprocessor_config.json"} if layout == "huggingface" else set()
    assert {*files} == {"model.safetensors", "config.json", "README.md", *preprocessor}
    assert ("architecture" in json.loads(files["config.json"])) == (layout == "timm")
    again = from_pretrained("me/flowers", **({"image_size": (None, None)} if name == "any size" else {}))
    x = images_for(model, size=(24, 16) if name == "any size" else None)
    np.testing.assert_allclose(again.predict_on_batch(x), model.predict_on_batch(x), atol=1e-6)
    assert again.class_names == model.class_names
    assert again.preprocessing == model.preprocessing


def test_each_push_is_one_commit_with_the_users_token(hub):
    push_to_hub(one_block(), "me/flowers", private=True, message="First")
    posts = [(path, headers.get("authorization")) for command, path, headers in hub.seen if command == "POST"]
    assert posts[0][0] == "/api/repos/create" and posts[-1][0] == "/api/models/me/flowers/commit/main"
    assert {token for _, token in posts} == {"Bearer hf_secret"}
    assert hub.created["me/flowers"]["visibility"] == "private" and len(hub.repositories["me/flowers"]) == 2
    before = files_of(hub, "me/flowers")
    push_to_hub(one_block(num_classes=3), "me/flowers")
    assert "visibility" not in hub.created["me/flowers"] and len(hub.repositories["me/flowers"]) == 3
    assert files_of(hub, "me/flowers")["config.json"] != before["config.json"]


def test_the_card_has_the_known_facts(hub):
    model = one_block(pooling="gap", class_token=False)
    metrics = {"accuracy": np.float64(0.93214)}
    push_to_hub(model, "me/flowers", license="mit", dataset="me/flowers-5", metrics=metrics, tags=["botany"])
    card = files_of(hub, "me/flowers")["README.md"].decode()
    header, text = card.removeprefix("---\n").split("\n---\n")
    for line in ("license: mit", "library_name: timm", "pipeline_tag: image-classification"):
        assert line in header.splitlines()
    for word in ("- keras_vit", "- vision-transformer", "- botany", "- me/flowers-5", "value: 0.93214"):
        assert word in header
    with pytest.raises(ValueError, match="tags must be a tuple, each item a str; got 'botany'"):
        push_to_hub(model, "me/flowers", tags="botany")
    assert "Trained on me/flowers-5. Test split: accuracy 0.9321." in text
    assert 'timm.create_model("hf_hub:me/flowers", pretrained=True)' in text
    push_to_hub(one_block(num_classes=None), "me/features")
    card = files_of(hub, "me/features")["README.md"].decode()
    assert "pipeline_tag: image-feature-extraction" in card and "license:" not in card
    assert "## Training\n\nNot stated." in card and "## License\n\nNot stated." in card


@by_table(
    "options, given, message",
    [
        ({**HYBRID, "resnet": (1,)}, {}, "'huggingface' cannot .*resnet=.*'timm' cannot .*resnet="),
        ({"pooling": None}, {"layout": "huggingface"}, r"cannot express this model: as '\w+': pooling=None"),
        ({"pre_norm": True, "norm_epsilon": 1e-5}, {"layout": "huggingface"}, "this model: a head"),
        ({"norm_epsilon": 1e-12}, {"layout": "timm"}, "norm_epsilon=1e-12"),
        ({"image_size": (16, 24), "preprocessing": RECTANGLE}, {"layout": "huggingface"}, "'crop' to 16×24"),
    ],
)
def test_a_model_that_no_layout_expresses_is_not_sent(hub, options, given, message):
    with pytest.raises(ValueError, match=message):
        push_to_hub(one_block(**options), "me/flowers", **given)
    assert hub.seen == []


@by_table("resize", ["pad", "squash_crop"])
def test_a_way_to_resize_that_comes_back_as_another_is_not_sent(hub, resize):
    options = {"num_classes": None, "class_token": False, "pooling": None, "norm_epsilon": 1e-12, **ERF}
    preprocessing = Preprocessing(16, resize=resize)
    encoder = one_block(mlp_dim=24, patch_padding=2, preprocessing=preprocessing, **options)
    with pytest.raises(ValueError, match=f"'huggingface' cannot express .* with resize='{resize}'"):
        push_to_hub(KeypointEstimator(encoder, 3, head="simple"), "me/points")
    assert hub.seen == []


def test_a_refusal_of_the_hub_is_one_line(hub, monkeypatch):
    def refusal(**facts):
        with pytest.raises(ValueError) as caught:
            push_to_hub(one_block(), "me/flowers", **facts)
        return str(caught.value)

    failed = f"me/flowers: the upload to {hub.url} failed ("
    message = refusal(license="none")
    assert message.startswith(failed) and message.endswith('"license" must be one of …)')
    monkeypatch.delenv("HF_TOKEN")
    message = refusal()
    assert message.startswith(failed) and "; log in (" in message
    assert message.endswith("with an account that may write it")
    hub.shutdown()
    hub.server_close()
    close_session()
    assert refusal().startswith(f"{failed}ConnectError: ")


def test_a_segmenter_has_its_task_in_the_card_and_is_none_of_timms(hub):
    encoder = one_block(num_classes=None, layer_scale=0.1, activation="gelu_erf", mlp_dim=24)
    segmenter = ImageSegmenter(encoder, 4, "mask", num_queries=3, query_blocks=1)
    push_to_hub(segmenter, "me/streets")
    card = files_of(hub, "me/streets")["README.md"].decode()
    assert "image-segmentation" in card and "segmentation into 4 classes" in card
    with pytest.raises(ValueError, match="a VisionTransformer for the layout 'timm'; got a ImageSegmenter"):
        push_to_hub(segmenter, "me/streets", layout="timm")
