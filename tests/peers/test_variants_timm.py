"""The sizes of the families of `variants.py`, from the authors' modules as timm builds them."""

import pytest
from peers.packages import timm, torch

from keras_vit.variants import FAMILIES, cost

# timm's names, in the order of our sizes.
NAMES = {
    "BEiT": ("beit_base_patch16_224", "beit_large_patch16_224"),
    "BEiTv2": ("beitv2_base_patch16_224", "beitv2_large_patch16_224"),
    "BEiT-3": ("beit3_base_patch16_224", "beit3_large_patch16_224", "beit3_giant_patch14_224"),
    "EVA": ("eva_large_patch14_196", "eva_giant_patch14_224"),
    "EVA-CLIP": ("eva_giant_patch14_clip_224",),
    "EVA-02": (
        *("eva02_tiny_patch14_224", "eva02_small_patch14_224"),
        *("eva02_base_patch14_224", "eva02_large_patch14_224"),
    ),
    "EVA-02-CLIP": (
        *("eva02_base_patch16_clip_224", "eva02_large_patch14_clip_224", "eva02_enormous_patch14_clip_224"),
    ),
    "SigLIP": (
        *("vit_base_patch32_siglip_256", "vit_base_patch16_siglip_224", "vit_large_patch16_siglip_256"),
        *("vit_so400m_patch14_siglip_224", "vit_so400m_patch16_siglip_256"),
        "vit_giantopt_patch16_siglip_256",
    ),
    "DINOv2": tuple(f"vit_{size}_patch14_dinov2" for size in ("small", "base", "large", "giant")),
    "DINOv2-reg": tuple(f"vit_{size}_patch14_reg4_dinov2" for size in ("small", "base", "large", "giant")),
    "TIPSv2": tuple(f"vit_{size}_patch14_reg1_tipsv2" for size in ("base", "large", "so400m", "giant")),
    "InternViT": ("vit_intern300m_patch14_448",),
    **{
        f"RoPE-{kind}": tuple(f"vit_{size}_patch16_rope{part}_224" for size in ("small", "base", "large"))
        for kind, part in {
            **{"axial": "", "axial-APE": "_ape"},
            **{"mixed": "_mixed", "mixed-APE": "_mixed_ape"},
        }.items()
    },
    "AIMv2": tuple(f"aimv2_{size}_patch14_224" for size in ("large", "huge", "1b", "3b")),
    "C-RADIOv3": tuple(f"vit_{size}_patch16_radio_v3" for size in ("base", "large", "huge", "giant")),
    "C-RADIOv4": ("vit_so400m_patch16_radio_v4", "vit_huge_patch16_radio_v4"),
    "PE-core": (
        *("vit_pe_core_tiny_patch16_384", "vit_pe_core_small_patch16_384", "vit_pe_core_base_patch16_224"),
        *("vit_pe_core_large_patch14_336", "vit_pe_core_gigantic_patch14_448"),
    ),
    "PE-spatial": (
        *(f"vit_pe_spatial_{size}_patch16_512" for size in ("tiny", "small", "base")),
        *("vit_pe_spatial_large_patch14_448", "vit_pe_spatial_gigantic_patch14_448"),
    ),
    "PE-lang": ("vit_pe_lang_large_patch14_448", "vit_pe_lang_gigantic_patch14_448"),
    "DINOv3": (
        *("vit_small_patch16_dinov3_qkvb", "vit_small_plus_patch16_dinov3_qkvb"),
        *("vit_base_patch16_dinov3_qkvb", "vit_large_patch16_dinov3_qkvb"),
        *("vit_huge_plus_patch16_dinov3_qkvb", "vit_7b_patch16_dinov3"),
    ),
    "EUPE": tuple(f"vit_{size}_patch16_dinov3_qkvb" for size in ("tiny", "small", "base")),
    "LingBot": tuple(f"vit_{size}_patch16_lingbot" for size in ("small", "base", "large", "giant")),
    "Sapiens2": tuple(f"vit_{size}_patch16_sapiens2" for size in ("base", "large", "huge", "giant", "5b")),
}
CASES = [
    (f"{family}-{size}", theirs)
    for family, names in NAMES.items()
    for size, theirs in zip(FAMILIES[family][1], names, strict=True)
]


def test_every_family_of_timm_is_compared():
    assert {*FAMILIES} - {*NAMES} == {"ViT-5"}


@pytest.mark.parametrize("name, theirs", CASES)
def test_timms_module_has_the_same_number_of_parameters(name, theirs):
    with torch.device("meta"):
        model = timm.create_model(theirs, img_size=224, num_classes=0)
    count = sum(weight.numel() for weight in model.parameters())
    assert cost(name, num_classes=None)["parameters"] == count
