"""The blocks of timm and transformers in docs/coming_from.md compute what ours compute, on a small model."""

import pathlib
import re

import pytest
from made.photos import waves
from peers.packages import timm, torch
from peers.packages import transformers as transformers
from PIL import Image
from reference.comparing import assert_close, randomize
from safetensors.torch import load_file

import keras_vit

PAGE = (pathlib.Path(__file__).parents[2] / "docs/coming_from.md").read_text()
TIMM, TRANSFORMERS = "A model by its name, and its transform", "A model by its name, and its processor"


def block(package, heading, language):
    """The code of a section: theirs ("py") or ours ("python")."""
    section = PAGE.partition(f"\n## {package}\n")[2].partition(f"\n### {heading}\n")[2]
    return re.match(rf".*?^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[1]


def computed(package, headings, language, names):
    with torch.no_grad():
        for heading in headings:
            exec(compile(block(package, heading, language), heading, "exec"), names)
    return names


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model with timm's activation in the current folder, which also has a photo."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(waves(224, 224)).save("photo.jpg")
    sizes = {"hidden_size": 24, "num_layers": 6, "mlp_dim": 48, "num_heads": 3}
    names = ("a", "b", "c", "d", "e")
    return randomize(
        keras_vit.VisionTransformer(224, 16, **sizes, num_classes=5, class_names=names, activation="gelu_erf")
    )


def test_the_lines_of_timm(model, monkeypatch):
    folder = pathlib.Path(re.search('NAME = "(.+)"', block("timm", TIMM, "py"))[1])
    folder.mkdir()
    model.save(folder / "model.keras")
    state = load_file(keras_vit.save_weights(model, "theirs.safetensors", "timm"))
    create = timm.create_model

    def create_small(name, pretrained, **options):
        sizes = {"embed_dim": 24, "depth": 6, "num_heads": 3, "mlp_ratio": 2}
        theirs = create("vit_base_patch16_224", **{**sizes, "num_classes": 5, **options})
        theirs.load_state_dict({name: state[name] for name in theirs.state_dict()})
        return theirs

    monkeypatch.setattr(timm, "create_model", create_small)
    theirs = computed("timm", [TIMM, "Pretrained features", "Intermediate layers"], "py", {})
    ours = computed("timm", [TIMM], "python", {"keras_vit": keras_vit})
    ours["x"] = theirs["x"].permute(0, 2, 3, 1).numpy()
    ours["logits"] = ours["model"].predict_on_batch(ours["x"])
    computed("timm", ["Pretrained features", "Intermediate layers"], "python", ours)
    for name in ("logits", "vectors", "tokens"):
        assert_close(ours[name], theirs[name].numpy(), 1e-5)
    for stage, grid in zip(ours["maps"].values(), theirs["maps"], strict=True):
        assert_close(stage, grid.permute(0, 2, 3, 1).numpy())


def test_the_lines_of_transformers(model):
    pathlib.Path("google").mkdir()
    keras_vit.save_weights(model, "google/vit-base-patch16-224", "huggingface")
    sections = ["Pretrained features", "Hidden states and attentions"]
    theirs = computed("transformers", [TRANSFORMERS, *sections], "py", {})
    ours = computed("transformers", [TRANSFORMERS], "python", {"keras_vit": keras_vit})
    assert ours["label"] in model.class_names and theirs["label"] in model.class_names
    ours["x"] = theirs["inputs"]["pixel_values"].permute(0, 2, 3, 1).numpy()
    ours["logits"] = ours["model"].predict_on_batch(ours["x"])
    computed("transformers", sections, "python", ours)
    for name in ("logits", "tokens", "hidden", "attention"):
        assert_close(ours[name], theirs[name].numpy(), 1e-5)
