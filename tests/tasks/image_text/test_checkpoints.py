"""Files with two towers: the image tower alone, both towers, and damaged or other text towers."""

import json
import re

import numpy as np
import pytest
from made.sampling import some
from reference.comparing import arrays, assert_close, assert_same_arrays, numpy, randomize
from reference.small import SMALL, images_for

from keras_vit import ImageTextModel, Preprocessing, VisionTransformer, from_pretrained, save_weights
from keras_vit.weights import checkpoint
from keras_vit.weights.array_files import read_arrays, write_arrays

TEXT = {"vocabulary_size": 9, "length": 5, "hidden_size": 8, "num_layers": 1, "mlp_dim": 12, "num_heads": 2}
IMAGE = {**SMALL, "num_classes": None, "num_layers": 1, "prefix_positions": False}
SIGLIP = {"image": {**IMAGE, "pooling": "map"}, "text": TEXT, "text_projection": 12, "projection_bias": True}
QUICK, EPSILON = {"activation": "quick_gelu"}, {"norm_epsilon": 1e-5}
CLIP = {
    "image": {**IMAGE, **EPSILON, "prefix_positions": True, "pre_norm": True, "norm_after_pooling": True},
    "text": {**TEXT, **QUICK, **EPSILON, "causal": True, "pooling": "eos", "eos_id": 8},
    **{"objective": "softmax", "image_projection": 6, "text_projection": 6},
}
OPEN_CLIP = {**CLIP, "objective": "sigmoid", "image": {**CLIP["image"], **QUICK, "norm_after_pooling": False}}
PADDED = {**OPEN_CLIP["image"], "preprocessing": Preprocessing(16, resize="pad")}
LIT = {**SIGLIP, "image": {**IMAGE, "prefix_positions": True}, "objective": "softmax"}
BERT = {
    **TEXT,
    **{"length": 16, "num_heads": 1, "norm_epsilon": 1e-12, "pooling": "first"},
    **{"norm_after_residual": True, "pad_id": 0},
}
FILES = {
    "huggingface, SigLIP": ("folder", "huggingface", SIGLIP),
    "huggingface, CLIP": ("folder", "huggingface", CLIP),
    "open_clip, CLIP": ("folder", "open_clip", OPEN_CLIP),
    "big_vision": ("model.npz", "big_vision", SIGLIP),
    "LiT with BERT": ("model.npz", "vit_jax", {**LIT, "text": BERT}),
    "big_vision with BERT": ("model.npz", "big_vision", {**SIGLIP, "text": BERT}),
    "LiT": ("model.npz", "vit_jax", {**LIT, "image_projection": 6, "text_projection": 6}),
}
FILE = {"timm": "m.safetensors", "big_vision": "m.npz", "huggingface": "m", "open_clip": "m"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A function from the name of a file to (path, the saved model), which writes each once."""
    made = {}

    def write(name):
        if name not in made:
            file, layout, arguments = FILES[name]
            model = randomize(ImageTextModel(**arguments))
            made[name] = save_weights(model, tmp_path_factory.mktemp("two") / file, layout), model
        return made[name]

    return write


@pytest.mark.parametrize("kind", ["image_text", pytest.param("stored", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", some(FILES, 2))
def test_both_towers_are_restored_with_their_options(name, kind, written):
    path, model = written(name)
    again = from_pretrained(path, kind=kind)
    assert_same_arrays(arrays(again), arrays(model))
    assert again.text.get_config() == {**model.text.get_config(), "name": again.text.name}
    for option in ("objective", "image_projection", "text_projection", "projection_bias"):
        assert getattr(again, option) == getattr(model, option)
    stored = read_arrays(path)
    numbers = {"t", "params/t", "params/b", "logit_scale", "logit_bias"} & {*stored}
    assert {stored[key].shape for key in numbers} == {() if "CLIP" in name else (1,)}


@pytest.mark.parametrize("prefix", some(["", "params/"], 2))
def test_a_lit_with_a_bert_computes_what_its_authors_code_computes(prefix, golden, tmp_path):
    """`LitModel` of vit_jax with flaxformer's BERT of 2 blocks, 2 heads and 20 positions."""
    stored = {prefix + key: array for key, array in read_arrays(golden / "lit_bert.npz").items()}
    write_arrays(stored, tmp_path / "LiT.npz")
    (tmp_path / "LiT.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", *"abcdefghijklmnopqr"]))
    model = from_pretrained(tmp_path / "LiT.npz", kind="stored")
    with np.load(golden / "lit_bert.expected.npz") as expected:
        assert_close(model.encode_text(expected["ids"]), expected["text"])
        assert_close(model.image_encoder(expected["images"]), expected["image"])
        factor = np.exp(model.get_layer("logit_factors").scale)
        np.testing.assert_allclose(factor, expected["scale"][0], rtol=1e-6)
    assert model.text_preprocessing("A b").tolist() == [[2, 3, 4] + [0] * 13]


def test_without_text_tower_the_image_tower_is_loaded(written):
    path, model = written("big_vision")
    image = from_pretrained(path)
    assert isinstance(image, VisionTransformer)
    assert_same_arrays(arrays(image), arrays(model.image))
    clip, _ = written("huggingface, CLIP")
    assert from_pretrained(clip).num_classes == 6  # its projection


def changed(path, folder, dropped="(?!)", added=()):
    """A copy of a file without the keys that match a pattern, and with others."""
    kept = {key: array for key, array in read_arrays(path).items() if not re.fullmatch(dropped, key)}
    write_arrays(kept | dict(added), folder / path.name)
    for other in path.parent.glob("*.json"):
        config = json.loads(other.read_text())
        config.pop("digest", None)
        (folder / other.name).write_text(json.dumps(config))
    return folder / path.name


def test_a_file_without_a_fitting_text_tower_is_refused(written, tmp_path):
    path, _ = written("big_vision")
    bert = {"params/txt/BertEncoder_0/embedder/embedding": np.zeros((3, 2), "float32")}
    for dropped, added, message in (
        ("params/txt/.*", {}, "holds no text tower"),
        ("params/txt/Encoder_0/encoder_norm/scale", {}, "only in model: text/encoder_norm/gamma"),
        ("(?!)", bert, "embedder/embedders_segment_ids/embedding; got shapes"),
    ):
        with pytest.raises(ValueError, match=message):
            from_pretrained(changed(path, tmp_path, dropped, added), kind="image_text")
    with pytest.raises(ValueError, match="no text tower"):
        from_pretrained("tests/golden/token.npz", kind="image_text")
    with pytest.raises(ValueError, match="has no head"):
        from_pretrained(path, kind="image_text", num_classes=3)


def test_a_siglip_without_pooling_has_no_vector_to_compare(written, tmp_path):
    """`vision_use_head=False` of transformers, whose `SiglipModel` fails with its `pooler_output` of None."""
    path = changed(written("huggingface, SigLIP")[0], tmp_path, r"vision_model\.head\..*")
    (tmp_path / "model.json").unlink()
    message = r"expected an image tower with pooling; got vision_use_head=False in config.json"
    for kind in ("image_text", "stored"):
        with pytest.raises(ValueError, match=message):
            from_pretrained(path, kind=kind)
    assert isinstance(from_pretrained(path), VisionTransformer)


@pytest.mark.parametrize("suffix", ["npz", "keras"])
def test_auto_reads_a_file_without_text_tower_once(suffix, written, tmp_path, monkeypatch):
    _, model = written("big_vision")
    path = tmp_path / f"image.{suffix}"
    model.image.save(path) if suffix == "keras" else save_weights(model.image, path, "big_vision")
    reader = "lazy_arrays" if suffix == "keras" else "load_arrays"
    read, calls = getattr(checkpoint, reader), []
    monkeypatch.setattr(checkpoint, reader, lambda *args: calls.append(args) or read(*args))
    image = from_pretrained(path, kind="stored", head="reset")
    assert isinstance(image, VisionTransformer) and len(calls) == 1
    assert_same_arrays(arrays(image), arrays(model.image))


@pytest.mark.slow
def test_a_keras_file_is_loaded_with_both_towers(written, tmp_path):
    _, model = written("big_vision")
    model.save(tmp_path / "model.keras")
    for kind in ("image_text", "stored"):
        for source in (tmp_path / "model.keras", tmp_path):  # a file, and the folder of a run
            again = from_pretrained(source, kind=kind)
            assert_same_arrays(arrays(again), arrays(model))
    for wrong, message in (
        ({"image_sise": 32}, "no option image_sise .did you mean 'image_size'"),
        ({"pooling": "gap"}, "an image tower keeps its pooling .*; got pooling='gap'"),
    ):
        with pytest.raises(ValueError, match=message):
            from_pretrained(tmp_path / "model.keras", kind="image_text", **wrong)
    with pytest.raises(ValueError, match="has no head"):
        from_pretrained(tmp_path / "model.keras", kind="stored", head="reset")
    model.image.save(tmp_path / "image.keras")
    with pytest.raises(ValueError, match="expected one with a text tower"):
        from_pretrained(tmp_path / "image.keras", kind="image_text")


@pytest.mark.slow
def test_a_model_that_a_layout_cannot_express_is_refused(tmp_path):
    for arguments, layout, message in (
        (SIGLIP, "timm", "a text tower"),
        (CLIP, "big_vision", "pre_norm"),
        ({**SIGLIP, "text": CLIP["text"]}, "big_vision", "text tower's activation='quick_gelu'"),
        ({**SIGLIP, "text": CLIP["text"]}, "huggingface", "causal=True; .*pooling='eos'"),
        ({**SIGLIP, "text": BERT}, "huggingface", "norm_after_residual=True .*pad_id=0"),
        ({**OPEN_CLIP, "text": BERT}, "open_clip", "norm_after_residual=True"),
        ({**SIGLIP, "text": {**BERT, "num_heads": 2}}, "big_vision", r"num_heads=2 \(supported: 1\)"),
        ({**SIGLIP, "text": {**BERT, "length": 5}}, "big_vision", r"length=5 \(supported: 16\)"),
        ({**CLIP, "image_projection": None, "text_projection": 12}, "open_clip", "image_projection=None"),
        (CLIP, "open_clip", "quick_gelu in one tower"),
        (SIGLIP, "open_clip", "of none of timm's SigLIP models"),
        ({**OPEN_CLIP, "image": PADDED}, "open_clip", "resize='pad' of images"),
        ({**SIGLIP, "objective": "softmax"}, "huggingface", "other projections.*'siglip_vision_model'"),
    ):
        with pytest.raises(ValueError, match=message):
            save_weights(ImageTextModel(**arguments), tmp_path / FILE[layout], layout)
        assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "layout, part, wrong, message",
    [
        ("huggingface", "text_config", [1], "text_config must be an object"),
        ("huggingface", "text_config", {"hidden_act": ["gelu"]}, "the activation must be one of"),
        ("huggingface", "text_config", {"num_attention_heads": 0}, "num_heads must be an int"),
        ("huggingface", "text_config", {"num_attention_heads": 5}, "int that divides hidden_size 8"),
        ("huggingface", "text_config", {"eos_token_id": [2]}, "eos_id must be an int"),
        ("open_clip", "text_cfg", {"qk_norm": True}, "no tower of ours has qk_norm=True of text_cfg"),
        ("open_clip", "text_cfg", {"hf_model_name": "roberta-base"}, "hf_model_name='roberta-base'"),
        ("open_clip", "text_cfg", {"pool_type": "mean"}, "pooling must be one of"),
        ("open_clip", "text_cfg", {"norm_kwargs": 1}, "not in the format of open_clip"),
        ("open_clip", "vision_cfg", {"pool_type": "avg"}, "has pool_type='avg' of vision_cfg"),
        ("open_clip", "preprocess_cfg", {"resize_mode": "longest"}, "must be one of shortest, squash"),
    ],
)
def test_a_configuration_that_our_towers_cannot_express_is_refused(
    layout, part, wrong, message, written, tmp_path
):
    path = changed(written(f"{layout}, CLIP")[0], tmp_path)
    path.with_suffix(".json").unlink()  # which has the image tower's options, too
    file = tmp_path / ("config.json" if layout == "huggingface" else "open_clip_config.json")
    config = json.loads(file.read_text())
    inside = config if part in config else config["model_cfg"]
    inside[part] = {**inside[part], **wrong} if isinstance(wrong, dict) else wrong
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path, kind="image_text")


def test_without_its_configuration_a_clip_of_open_clip_is_read_as_openais(written, tmp_path):
    path, model = written("open_clip, CLIP")
    path = changed(path, tmp_path)
    for file in tmp_path.glob("*.json"):
        file.unlink()
    with pytest.raises(ValueError, match="give activation="):
        from_pretrained(path, kind="image_text", num_heads=3)
    again = from_pretrained(path, kind="image_text", num_heads=3, activation="quick_gelu")
    assert_same_arrays(arrays(again.image), arrays(model.image))
    assert (again.text.causal, again.text.pooling, again.text.num_heads) == (True, "argmax", 1)
    with pytest.raises(ValueError, match="'open_clip' cannot express this model: no text tower"):
        save_weights(model.image, tmp_path / "image", "open_clip")


# `norm_epsilon` of the image and the text tower: of flax and transformers, of `torch.nn.LayerNorm`, and of
# flaxformer's BERT.
EPSILONS = {
    **dict.fromkeys(("huggingface, SigLIP", "big_vision"), (1e-6, 1e-6)),
    **{"open_clip, CLIP": (1e-5, 1e-5), "LiT with BERT": (1e-6, 1e-12)},
}


def epsilons(path):
    read = checkpoint.read_checkpoint(path, num_heads=3, activation="gelu_tanh", kind="image_text")
    return read.arguments["norm_epsilon"], read.model_options["text"]["norm_epsilon"]


@pytest.mark.parametrize("name", EPSILONS)
def test_without_a_configuration_both_towers_have_the_epsilon_of_their_project(name, written, tmp_path):
    path = changed(written(name)[0], tmp_path)
    for file in tmp_path.glob("*.json"):
        file.unlink()
    assert epsilons(path) == EPSILONS[name]


def test_open_clip_stores_the_norm_of_the_pooled_token_as_that_of_all_tokens(tmp_path):
    image = {**OPEN_CLIP["image"], "norm_after_pooling": True}
    model = randomize(ImageTextModel(**{**OPEN_CLIP, "image": image}))
    again = from_pretrained(save_weights(model, tmp_path / "m", "open_clip"), kind="image_text")
    assert not again.image.norm_after_pooling
    images = images_for(model.image)
    assert_close(numpy(again.image_encoder(images)), numpy(model.image_encoder(images)), 1e-6)


@pytest.mark.parametrize("name", ["huggingface, SigLIP", "open_clip, CLIP"])
def test_a_configuration_keeps_the_epsilon_of_each_tower(name, tmp_path):
    file, layout, arguments = FILES[name]
    towers = {"image": {**arguments["image"], "norm_epsilon": 3e-4}}
    towers["text"] = {**arguments["text"], "norm_epsilon": 7e-4}
    path = save_weights(ImageTextModel(**{**arguments, **towers}), tmp_path / file, layout)
    path.with_suffix(".json").unlink()  # ours
    assert epsilons(path) == (3e-4, 7e-4)
