import re

import pytest

from keras_vit import Preprocessing, VisionTransformer
from keras_vit.models.config import stem_stride
from keras_vit.variants import VARIANTS, parse_variant
from keras_vit.weights import catalogue
from keras_vit.weights.catalogue import CATALOGUE, CSV, find, list_models, resolve
from keras_vit.weights.class_names import LISTS

ROWS = [*CATALOGUE.values()]
FAMILIES = r"(vit|deit|deit3|eva|flexivit|test_vit\d?)"


def test_names_and_sources_are_unique_and_names_sorted():
    lines = CSV.read_text().splitlines()[1:]
    names = [line.partition(",")[0] for line in lines]
    assert names == [*CATALOGUE] == sorted({*names})
    assert len({row.source for row in ROWS}) == len(ROWS) == len(lines) > 300
    assert all(name == row.name for name, row in CATALOGUE.items())


def test_rows_have_the_documented_form():
    sources = r"hf://(timm|google|facebook)/[\w.-]+|gs://(vit_models|big_vision)/[\w.+/-]+\.npz"
    for row in ROWS:
        assert re.fullmatch(FAMILIES + r"_[a-z0-9_]+", row.name), row.name
        assert re.fullmatch(sources, row.source), row.name
        assert row.source.startswith("gs://") == row.name.endswith("_npz"), row.name
        assert row.source.startswith(("hf://google/", "hf://facebook/")) == ("_hf_" in row.name), row.name
        size = re.search(r"_(\d{3})(_npz)?$", row.name)
        assert row.image_size == ((int(size[1]) if size else 224),) * 2, row.name
        assert not size or size[1] != "224", row.name
        assert row.num_classes is None or row.num_classes > 0, row.name


def test_the_classes_agree_with_the_name():
    for row in ROWS:
        in1k = "in1k" in row.name
        assert (row.class_names == "imagenet_1k") == (row.num_classes == 1000) == in1k, row.name
        assert row.class_names in (None, *LISTS), row.name
        assert row.pretrained_on.endswith("ImageNet-1k") == in1k, row.name
        if re.search(r"in12k(_\d+)?$", row.name):
            assert row.num_classes == 11821, row.name
        if re.search(r"augreg_in21k(_npz)?$", row.name):
            assert row.num_classes == 21843, row.name
        if "dino" in row.name or "_mae" in row.name:
            assert row.num_classes is None, row.name


def test_the_variant_agrees_with_the_name_and_the_patch_divides_the_image():
    words = {"G": "gigantic", "g-opt": "gopt"}
    for row in ROWS:
        assert (row.variant is None) == ("num_heads" in row.options), row.name  # A variant has a head count.
        if row.variant is None:
            assert not re.search(r"_(ti|s|b|l|h)\d", row.name) or "plus" in row.name, row.name
            continue
        arguments = parse_variant(row.variant)
        stem, _, rest = row.variant.rpartition("+")
        size, patch = rest.split("/")
        expected = [stem.lower()] * bool(stem) + [words.get(size, size.lower()) + patch]
        assert row.name.partition("_")[2].startswith("_".join(expected) + "_"), row.name
        patches = row.image_size[0] / stem_stride(arguments.get("resnet")) / arguments["patch_size"]
        assert patches == int(patches) > 1, row.name


@pytest.mark.parametrize(
    "options",
    [dict(o) for o in sorted({tuple(i for i in row.options.items() if i[0] != "num_heads") for row in ROWS})],
    ids=str,
)
def test_options_are_arguments_that_no_file_determines(options):
    assert {*options} <= {"activation", "pooling", "norm_epsilon", "position_embedding"}
    small = {"image_size": 32, "patch_size": 16, "hidden_size": 16}
    model = VisionTransformer(**{**small, "num_layers": 1, "mlp_dim": 16, "num_heads": 1, **options})
    assert all(getattr(model, name) == value for name, value in options.items())


def test_activations_are_given_only_where_the_layout_leaves_them_open():
    for row in ROWS:
        given = row.options.get("activation")
        clip = "_clip_" in row.name
        mapped = "_siglip_" in row.name and "_gap_" not in row.name
        if clip or mapped:
            assert given in ("gelu_erf", "gelu_tanh", "quick_gelu"), row.name
        else:
            assert given in (None, "gelu_tanh"), row.name
        assert given != "quick_gelu" or clip, row.name


def test_preprocessing_arguments_are_valid():
    for row in ROWS:
        made = Preprocessing(row.image_size, **row.preprocessing)
        assert {**row.preprocessing, "image_size": row.image_size}.items() <= made.get_config().items()
        assert ("crop_fraction" in row.preprocessing) == (made.resize == "crop"), row.name
        official = row.source.startswith("gs://vit_models/")
        assert made.antialias != official, row.name
        assert not official or made == Preprocessing(row.image_size), row.name


def test_reported_facts_have_a_source():
    for row in ROWS:
        assert row.pretrained_on, row.name
        assert (row.licence is None) == (row.licence_source is None), row.name
        assert (row.top1 is None) == (row.top1_source is None), row.name
        assert row.top1 is None or (40 < row.top1 < 92 and row.num_classes == 1000), row.name
        assert (row.revision is None) == (row.pin_source is None), row.name
        assert row.sha256 is None or (re.fullmatch(r"[0-9a-f]{64}", row.sha256) and row.revision), row.name
        assert row.bytes is None or (row.bytes > 10**6 and row.sha256), row.name
        assert row.revision is None or re.fullmatch(r"[0-9a-f]{40}", row.revision), row.name


def test_names_resolve_to_the_pinned_revision(repository):
    pinned = [row for row in ROWS if row.revision]
    for row in pinned:
        repository_name = row.source.partition("://")[2]
        for name in (row.name, repository_name, repository_name.removeprefix("timm/")):
            assert resolve(name) == f"{row.source}@{row.revision}" == row.url
        assert resolve(row.source) == row.source and find(row.url) is find(row.source) is row
    manual = (repository / "docs/checkpoints.md").read_text()
    assert f"{len(pinned)} of the {len(ROWS)} rows pin a commit" in manual


@pytest.mark.parametrize(
    "name, source, variant, size, classes",
    [
        ("vit_b16_augreg_in21k", "hf://timm/vit_base_patch16_224.augreg_in21k", "B/16", 224, 21843),
        (
            "vit_b16_augreg_in21k_ft_in1k_384",
            "hf://timm/vit_base_patch16_384.augreg_in21k_ft_in1k",
            *("B/16", 384, 1000),
        ),
        (
            "deit3_s16_in22k_ft_in1k_384",
            "hf://timm/deit3_small_patch16_384.fb_in22k_ft_in1k",
            *("S/16", 384, 1000),
        ),
        ("vit_b16_hf_in21k", "hf://google/vit-base-patch16-224-in21k", "B/16", 224, None),
        ("vit_b16_orig_in21k_npz", "gs://vit_models/imagenet21k/ViT-B_16.npz", "B/16", 224, 21843),
        ("vit_r50_l32_augreg_in21k", "hf://timm/vit_large_r50_s32_224.augreg_in21k", "R50+L/32", 224, 21843),
    ],
)
def test_known_names_have_known_sources(name, source, variant, size, classes):
    row = find(name)
    assert (row.source, row.variant, row.image_size[0], row.num_classes) == (source, variant, size, classes)
    assert find(source) is row


@pytest.mark.parametrize("end", ["@main", "@0a1b2c", "/model.safetensors", "@main/model.safetensors"])
def test_a_revision_or_a_file_of_a_repository_is_found(end):
    assert find(f"hf://timm/vit_base_patch16_224.augreg_in21k{end}").name == "vit_b16_augreg_in21k"


@pytest.mark.parametrize(
    "text", ["", "vit", "hf://timm", "hf://timm/resnet50.a1_in1k", "gs://vit_models/x.npz"]
)
def test_other_sources_are_not_found(text):
    assert find(text) is None


@pytest.mark.parametrize(
    "name, message",
    [
        ("vit_b16_augreg_in21", "called 'vit_b16_augreg_in21'; did you mean .*'vit_b16_augreg_in21k'"),
        ("VIT_B16_CLIP_OPENAI", "did you mean .*'vit_b16_clip_openai'"),
        ("vit_base_patch16_224.augreg_in21", "did you mean .*'vit_base_patch16_224.augreg_in21k'"),
        ("vit_base_patch16_224", "did you mean .*'vit_base_patch16_224"),
        ("!", "no checkpoint is called '!'; `keras-vit models` lists"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest(name, message):
    with pytest.raises(ValueError, match=message):
        resolve(name)


def test_paths_and_urls_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "folder").mkdir()
    paths = ("a.npz", "a.npz:img", "folder/a", "./a", "a\\b", "weights", "org/a.npz")
    for source in (*paths, "https://example.org/a"):
        assert resolve(source) is source
    assert resolve(tmp_path) is tmp_path
    assert resolve("vit_b16_dino") == CATALOGUE["vit_b16_dino"].source
    assert resolve("hf://timm/no_such_model@main") == "hf://timm/no_such_model@main"


@pytest.mark.parametrize(
    "name, row",
    [
        ("vit_base_patch16_224.augreg_in21k_ft_in1k", "vit_b16_augreg_in21k_ft_in1k"),
        ("timm/vit_base_patch16_224.augreg_in21k_ft_in1k", "vit_b16_augreg_in21k_ft_in1k"),
        ("google/vit-base-patch16-224", "vit_b16_hf_in21k_ft_in1k"),
        ("somebody/flowers.v2", None),
    ],
)
def test_a_name_of_timm_or_hugging_face_is_its_repository(name, row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve(name) == (CATALOGUE[row].url if row else f"hf://{name}")
    assert find(name) == CATALOGUE.get(row)
    folder = tmp_path / name  # A path takes precedence.
    folder.mkdir(parents=True)
    assert resolve(name) is name and find(name) is None
    folder.rmdir()
    if row is None:  # The folder exists: a wrong path in it.
        assert resolve(name) is name


def test_a_variant_is_no_checkpoint(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="'B/16' is a variant, which has no weights; give a checkpoint, or"):
        resolve("B/16")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "B/16").mkdir(parents=True)
    assert resolve("B/16") == "B/16"


def test_names_are_listed_by_part_wildcard_and_variant():
    assert list_models() == [*CATALOGUE]
    assert list_models("google/") == [n for n, row in CATALOGUE.items() if "google" in row.source]
    assert list_models("vit_base_patch8_*") == [
        name for name, row in CATALOGUE.items() if row.source.startswith("hf://timm/vit_base_patch8_")
    ]
    assert list_models(["DEIT3", "*_384"], variant="B/16") == [
        "deit3_b16_in1k_384",
        "deit3_b16_in22k_ft_in1k_384",
    ]
    assert list_models("b16") != list_models("b16*") == []
    with pytest.raises(ValueError, match="'X/16'"):
        list_models(variant="X/16")


def test_the_named_sizes_without_the_head_count_are_unique():
    sizes = [sizes[:3] for sizes in VARIANTS.values()]
    assert len({*sizes}) == len(sizes)  # They determine the head count.


def test_all_norms_are_used():
    used = {(row.preprocessing["mean"], row.preprocessing["std"]) for row in ROWS}
    assert used == {*catalogue.NORMS.values()}
