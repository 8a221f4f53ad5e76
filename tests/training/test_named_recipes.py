import pytest
from made.tables import by_table

from keras_vit.training import RECIPES
from keras_vit.training.named_recipes import default_recipe
from keras_vit.training.recipes import PROVENANCE

# optimizer, rate, decay, steps, warm-up, batch, decay of weights, clip, dropout, loss, pixels
TABLES = {
    "finetune": ("sgd", 0.03, "cosine", 500, 100, 512, 0, 1, 0, "softmax", None),
    "finetune_imagenet": ("sgd", 0.03, "cosine", 20_000, 500, 512, 0, 1, 0, "softmax", 384),
    "finetune_cifar10": ("sgd", 0.01, "cosine", 10_000, 500, 512, 0, 1, 0, "softmax", 384),
    "finetune_cifar100": ("sgd", 0.03, "cosine", 10_000, 500, 512, 0, 1, 0, "softmax", 384),
    "finetune_pets": ("sgd", 0.003, "cosine", 500, 100, 512, 0, 1, 0, "softmax", 384),
    "finetune_flowers": ("sgd", 0.003, "cosine", 500, 100, 512, 0, 1, 0, "softmax", 384),
    "finetune_vtab": ("sgd", 0.01, "cosine", 2500, 500, 512, 0, 1, 0, "softmax", 384),
    "pretrain_jft": ("adamw", 8e-4, "linear", 517_822, 10_000, 4096, 0.1, None, 0, "sigmoid", 224),
    "pretrain_imagenet21k": ("adamw", 1e-3, "linear", 272_460, 10_000, 4096, 0.03, None, 0.1, "sigmoid", 224),
    "pretrain_imagenet": ("adamw", 3e-3, "cosine", 92_897, 10_000, 4096, 0.3, 1, 0.1, "softmax", 224),
    "augreg": ("adamw", 1e-3, "cosine", 92_897, 10_000, 4096, 0.1, 1, 0, "sigmoid", 224),
    "augreg_imagenet21k": ("adamw", 1e-3, "cosine", 908_203, 10_000, 4096, 0.1, 1, 0, "sigmoid", 224),
    "flexi": ("adamw", 1e-3, "cosine", 272_460, 10_000, 4096, 0.1, 1, 0, "sigmoid", 240),
    "plain_s16": ("adamw", 1e-3, "cosine", 111_476, 10_000, 1024, 0.1, 1, 0, "softmax", 224),
    "plain_s16_150": ("adamw", 1e-3, "cosine", 185_794, 10_000, 1024, 0.1, 1, 0, "softmax", 224),
    "plain_s16_300": ("adamw", 1e-3, "cosine", 371_588, 10_000, 1024, 0.1, 1, 0, "softmax", 224),
    "masked_patch": ("adamw", 2e-4, "cosine", 1_000_000, 10_000, 4096, 0, None, 0, "softmax", 224),
}


# RandAugment, MixUp, bias of the head
AUGMENTED = {
    "augreg": ((2, 0.15), 0.5, -6.9),
    **dict.fromkeys(("augreg_imagenet21k", "flexi"), ((2, 0.1), 0.2, -10)),
    **dict.fromkeys(("plain_s16", "plain_s16_150", "plain_s16_300"), ((2, 0.1), 0.2, 0)),
    **dict.fromkeys(("pretrain_imagenet21k", "pretrain_jft"), (None, 0, -10)),
}


IMAGES = 1_268_355  # of ImageNet's training images, those that are not held out
# As the authors state them: rates for 256 or 512 images are multiplied by the batch, passes are steps.
PUBLISHED = {
    # He et al. 2021 (MAE), tables 8 and 9
    "mae": {
        **{"optimizer": "adamw", "base_lr": 1.5e-4 * 4096 / 256, "weight_decay": 0.05, "beta_2": 0.95},
        **{"batch_size": 4096, "decay": "cosine", "total_steps": 800 * IMAGES // 4096, "clip_norm": None},
        **{"warmup_steps": 40 * IMAGES // 4096, "crop_area": (0.2, 1.0), "flip": True, "randaugment": None},
        "pretrainer": {"mask_fraction": 0.75, "normalize_targets": True},
    },
    "mae_finetune": {
        **{"optimizer": "adamw", "base_lr": 1e-3 * 1024 / 256, "weight_decay": 0.05, "beta_2": 0.999},
        **{"layer_decay": 0.75, "batch_size": 1024, "decay": "cosine", "randaugment": (2, 0.09)},
        **{"warmup_steps": 5 * IMAGES // 1024, "total_steps": 100 * IMAGES // 1024, "label_smoothing": 0.1},
        **{"mixup": 0.8, "cutmix": 1.0, "stochastic_depth_rate": 0.1, "random_erasing": 0.25},
    },
    # Touvron et al. 2020 (DeiT), table 9 and section 5.2
    "deit_distill": {
        **{"optimizer": "adamw", "base_lr": 5e-4 * 1024 / 512, "weight_decay": 0.05, "batch_size": 1024},
        **{"decay": "cosine", "total_steps": 300 * IMAGES // 1024, "warmup_steps": 5 * IMAGES // 1024},
        **{"label_smoothing": 0.1, "stochastic_depth_rate": 0.1, "randaugment": (2, 0.09), "mixup": 0.8},
        **{"cutmix": 1.0, "random_erasing": 0.25, "distillation": {"method": "hard", "label_weight": 0.5}},
    },
    # Caron et al. 2021 (DINO), section 3.2 and the defaults of its code
    "dino": {
        **{"optimizer": "adamw", "base_lr": 5e-4 * 512 / 256, "weight_decay": 0.04, "batch_size": 512},
        **{"decay": "cosine", "clip_norm": 3.0, "stochastic_depth_rate": 0.1, "crop_area": (0.4, 1.0)},
    },
    # Chen et al. 2020 (iGPT), section 3.4 and appendix
    "igpt": {
        **{"base_lr": 0.003, "beta_2": 0.95, "batch_size": 128, "total_steps": 1_000_000, "decay": "cosine"}
    },
    # Kerssies et al. 2025 (EoMT), section 4.1
    "segment": {
        **{"optimizer": "adamw", "base_lr": 1e-4, "weight_decay": 0.05, "layer_decay": 0.8, "batch_size": 16},
        **{"clip_norm": 0.01, "image_size": (512, 512), "scale_jitter": (0.5, 2.0)},
        "head_options": {"head": "mask", "num_queries": 100},
    },
    # Oquab et al. 2023 (DINOv2): the configurations of its linear heads
    "segment_linear": {
        **{"optimizer": "adamw", "base_lr": 1e-3, "weight_decay": 1e-4, "warmup_steps": 1500},
        **{"total_steps": 40_000, "batch_size": 16, "freeze": "encoder_norm", "scale_jitter": (0.5, 2.0)},
    },
    # Xu et al. 2022 (ViTPose): `ViTPose_base_coco_256x192.py`
    "keypoints": {
        **{"optimizer": "adamw", "base_lr": 5e-4, "weight_decay": 0.1, "warmup_steps": 500, "clip_norm": 1.0},
        **{"total_steps": 210 * 149_813 // 512, "batch_size": 512, "layer_decay": 0.75, "flip": True},
        **{"stochastic_depth_rate": 0.3, "image_size": (256, 192), "crop_area": None, "rotate": 40.0},
    },
    # Siméoni et al. 2025 (DINOv3): `config-nyu.yaml`
    "depth_linear": {
        **{"optimizer": "adamw", "total_steps": 38_400, "warmup_steps": 12_800, "batch_size": 16},
        **{"clip_norm": 35.0, "image_size": (416, 544), "freeze": "encoder_norm"},
    },
    # Kumar et al. 2022 (LP-FT); rates and crops: this package
    "probe_finetune": {
        **{"probe_first": True, "optimizer": "adamw", "base_lr": 1e-4, "weight_decay": 0.05, "freeze": None},
        **{"layer_decay": 0.75, "crop_area": (0.3, 1.0), "flip": True},
    },
    "linear_probe": {
        **{"probe_first": True, "optimizer": "adamw", "base_lr": 1e-4, "weight_decay": 0.0, "flip": False},
        **{"layer_decay": None, "freeze": "encoder_norm", "crop_area": None},
    },
    # Beyer et al. 2022, table 1
    "plain_s16": {
        "model": {
            **{"pooling": "gap", "position_embedding": "sincos2d", "representation_size": 384},
            "preprocessing": {"resize": "crop", "crop_fraction": 0.875},
        }
    },
}


def test_the_default_recipe_follows_from_what_the_weights_learned_from():
    found = [default_recipe(of, "a.npz") for of in (None, "supervised", "self_supervised", "image_text")]
    assert found == 2 * ["finetune"] + 2 * ["probe_finetune"]
    message = "^expected a recipe: 'finetune' .* 'probe_finetune' for others; a.npz does not say how"
    with pytest.raises(ValueError, match=message):
        default_recipe("unknown", "a.npz")


@by_table("name", PUBLISHED)
def test_the_hyperparameters_of_later_papers_are_theirs(name):
    recipe = vars(RECIPES[name])
    assert {field: recipe[field] for field in PUBLISHED[name]} == PUBLISHED[name]


@by_table("name", TABLES)
def test_the_hyperparameters_are_the_papers(name):
    recipe = RECIPES[name]
    found = (recipe.optimizer, recipe.base_lr, recipe.decay, recipe.total_steps, recipe.warmup_steps)
    found += (recipe.batch_size, recipe.weight_decay, recipe.clip_norm, recipe.dropout_rate, recipe.loss)
    *expected, pixels = TABLES[name]
    assert found == tuple(expected)
    augmented = recipe.randaugment, recipe.mixup, recipe.head_bias
    assert augmented == AUGMENTED.get(name, (None, 0, 0))
    assert recipe.image_size == (pixels and (pixels, pixels))
    assert (recipe.crop_area, recipe.flip, recipe.label_smoothing, recipe.ema) == ((0.05, 1.0), True, 0, None)
    assert recipe.momentum == 0.9
    # The official code stores momentum in bfloat16.
    assert recipe.accumulator_dtype == ("bfloat16" if name.startswith("finetune") else None)


def test_every_recipe_has_its_source_cost_and_result():
    for name, recipe in RECIPES.items():
        assert min(len(getattr(recipe, field)) for field in PROVENANCE) > 10, name
        assert recipe.cost.startswith(f"{recipe.total_steps:,} steps of {recipe.batch_size} images")
