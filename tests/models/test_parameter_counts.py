"""The number of parameters of every published model, from its authors' tests and code.

Those of `FAMILIES` are compared with the authors' modules in tests/peers/test_variants_timm.py. Models with
at least 100 million parameters are built with one and with two blocks: the count is linear in the depth.
Their variables are not initialized, which would take most of the time.
"""

import math

import keras
import pytest
from made.sampling import some
from made.tables import by_table

from keras_vit import VisionTransformer
from keras_vit.models.vit.geometry import grid_shape
from keras_vit.variants import FAMILIES, PUBLISHED, STEMS, VARIANTS, cost, parse_variant

pytestmark = pytest.mark.tensorflow_only("a count is the same on every backend, and JAX is slow to build")

OFFICIAL = {  # `vit_jax/configs/models.py`: with 1000 and with 21843 classes, 224 pixels
    "Ti/16": (5_717_416, 9_740_115),
    "S/16": (22_050_664, 30_075_219),
    "S/32": (22_878_952, 30_903_507),
    "B/8": (86_576_872, 102_605_139),
    "B/16": (86_567_656, 102_595_923),
    "B/32": (88_224_232, 104_252_499),
    "L/16": (304_326_632, 325_690_707),
    "L/32": (306_535_400, 327_899_475),
    "H/14": (632_045_800, 658_745_683),
    "R+Ti/16": (6_337_704, 10_360_403),
    "R26+S/32": (36_431_912, 44_456_467),
    "R26+B/32": (101_383_976, 117_412_243),
    "R50+B/16": (98_659_112, 114_687_379),
    "R50+L/32": (328_994_856, 350_358_931),
}
MEAN_POOLED = {  # the same, pooled by mean
    "S/16": (22_049_896, 30_074_451),
    "S/32": (22_878_184, 30_902_739),
    "B/16": (86_566_120, 102_594_387),
    "B/32": (88_222_696, 104_250_963),
}
HEADLESS = {  # `big_vision`, patch 14, 224 pixels, no head: pooled by mean and by attention
    "mu": (39_808, 52_480),
    "Ti": (5_500_992, 5_945_664),
    "S": (21_618_816, 23_392_896),
    "M": (38_262_272, 41_414_144),
    "B": (85_704_960, 92_792_064),
    "L": (303_176_704, 315_771_904),
    "So400m": (412_442_352, 427_680_704),
    "H": (630_762_240, 650_438_400),
    "g": (1_011_199_616, 1_036_448_384),
    "g-opt": (1_134_561_792, 1_162_891_776),
    "G": (1_842_772_352, 1_881_132_416),
    "G-opt": (1_663_302_144, 1_697_925_632),
    "e": (3_805_417_728, 3_873_342_720),
}
VIT_5 = {  # github.com/wangf3014/ViT-5: 224 pixels, no head
    "ViT-5-S/16": 21_654_144,
    "ViT-5-B/16": 85_774_080,
    "ViT-5-L/16": 303_233_024,
    "ViT-5-XL/16": 447_352_128,
}
OTHERS = {  # published without counts at 16 pixels: computed by hand from those at 14 pixels in HEADLESS.
    # The kernel has 60·3·width more parameters, the table (256 - 196)·width fewer.
    name: tuple(count + 180 * width - 60 * width for count in HEADLESS[name.split("/")[0]])
    for name, width in {"mu/16": 32, "M/16": 512, "g-opt/16": 1536, "G-opt/16": 1536}.items()
}
CASES = [
    *((name, k, {"num_classes": n}) for name, c in OFFICIAL.items() for n, k in zip((1000, 21843), c)),
    *(
        (name, k, {"num_classes": n, "pooling": "gap"})
        for name, c in MEAN_POOLED.items()
        for n, k in zip((1000, 21843), c)
    ),
    *((f"{n}/14", k, {"pooling": p}) for n, c in HEADLESS.items() for p, k in zip(("gap", "map"), c)),
    *((name, k, {"pooling": p}) for name, c in OTHERS.items() for p, k in zip(("gap", "map"), c)),
]
FAMILY_NAMES = [f"{family}-{size}" for family, (_, sizes) in FAMILIES.items() for size in sizes]
FAMILY_CASES = [(name, cost(name, num_classes=None)["parameters"], {}) for name in FAMILY_NAMES]


@pytest.mark.parametrize("name, count, options", some([*some(CASES, 7), *some(FAMILY_CASES, 60)], 3))
def test_a_published_model_has_its_published_number_of_parameters(name, count, options):
    sizes = parse_variant(name)
    layers, kv_heads = sizes["num_layers"], sizes.get("num_kv_heads")
    if count < 100e6:
        assert parameters(name, options) == count
    elif kv_heads is None:
        one, two = (parameters(name, {**options, "num_layers": n}) for n in (1, 2))
        assert one + (layers - 1) * (two - one) == count
    else:  # blocks with all heads and with some of them
        every, some_heads = (kv_heads.count(n) for n in (max(kv_heads), min(kv_heads)))
        one, two, three = (
            parameters(name, {**options, "num_layers": len(heads), "num_kv_heads": heads})
            for heads in ((max(kv_heads),), (max(kv_heads),) * 2, (max(kv_heads), min(kv_heads)))
        )
        assert one + (every - 1) * (two - one) + some_heads * (three - one) == count


@by_table("name", [*OFFICIAL, *VIT_5])
def test_the_cost_of_a_variant_has_its_number_of_parameters(name):
    if name in VIT_5:
        assert cost(name, num_classes=None)["parameters"] == VIT_5[name]
    else:
        assert cost(name)["parameters"] == OFFICIAL[name][0]


def test_the_cost_at_a_size_that_the_patch_does_not_divide_is_the_models():
    found, options = cost("mu/16", 100, 10), {"image_size": 100, "num_classes": 10}
    assert found["parameters"] == parameters("mu/16", options)
    assert found == cost("mu/16", 96, 10)
    assert cost("R+Ti/16", 57)["tokens"] == 1 + math.prod(grid_shape((57, 57), (8, 8), ())) == 2


@pytest.fixture(scope="module", autouse=True)
def _forget_the_models():
    yield
    keras.utils.clear_session()  # Keras would initialize their variables in another test


def parameters(name, options):
    with keras.StatelessScope(initialize_variables=False):
        return VisionTransformer.from_variant(name, **{"image_size": 224, **options}).count_params()


def test_an_initialized_model_has_the_same_count():
    options = {"pooling": "map"}
    model = VisionTransformer.from_variant("mu/14", image_size=224, **options)
    assert sum(weight.numpy().size for weight in model.weights) == parameters("mu/14", options)


def test_every_published_name_and_size_has_a_count():
    at_14 = {f"{n}/14" for n in ("So400m", "H", "g", "G", "e")}
    assert {*PUBLISHED} == {*OFFICIAL, *OTHERS, *FAMILY_NAMES} | at_14
    assert {*VARIANTS} == {*HEADLESS}
    assert {*STEMS} == {f"{n.split('+')[0]}+/{n.split('/')[1]}" for n in OFFICIAL if "+" in n}
