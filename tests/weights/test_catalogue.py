import re

import pytest
from made.tables import by_table

from keras_vit import Preprocessing
from keras_vit.models.vit.geometry import stem_stride
from keras_vit.models.vit.schema import check_options
from keras_vit.variants import FAMILIES, VARIANTS, cost, parse_variant
from keras_vit.weights.catalogue import CATALOGUE, CSV, find, license_note, list_models, resolve
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.timm_config import options_of

ROWS = [*CATALOGUE.values()]
PREFIXES = r"(vit|deit|deit3|eva|eva02|beit|beitv2|beit3|aimv2|pe_\w+|naflexvit|flexivit|test_vit\d?)"


def test_names_and_sources_are_unique_and_names_sorted():
    lines = CSV.read_text().splitlines()[1:]
    names = [line.partition(",")[0] for line in lines]
    assert names == [*CATALOGUE] == sorted({*names})
    assert len({row.source for row in ROWS}) == len(ROWS) == len(lines) > 300


OWN = ("hf://google/", "hf://facebook/", "hf://openai/", "hf://laion/")  # repositories of the authors


def test_names_tell_source_size_and_classes():
    sources = r"hf://(timm|google|facebook|openai|laion)/[\w.-]+|gs://(vit_models|big_vision)/[\w.+/-]+\.npz"
    for row in ROWS:
        assert re.fullmatch(PREFIXES + r"(_[a-z0-9_]+)?", row.name), row.name
        assert re.fullmatch(sources, row.source), row.name
        assert row.source.startswith("gs://") == row.name.endswith("_npz"), row.name
        assert row.source.startswith(OWN) == ("_hf_" in row.name), row.name
        size = re.search(r"_(\d{3,})(?:x(\d+))?(_npz)?$", row.name)
        sides = (int(size[1]), int(size[2] or size[1])) if size else (224, 224)
        assert row.image_size == sides, row.name
        in1k = "in1k" in row.name and not re.search(r"_ft_in22k(_\d+)?$", row.name)
        assert (row.class_names == "imagenet_1k") == (row.num_classes == 1000) == in1k, row.name
        assert row.pretrained_on.endswith("ImageNet-1k") == in1k, row.name
        for words, classes in {
            r"in12k(_\d+)?$": 11821,
            r"augreg_in21k(_npz)?$": 21843,
            "dino|_mae": None,
        }.items():
            assert not re.search(words, row.name) or row.num_classes == classes, row.name


FAMILY_OF = {f"{family}-{size}": (family, size) for family in FAMILIES for size in FAMILIES[family][1]}
# What names have for a size or a variant, and what they match for a family.
SIZE_WORDS = {
    **{"G/14": "gigantic14", "g-opt/16": "gopt16", "S+/16": "s16_plus", "H+/16": "h16_plus"},
    **{f"PE-{kind}-G/14": "gg14" for kind in ("core", "lang", "spatial")},
    **{"300M/14": "intern300m14", "0.1B/16": "b16", "0.4B/16": "l16", "0.8B/16": "h16"},
    **{"Sapiens2-1B/16": "g16"},
}
FAMILY_WORDS = {
    **{"BEiT": "beit_", "BEiTv2": "beitv2", "BEiT-3": "beit3", "EVA": "eva_g14_(m30m|clip_ft)"},
    **{"EVA-CLIP": "eva_g14_clip_(?!ft)", "EVA-02": "eva02_.*_mim_", "EVA-02-CLIP": "eva02_.*_clip_"},
    **{"AIMv2": "aimv2", "SigLIP": "naflexvit_.*_siglip_", "DINOv2": "vit_g14_dinov2"},
    **{"DINOv2-reg": "vit_g14_reg4_dinov2", "TIPSv2": "vit_g14_reg1_tipsv2", "InternViT": "vit_intern"},
    **{"RoPE-axial": "vit_.*_rope_naver", "RoPE-axial-APE": "vit_.*_rope_ape_"},
    **{"RoPE-mixed": "vit_.*_rope_mixed_naver", "RoPE-mixed-APE": "vit_.*_rope_mixed_ape_"},
    **{"C-RADIOv3": ".*_radio_v3_", "C-RADIOv4": ".*_radio_v4_", "PE-core": "pe_core", "PE-lang": "pe_lang"},
    **{"PE-spatial": "pe_spatial", "DINOv3": "vit_.*_dinov3_(?!.*eupe)", "EUPE": "vit_.*_eupe_"},
    "Sapiens2": "vit_.*_sapiens2",
}


def test_the_variant_agrees_with_the_name_and_is_given_where_there_is_one():
    for row in ROWS:
        assert (row.variant is None) == ("num_heads" in row.options), row.name  # A variant has a head count.
        if row.variant is None:
            only_timms = r"test_|_(rope_reg\d|rpn|b16_plus)_|_(betwixt|little|mediumd|so150m|wee|xsmall)"
            assert re.search(only_timms, row.name), row.name
            continue
        family, size = FAMILY_OF.get(row.variant, (None, row.variant))
        families = [name for name, words in FAMILY_WORDS.items() if re.match(words, row.name)]
        assert families == [family] * (family is not None), row.name
        stem, plus, plain = size.rpartition("+") if family is None else ("", "", size)
        word = SIZE_WORDS.get(row.variant, SIZE_WORDS.get(plain, plain.replace("/", "").lower()))
        assert f"_{stem.lower()}{'_' * bool(plus)}{word}_" in f"{row.name}_", row.name


def test_the_patch_divides_the_image_but_for_so400m_at_384():
    for row in ROWS:
        if row.variant is None:
            continue
        arguments = parse_variant(row.variant)
        patches = row.image_size[0] / stem_stride(arguments.get("resnet")) / arguments["patch_size"]
        assert patches > 1, row.name
        assert (patches == int(patches)) != (arguments["patch_size"] == 14 and row.image_size[0] == 384)


def test_a_file_of_known_size_holds_the_variants_parameters():
    """The header of a file and a representation layer add less than two per cent."""
    for row in ROWS:
        if row.bytes:
            counted = cost(row.variant, row.image_size[0], row.num_classes)["parameters"]
            assert 1 <= row.bytes / (4 * counted) < 1.02, row.name


def test_options_are_valid_and_activations_given_only_where_the_layout_leaves_them_open():
    for row in ROWS:
        assert {*row.options} <= {
            *("activation", "pooling", "norm_epsilon", "num_heads"),
            *("position_embedding", "position_interpolation"),
        }
        check_options(row.options, row.name)
        given, clip = row.options.get("activation"), "_clip_" in row.name
        if clip or ("_siglip_" in row.name and "_gap_" not in row.name):
            swiglu = ("silu",) * row.name.startswith("eva02_")
            assert given in ("gelu_erf", "gelu_tanh", "quick_gelu", *swiglu), row.name
        else:
            assert given in (None, "gelu_tanh"), row.name
        assert given != "quick_gelu" or clip, row.name


def test_interpolations_of_positions_are_given_where_the_layout_does_not_imply_them():
    implied, start = LAYOUTS["timm"].position_interpolation(()), "hf://timm/"
    for row in ROWS:
        if row.source.startswith(start):
            config = {"architecture": row.source.removeprefix(start).partition(".")[0], "global_pool": "map"}
            expected = options_of(config)["position_interpolation"]
            assert row.options.get("position_interpolation", implied) == expected, row.name
    naflex = find("google/siglip2-base-patch16-naflex")
    assert naflex.options["position_interpolation"] == "bilinear_antialias"


def test_preprocessing_arguments_are_valid():
    for row in ROWS:
        made = Preprocessing(row.image_size, **row.preprocessing)
        assert {**row.preprocessing, "image_size": row.image_size}.items() <= made.get_config().items()
        assert ("crop_fraction" in row.preprocessing) == made.crops, row.name
        torchvision = row.source.startswith(("hf://timm/", "hf://laion/"))
        assert made.crop_rounding == ("even" if made.crops and torchvision else "down"), row.name
        official = row.source.startswith("gs://vit_models/")
        assert made.antialias != official, row.name
        assert not official or made == Preprocessing(row.image_size), row.name


def test_reported_facts_have_a_source():
    for row in ROWS:
        assert row.pretrained_on, row.name
        assert (row.license is None) == (row.license_source is None), row.name
        assert (row.top1 is None) == (row.top1_source is None), row.name
        assert row.top1 is None or (40 < row.top1 < 92 and row.num_classes == 1000), row.name
        assert (row.revision is None) == (row.pin_source is None), row.name
        assert row.sha256 is None or (re.fullmatch(r"[0-9a-f]{64}", row.sha256) and row.revision), row.name
        assert row.bytes is None or (row.bytes > 10**6 and row.sha256), row.name
        assert row.revision is None or re.fullmatch(r"[0-9a-f]{40}", row.revision), row.name


@by_table(
    "source, words",
    [
        ("hf://timm/vit_small_patch16_dinov3.lvd1689m", "Meta's DINOv3 license, which restricts"),
        ("hf://facebook/dinov3-vits16-pretrain-lvd1689m", "Meta's DINOv3 license, which restricts"),
        ("hf://timm/vit_base_patch16_224.mae", "the license cc-by-nc-4.0, which restricts"),
        ("hf://timm/vit_base_patch16_224.augreg_in21k", None),
        ("model.safetensors", None),
    ],
)
def test_a_license_that_restricts_the_use_is_said(source, words):
    note = license_note(find(source))
    assert note is None if words is None else words in note and source in note


def test_names_resolve_to_the_pinned_revision(repository):
    pinned = [row for row in ROWS if row.revision]
    for row in pinned:
        repository_name = row.source.partition("://")[2]
        for name in (row.name, repository_name, repository_name.removeprefix("timm/")):
            assert resolve(name) == f"{row.source}@{row.revision}" == row.url
        assert resolve(row.source) == row.source and find(row.url) is find(row.source) is row
    manual = (repository / "docs/checkpoints.md").read_text()
    assert f"{len(pinned)} of the {len(ROWS)} rows pin a commit" in manual


@by_table(
    "name, source",
    [
        ("vit_b16_hf_in21k", "hf://google/vit-base-patch16-224-in21k"),
        ("vit_b16_orig_in21k_npz", "gs://vit_models/imagenet21k/ViT-B_16.npz"),
        ("vit_r50_l32_augreg_in21k", "hf://timm/vit_large_r50_s32_224.augreg_in21k"),
    ],
)
def test_known_names_have_known_sources(name, source):
    assert find(name).source == source and find(source) is find(name)


def test_a_revision_or_a_file_of_a_repository_is_found_and_other_sources_are_not():
    for end in ("@main", "/model.safetensors", "@main/model.safetensors"):
        source = f"hf://timm/vit_base_patch16_224.augreg_in21k{end}"
        assert find(source).name == "vit_b16_augreg_in21k"
    for source in ("", "vit", "hf://timm", "hf://timm/resnet50.a1_in1k", "gs://vit_models/x.npz"):
        assert find(source) is None


@by_table(
    "name, message",
    [
        ("VIT_B16_AUGREG_IN21", "'VIT_B16_AUGREG_IN21'; did you mean .*'vit_b16_augreg_in21k'"),
        ("vit_base_patch16_224.augreg_in21", "did you mean .*'vit_base_patch16_224.augreg_in21k'"),
        ("vit_base_patch16_224", "did you mean 'vit_base_patch16_224.augreg2_in21k_ft_in1k', .* and 7 more"),
        ("timm/deit_base_patch16_224", r"did you mean 'deit_base_patch16_224.fb_in1k'\?"),
        ("B/16", r"'B/16' is a variant and .*VisionTransformer.from_variant\('B/16'\).*list_models\("),
        ("vit_b_16", r"'vit_b_16' is a variant and .*from_variant\('B/16'\)"),
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
    for source in (*paths, "https://example.org/a", "hf://timm/no_such_model@main", tmp_path):
        assert resolve(source) is source


@by_table(
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


def test_names_are_listed_by_part_wildcard_and_variant():
    assert list_models() == [*CATALOGUE]
    assert list_models("google/") == [n for n, row in CATALOGUE.items() if "google" in row.source]
    assert list_models("vit_base_patch8_*") == [
        name for name, row in CATALOGUE.items() if row.source.startswith("hf://timm/vit_base_patch8_")
    ]
    expected = ["deit3_b16_in1k_384", "deit3_b16_in22k_ft_in1k_384"]
    assert list_models(["DEIT3", "*_384"], variant="B/16") == expected
    assert list_models("b16") != list_models("b16*") == []
    with pytest.raises(ValueError, match="'X/16'"):
        list_models(variant="X/16")


def test_the_named_sizes_without_the_head_count_are_unique():
    sizes = [sizes[:3] for sizes in VARIANTS.values()]
    assert len({*sizes}) == len(sizes)  # They determine the head count.
