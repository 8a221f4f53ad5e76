import json
import re

import pytest
from made.tables import by_table

from keras_vit.models.vit.schema import OPTIONS, ViTConfig
from keras_vit.variants import FAMILIES, PLAIN, PUBLISHED, cost, parse_variant, variant_of

FAMILY_NAMES = [f"{family}-{size}" for family, (_, sizes) in FAMILIES.items() for size in sizes]


@by_table(
    "name, options",
    [
        ("B/16", {"hidden_size": 768, "num_layers": 12, "mlp_dim": 3072, "num_heads": 12, "patch_size": 16}),
        ("S/2", {"num_heads": 6, "patch_size": 2}),
        ("g-opt/16", {"num_heads": 16, "patch_size": 16}),
        ("So400m/14", {"num_heads": 16, "patch_size": 14}),
        ("R50+L/32", {"num_heads": 16, "patch_size": 1, "resnet": (3, 4, 6, 3)}),
        ("DINOv3-S+/16", {"mlp_dim": 1536, "gated_mlp": True, "num_registers": 4, "patch_size": 16}),
        ("DINOv2-g/14", {"hidden_size": 1536, "num_heads": 24, "mlp_dim": 4096, "activation": "silu"}),
        ("EVA-02-S/7", {"mlp_dim": 1024, "pooling": "gap", "norm_after_pooling": True, "patch_size": 7}),
        ("EVA-02-CLIP-E/14", {"num_layers": 64, "post_norm": True, "class_token": True}),
        ("PE-core-G/14", {"num_heads": 16, "pooling_heads": 8, "class_token": False, "pre_norm": True}),
        ("SigLIP-So400m/14", {"mlp_dim": 4304, "pooling": "map"}),
    ],
)
def test_a_name_has_its_options(name, options):
    found = parse_variant(name)
    assert {option: found[option] for option in options} == options


@by_table(
    "name, message",
    [
        ("XL/16", "variant 'XL/16' is unknown.*; expected .*such as 'B/16'.*'DINOv3-S/16'.*Ti, S, M, B, L"),
        ("DINOv3-e/16", "variant 'DINOv3-e/16' is unknown"),
        ("R26+DINOv3-S/32", r"variant 'R26\+DINOv3-S/32' is unknown"),
        *((name, f"variant {name!r} is unknown") for name in ("B", "B/0", "B/016", 16, None)),
        *(
            (name, r"\(did you mean 'B/16'\?\)")
            for name in ("b/16", "B16", "ViT-B_16", "vit_b_16", "vit_base_patch16_224.mae")
        ),
        ("dinov3-s/16", r"\(did you mean 'DINOv3-S/16'\?\)"),
        ("R26+B/16", r"hybrid 'R26\+B/16' is unknown.*; those of this size are R\+B/16, R26\+B/32"),
        ("R101+B/16", r"hybrid 'R101\+B/16' is unknown"),
    ],
)
def test_an_unknown_name_is_refused_in_one_line(name, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_variant(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("R+Ti/16", 28), "at least its patch size of 8; got 7×7"),
        (("B/16", 224, -5), "num_classes must be an int of at least 0 or None; got -5"),
        (("B/16", 224, 10, "mean"), "expected pooling 'token', 'gap' or 'map'; got 'mean'"),
    ],
)
def test_an_invalid_model_has_no_cost(arguments, message):
    with pytest.raises(ValueError, match=message):
        cost(*arguments)


@by_table("name", FAMILY_NAMES)
def test_the_options_of_a_family_are_in_their_normal_forms(name):
    """So that they equal those of a configuration that was read from a file."""
    arguments = parse_variant(name)
    config = vars(ViTConfig(image_size=arguments["patch_size"] * 2, **arguments))
    arguments["patch_size"] = (arguments["patch_size"],) * 2
    assert {option: config[option] for option in arguments} == arguments


def test_plain_options_are_the_defaults():
    assert {name: OPTIONS[name].default for name in PLAIN} == PLAIN


def test_published_sizes_are_recognized():
    for name in set(PUBLISHED) - set(FAMILY_NAMES):
        arguments = {"resnet": None, **parse_variant(name), "pooling": "token"}
        assert variant_of(arguments) == name
        pair = {**arguments, "patch_size": [arguments["patch_size"]] * 2}
        pair["resnet"] = pair["resnet"] and [*pair["resnet"]]
        assert variant_of(pair) == name
        assert variant_of({**arguments, "mlp_dim": 7}) is None
        assert variant_of({**arguments, "gated_mlp": True, "activation": "silu"}) in (None, *FAMILY_NAMES)
    assert variant_of({**parse_variant("B/16"), "patch_size": (16, 8)}) is None


def test_the_manual_lists_every_family_with_its_sizes(repository):
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+/\d+) \|$",
        (repository / "docs/architecture.md").read_text(encoding="utf-8"),
        re.M,
    )
    found = set()
    for families, sizes in rows:
        groups = re.sub(r" \(.*?\)", "", families).split("; ")
        lists = sizes.split("; ") * (len(groups) if ";" not in sizes else 1)
        for names, numbers in zip(groups, lists, strict=True):
            found |= {f"{name}-{size}" for name in names.split(", ") for size in numbers.split(", ")}
    assert found == {*FAMILY_NAMES}


SAME = {  # which no option tells from another family, or from a plain Vision Transformer
    "BEiTv2": "BEiT-",
    "EUPE": "DINOv3-",
    "LingBot": "DINOv3-",
    **dict.fromkeys(("EVA", "EVA-CLIP", "SigLIP", "DINOv2", "DINOv2-reg", "TIPSv2"), ""),
}
OTHERS = {"EUPE-Ti/16": "EUPE-Ti/16", "LingBot-g/16": "LingBot-g/16", "TIPSv2-g/14": "TIPSv2-g/14"}
OTHERS |= {name: name for name in ("DINOv2-g/14", "DINOv2-reg-g/14")}


@by_table("family, size", [(family, size) for family in FAMILIES for size in FAMILIES[family][1]])
def test_sizes_of_families_are_recognized(family, size):
    name = f"{family}-{size}"
    expected = OTHERS.get(name, SAME.get(family, f"{family}-") + size)
    arguments = parse_variant(name)
    assert variant_of(arguments) == expected
    # As in a configuration file, of a model with another pooling.
    changed = {**arguments, "patch_size": [arguments["patch_size"]] * 2, "pooling": None, "layer_scale": 0.5}
    assert variant_of(json.loads(json.dumps(changed))) == expected
