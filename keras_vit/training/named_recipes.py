"""The recipes by name: the paper's tables 3 and 4, AugReg, better plain ViT, digits."""

from keras_vit.training.recipes import Recipe

# Images of ImageNet's train[:99%] and of ImageNet-21k without its duplicates (official_vit's issue 28).
_IMAGENET, _IMAGENET_21K, _JFT = 1_268_355, 12_400_000, 303_000_000


def _steps(epochs, images, batch_size):
    return epochs * images // batch_size


_PAPER = "Dosovitskiy et al. 2021 (arXiv 2010.11929)"
_NOT_RUN = "not run here; published: "

# Table 3: Adam, batch 4096, 10,000 steps of warm-up, 224 pixels, `pre_logits` as wide as the model.
_PRETRAINING = {
    "optimizer": "adamw",
    "warmup_steps": 10_000,
    "batch_size": 4096,
    "image_size": (224, 224),
    "eval_every": 5000,
    "checkpoint_every": 1000,
}
# Table 4: SGD, batch 512, cosine, no weight decay, clip 1, 384 pixels.
_FINETUNING = {
    "optimizer": "sgd",
    "batch_size": 512,
    "accumulator_dtype": "bfloat16",
    "image_size": (384, 384),
}


def _finetune(data, total_steps, base_lr, warmup_steps, result, cost):
    return Recipe(
        **_FINETUNING,
        base_lr=base_lr,
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        eval_every=min(500, total_steps // 5),
        source=f"{_PAPER}, table 4 ({data}), and `vit_jax/configs`",
        cost=cost,
        result=result,
    )


def _augreg(images, loss, weight_decay, randaugment, mixup, source, result):
    """AugReg's pre-training: Steiner et al. 2022 (arXiv 2106.10270)."""
    return Recipe(
        **_PRETRAINING,
        base_lr=1e-3,
        total_steps=_steps(300, images, 4096),
        loss=loss,
        weight_decay=weight_decay,
        randaugment=randaugment,
        mixup=mixup,
        head_bias=-6.9 if images == _IMAGENET else -10.0,
        source=source,
        cost=f"{_steps(300, images, 4096):,} steps of 4096 images: 300 passes",
        result=result,
    )


def _plain(epochs, top1):
    steps = _steps(epochs, _IMAGENET, 1024)
    return Recipe(
        optimizer="adamw",
        base_lr=1e-3,
        total_steps=steps,
        warmup_steps=10_000,
        batch_size=1024,
        weight_decay=0.1,
        randaugment=(2, 0.1),
        mixup=0.2,
        image_size=(224, 224),
        model={
            "pooling": "gap",
            "position_embedding": "sincos2d",
            "representation_size": 384,
            "preprocessing": {"image_size": (224, 224), "resize": "crop", "crop_fraction": 0.875},
        },
        eval_every=5000,
        checkpoint_every=1000,
        source="Beyer et al. 2022 (arXiv 2205.01580), table 1; `big_vision/configs/vit_s16_i1k.py`",
        cost=f"{steps:,} steps of 1024 images; the authors: 90 epochs in 6 to 7 hours on a TPU v3-8",
        result=f"{_NOT_RUN}ImageNet top-1 {top1} % (S/16)",
    )


RECIPES = {
    # A small model from scratch on scikit-learn's 8×8 scans: `keras-vit quickstart`.
    "digits": Recipe(
        optimizer="adamw",
        base_lr=2e-3,
        total_steps=1200,
        warmup_steps=120,
        batch_size=64,
        weight_decay=0.5,
        label_smoothing=0.1,
        crop_area=None,
        shift=0.1,
        flip=False,
        source="this package: small images from scratch",
        cost="a little over a minute on 4 cores, with the model of `keras-vit quickstart`",
        result="98.3 to 99.4 % of 355 held-out digits, over seeds 0 to 2",
    ),
    # The official fine-tuning at the length of its AugReg notebook; `keras-vit finetune --weights F` without
    # `--recipe` takes it `sized_for` the data.
    "finetune": Recipe(
        optimizer="sgd",
        base_lr=0.03,
        total_steps=500,
        warmup_steps=100,
        batch_size=512,
        accumulator_dtype="bfloat16",
        source="`vit_jax/configs/augreg.py`: SGD with momentum, clip 1, cosine, 100 of 500 steps of warm-up",
        cost="500 steps of 512 images; see `Recipe.sized_for` for fewer than 5,761",
        result="depends on the data; see the recipes of a data set",
    ),
    "finetune_imagenet": _finetune(
        "ImageNet",
        20_000,
        0.03,
        500,
        f"{_NOT_RUN}top-1 83.97 % (B/16) and 85.15 % (L/16) from ImageNet-21k",
        "20,000 steps of 512 images, 8 passes; the authors: 17.8 hours (B/16) on 8 V100",
    ),
    "finetune_cifar10": _finetune(
        "CIFAR-10",
        10_000,
        0.01,
        500,
        f"{_NOT_RUN}98.76 to 99.02 % (B/16 from ImageNet-21k)",
        "10,000 steps of 512 images, 104 passes; 500 steps with 50 of warm-up come to 98.59 % in 17 minutes",
    ),
    "finetune_cifar100": _finetune(
        "CIFAR-100",
        10_000,
        0.03,
        500,
        f"{_NOT_RUN}91.92 to 92.06 % (B/16 from ImageNet-21k)",
        "10,000 steps of 512 images, 104 passes; 500 steps with 50 of warm-up come to 89.17 %",
    ),
    "finetune_pets": _finetune(
        "Oxford-IIIT Pets",
        500,
        0.003,
        100,
        f"{_NOT_RUN}93.78 % (B/32, `big_vision`)",
        "500 steps of 512 images",
    ),
    "finetune_flowers": _finetune(
        "Oxford Flowers-102",
        500,
        0.003,
        100,
        f"{_NOT_RUN}99.43 % (B/32, `big_vision`)",
        "500 steps of 512 images",
    ),
    "finetune_vtab": _finetune(
        "VTAB-1k, each of `vtab:TASK`",
        2500,
        0.01,
        500,
        "not run here; the paper reports means over the 19 tasks in its figure 2",
        "2,500 steps of 512 images a task",
    ),
    "linear_probe": Recipe(
        optimizer="sgd",
        base_lr=0.03,
        total_steps=500,
        warmup_steps=100,
        batch_size=512,
        freeze="encoder_norm",
        source="`finetune` with the encoder frozen",
        cost="500 steps of 512 images, a third of fine-tuning's arithmetic",
        result="depends on the data",
    ),
    # Table 3. The rate is B's; L/32 6e-4, L/16 4e-4, H/14 3e-4 (14 passes), R50+L/32 2e-4.
    "pretrain_jft": Recipe(
        **_PRETRAINING,
        base_lr=8e-4,
        decay="linear",
        total_steps=_steps(7, _JFT, 4096),
        loss="sigmoid",
        head_bias=-10.0,
        weight_decay=0.1,
        clip_norm=None,
        source=f"{_PAPER}, table 3; for data of JFT's kind: 303 million images, several labels each",
        cost=f"{_steps(7, _JFT, 4096):,} steps of 4096 images: 7 passes",
        result=f"{_NOT_RUN}ImageNet top-1 87.76 % (L/16) and 88.55 % (H/14) after fine-tuning, table 2",
    ),
    # L/16 and L/32: 30 or 90 passes at the same rate.
    "pretrain_imagenet21k": Recipe(
        **_PRETRAINING,
        base_lr=1e-3,
        decay="linear",
        total_steps=_steps(90, _IMAGENET_21K, 4096),
        loss="sigmoid",
        head_bias=-10.0,
        weight_decay=0.03,
        dropout_rate=0.1,
        clip_norm=None,
        source=f"{_PAPER}, table 3; `vision_transformer` issues 2, 28 and 34",
        cost=f"{_steps(90, _IMAGENET_21K, 4096):,} steps of 4096 images: 90 passes",
        result=f"{_NOT_RUN}ImageNet top-1 83.97 % (B/16) after fine-tuning, table 5",
    ),
    "pretrain_imagenet": Recipe(
        **_PRETRAINING,
        base_lr=3e-3,
        total_steps=_steps(300, _IMAGENET, 4096),
        weight_decay=0.3,
        dropout_rate=0.1,
        source=f"{_PAPER}, table 3",
        cost=f"{_steps(300, _IMAGENET, 4096):,} steps of 4096 images: 300 passes",
        result=f"{_NOT_RUN}ImageNet top-1 77.91 % (B/16) after fine-tuning, table 5",
    ),
    # AugReg: "medium2" for ImageNet, "light2" for ImageNet-21k, what it gives B; Ti and S take less.
    # Keras's factor is another scale than their magnitude: 0.1 turns by up to 36 degrees, their 10 by 30.
    "augreg": _augreg(
        _IMAGENET,
        "sigmoid",
        0.1,
        (2, 0.15),
        0.5,
        "arXiv 2106.10270; `big_vision/configs/vit_i1k.py`",
        f"{_NOT_RUN}ImageNet top-1 about 79 % (B/16)",
    ),
    "augreg_imagenet21k": _augreg(
        _IMAGENET_21K,
        "sigmoid",
        0.1,
        (2, 0.1),
        0.2,
        "arXiv 2106.10270; `big_vision/configs/vit_i21k.py`",
        f"{_NOT_RUN}ImageNet top-1 85.49 % (B/16, with the augmentation medium1) after fine-tuning",
    ),
    "plain_s16": _plain(90, 76.5),
    "plain_s16_150": _plain(150, 78.5),
    "plain_s16_300": _plain(300, 80.0),
    # Predict the colours of corrupted patches, with no labels: `keras-vit pretrain --objective masked_patch`.
    "masked_patch": Recipe(
        **_PRETRAINING,
        base_lr=2e-4,
        total_steps=1_000_000,
        clip_norm=None,
        source=f"{_PAPER}, appendix B.1.2: 1 million steps (14 passes over JFT), Adam, rate 2e-4, 10,000 of "
        "warm-up, cosine",
        cost="1,000,000 steps of 4096 images",
        result=f"{_NOT_RUN}ImageNet top-1 79.9 % (B/16) after fine-tuning",
    ),
}


def find_recipe(name):
    """The recipe of that name; ValueError where there is none."""
    if name not in RECIPES:
        raise ValueError(f"recipe {name!r} is unknown; choose one of {', '.join(RECIPES)}")
    return RECIPES[name]
