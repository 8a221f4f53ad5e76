import pytest

from keras_vit import VisionTransformer
from keras_vit.training import RECIPES
from keras_vit.training.recipes import PROVENANCE

# optimizer, rate, decay, steps, warm-up, batch, decay of weights, clip, dropout, loss, pixels
TABLES = {
    "finetune": ("sgd", 0.03, "cosine", 500, 100, 512, 0, 1, 0, "softmax", None),
    "linear_probe": ("sgd", 0.03, "cosine", 500, 100, 512, 0, 1, 0, "softmax", None),
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


@pytest.mark.parametrize("name", TABLES)
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


def test_better_plain_vit_has_its_own_model():
    model = VisionTransformer(224, 16, 24, 1, 48, 3, **RECIPES["plain_s16"].model)
    assert (model.pooling, model.position_embedding, model.representation_size) == ("gap", "sincos2d", 384)
    assert model.preprocessing.crop_fraction == 0.875


def test_every_recipe_has_its_source_cost_and_result():
    for name, recipe in RECIPES.items():
        assert min(len(getattr(recipe, field)) for field in PROVENANCE) > 10, name
        assert recipe.cost.startswith(f"{recipe.total_steps:,} steps of {recipe.batch_size} images")
