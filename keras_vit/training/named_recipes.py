"""The named recipes: tables 3 and 4 of the paper, AugReg, Better plain ViT, digits."""

from __future__ import annotations

from keras_vit.messages import did_you_mean
from keras_vit.training.recipes import Recipe

# Images of ImageNet's train[:99%] and of ImageNet-21k without its duplicates (official_vit's issue 28).
_IMAGENET, _IMAGENET_21K, _JFT = 1_268_355, 12_400_000, 303_000_000
_PERSONS = 149_813  # of COCO's train2017 with keypoints
_DINO_EPOCH = _IMAGENET // 512  # in steps
_PAPER = "Dosovitskiy et al. 2021 (arXiv 2010.11929)"
_MAE = "He et al. 2022 (arXiv 2111.06377)"
_NOT_RUN = "not run here; published: "

_LONG = {"optimizer": "adamw", "eval_every": 5000, "checkpoint_every": 1000}
# Table 3: Adam, batch 4096, 10,000 steps of warm-up, 224 pixels, `pre_logits` as wide as the model.
_PRETRAINING = {"warmup_steps": 10_000, "image_size": (224, 224)}
_SEVERAL_LABELS = {"decay": "linear", "loss": "sigmoid", "head_bias": -10.0, "clip_norm": None}
# The official fine-tuning with the length of its AugReg notebook.
_TUNING = {"optimizer": "sgd", "base_lr": 0.03, "total_steps": 500, "warmup_steps": 100, "batch_size": 512}


def _passes(epochs, batch_size, warmup_epochs=0, images=_IMAGENET, cost="", **options):
    """A recipe of so many passes over a number of images."""
    steps = epochs * images // batch_size
    cost = f"{steps:,} steps of {batch_size} images, {epochs} passes{cost}"
    options = {**_LONG, "warmup_steps": warmup_epochs * images // batch_size, **options}
    return Recipe(total_steps=steps, batch_size=batch_size, cost=cost, **options)


def _pretrain(epochs, images, result, **options):
    result = f"{_NOT_RUN}ImageNet top-1 {result}"
    return _passes(epochs, 4096, images=images, result=result, **_PRETRAINING, **options)


def _augreg(images, head_bias, randaugment, mixup, config, result):
    """The pre-training of AugReg."""
    return _pretrain(
        300,
        images,
        result,
        base_lr=1e-3,
        loss="sigmoid",
        weight_decay=0.1,
        randaugment=randaugment,
        mixup=mixup,
        head_bias=head_bias,
        source=f"Steiner et al. 2022 (arXiv 2106.10270); `big_vision/configs/{config}.py`",
    )


def _finetune(data, total_steps, base_lr, warmup_steps, result, cost=""):
    """Table 4: SGD, batch 512, cosine, no weight decay, clip 1, 384 pixels."""
    return Recipe(
        optimizer="sgd",
        base_lr=base_lr,
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        batch_size=512,
        accumulator_dtype="bfloat16",
        image_size=(384, 384),
        eval_every=min(500, total_steps // 5),
        source=f"{_PAPER}, table 4 ({data}), and `vit_jax/configs`",
        cost=f"{total_steps:,} steps of 512 images{cost}",
        result=f"{_NOT_RUN}{result}",
    )


def _plain(epochs, top1):
    return _passes(
        epochs,
        1024,
        **_PRETRAINING,
        base_lr=1e-3,
        weight_decay=0.1,
        randaugment=(2, 0.1),
        mixup=0.2,
        model={
            "pooling": "gap",
            "position_embedding": "sincos2d",
            "representation_size": 384,
            "preprocessing": {"resize": "crop", "crop_fraction": 0.875},
        },
        source="Beyer et al. 2022 (arXiv 2205.01580), table 1; `big_vision/configs/vit_s16_i1k.py`",
        cost="; the authors: 6 to 7 hours for 90 passes on a TPU v3-8",
        result=f"{_NOT_RUN}ImageNet top-1 {top1} % (S/16)",
    )


# Scans of digits, whose meaning a flip changes.
_DIGITS = {"optimizer": "adamw", "batch_size": 64, "crop_area": None, "shift": 0.1, "flip": False}
_FROM_SCRATCH = {
    **{**_DIGITS, "base_lr": 2e-3, "total_steps": 1200, "warmup_steps": 120},
    **{"weight_decay": 0.5, "label_smoothing": 0.1},
}
# Scenes of scanned digits: small images, of which no augmentation is needed.
_SCENES = {**_DIGITS, "task": "segmentation", "batch_size": 24, "shift": 0.0}

# Scenes of any size, of which crops are made after they are scaled.
_SCALED = {"optimizer": "adamw", "batch_size": 16, "decay": "linear", "crop_area": None, "photometric": 0.5}
_SEGMENTATION = {**_SCALED, "task": "segmentation", "warmup_steps": 1500, "scale_jitter": (0.5, 2.0)}
_DETECTION = {
    **{"task": "detection", "optimizer": "adamw", "warmup_steps": 1000, "crop_area": (0.6, 1.0)},
    "mosaic": (0.4, 0.3, 0.3),
}
# The augmentation and regularization of DeiT, with which encoders are fine-tuned, too.
_DEIT = {
    **{"image_size": (224, 224), "crop_area": (0.08, 1.0), "randaugment": (2, 0.09), "random_erasing": 0.25},
    **{"mixup": 0.8, "cutmix": 1.0, "label_smoothing": 0.1, "stochastic_depth_rate": 0.1},
    **{"weight_decay": 0.05, "clip_norm": None},
}
_AXIAL = {"image_size": 32, "rotary": "axial", "pooling": "gap"}

_IGPT = {
    **{"patch_size": 1, "palette": 512, "causal": True, "pooling": "gap", "norm": "rms"},
    **{"norm_epsilon": 1e-5, "activation": "quick_gelu"},
}


RECIPES = {
    # A small model from scratch on scikit-learn's 8×8 scans: `keras-vit quickstart`.
    "digits": Recipe(
        **_FROM_SCRATCH,
        source="this package: small images from scratch",
        cost="1,200 steps of 64 images, a little over a minute on 4 cores (model of `keras-vit quickstart`)",
        result="98.3 to 99.4 % of 355 held-out digits (seeds 0 to 2)",
    ),
    "digits_flexi": Recipe(
        **_FROM_SCRATCH,
        patch_sizes=(2, 3, 4, 6, 8, 12),
        model={
            **{"image_size": 24, "patch_size": 4, "hidden_size": 96, "num_layers": 2, "mlp_dim": 192},
            **{"num_heads": 6, "pooling": "gap"},
        },
        source="this package: small images at six patch sizes from scratch, otherwise as `digits`",
        cost="1,200 steps of 64 images, 167 seconds of processor time on 2 cores",
        result="94.6 to 98.3 % of 355 held-out digits, by the patch size (seed 0)",
    ),
    # Without `--recipe`, `keras-vit finetune --weights F` uses it `sized_for` the data.
    "finetune": Recipe(
        **_TUNING,
        accumulator_dtype="bfloat16",
        source="`vit_jax/configs/augreg.py`: SGD with momentum, clip 1, cosine, 100 of 500 steps of warm-up",
        cost="500 steps of 512 images; fewer for a data set of up to 5,760 images, see `Recipe.sized_for`",
        result="depends on the data; see the recipes for single data sets",
    ),
    "finetune_imagenet": _finetune(
        "ImageNet",
        20_000,
        0.03,
        500,
        "ImageNet top-1 83.97 % (B/16) and 85.15 % (L/16) after pre-training on ImageNet-21k",
        ", 8 passes; the authors: 17.8 hours on 8 V100 (B/16)",
    ),
    "finetune_cifar10": _finetune(
        "CIFAR-10",
        10_000,
        0.01,
        500,
        "98.76 to 99.02 % (B/16) after pre-training on ImageNet-21k, and 98.59 % with 500 steps",
        ", 104 passes; the authors: 17 minutes for 500 steps, 50 of them warm-up",
    ),
    "finetune_cifar100": _finetune(
        "CIFAR-100",
        10_000,
        0.03,
        500,
        "91.92 to 92.06 % (B/16) after pre-training on ImageNet-21k, and 89.17 % with 500 steps, 50 of them "
        "warm-up",
        ", 104 passes",
    ),
    "finetune_pets": _finetune("Oxford-IIIT Pets", 500, 0.003, 100, "93.78 % (B/32 of `big_vision`)"),
    "finetune_flowers": _finetune("Oxford Flowers-102", 500, 0.003, 100, "99.43 % (B/32 of `big_vision`)"),
    "finetune_vtab": _finetune(
        "VTAB-1k, each of `vtab:TASK`", 2500, 0.01, 500, "means over the 19 tasks, figure 2 of the paper"
    ),
    # Without `--recipe`, for weights that learned without labels. The probe makes the first
    # gradients small, so that they do not distort what the encoder knows.
    "probe_finetune": Recipe(
        **{**_TUNING, "optimizer": "adamw", "base_lr": 1e-4},
        probe_first=True,
        weight_decay=0.05,
        layer_decay=0.75,
        crop_area=(0.3, 1.0),
        source="Kumar et al. 2022 (LP-FT, arXiv 2202.10054): linear probing, then fine-tuning; AdamW with "
        f"both decays of {_MAE}, table 9; rate and crops: this package",
        cost="500 steps of 512 images, as `finetune`, after the features of at most 20,000 images",
        result="79.4 % of 320 crops of 16 photographs after 100 steps of 32 (DINOv2 S/14, 84 pixels, 160 "
        "training crops, seed 0), where logistic regression on the frozen features has 74.1 %",
    ),
    # The solution itself; the steps train layers between the encoder and the head, such as attention pooling.
    "linear_probe": Recipe(
        optimizer="adamw",
        base_lr=1e-4,
        total_steps=100,
        warmup_steps=20,
        batch_size=512,
        probe_first=True,
        freeze="encoder_norm",
        crop_area=None,
        flip=False,
        source="this package: the logistic regression of `keras-vit probe` as the start of the head",
        cost="100 steps of 512 images, each of which the encoder computes once",
        result="the accuracy of logistic regression on the frozen features",
    ),
    # The authors' crops are of 512 pixels, DINOv2's patches of 14 divide 518. They also crop again if a class
    # has more than 75 % of the pixels, and their rate ends at 0.
    "segment_linear": Recipe(
        **_SEGMENTATION,
        base_lr=1e-3,
        total_steps=40_000,
        weight_decay=1e-4,
        clip_norm=None,
        freeze="encoder_norm",
        head_options={"head": "linear", "head_norm": "batch"},
        image_size=(518, 518),
        eval_every=4000,
        source="Oquab et al. 2023 (DINOv2, arXiv 2304.07193), section 7.4 and table 10, and the "
        "configuration published with `dinov2_vitb14_ade20k_linear_head`",
        cost="40,000 steps of 16 images, with the gradient of the head alone",
        result=f"{_NOT_RUN}ADE20K mean IoU 44.3 % (S/14), 47.3 % (B/14) and 47.7 % (L/14)",
    ),
    # The authors' rates decay by a power of 0.9, nearly linearly, and warm up for 500 steps after the blocks
    # and then 1,000 in them. Their layer decay starts below the last block, ours at it, and their weight
    # decay is of all weights.
    "segment": Recipe(
        **_SEGMENTATION,
        base_lr=1e-4,
        total_steps=39_153,
        weight_decay=0.05,
        layer_decay=0.8,
        clip_norm=0.01,
        head_options={"head": "mask", "num_queries": 100},
        image_size=(512, 512),
        eval_every=1263,
        source="Kerssies et al. 2025 (EoMT, arXiv 2503.19108), and its code: "
        "`configs/dinov2/ade20k/semantic/eomt_large_512.yaml`, the defaults of "
        "`training/mask_classification_semantic.py` and `datasets/ade20k_semantic.py`; `main.py`",
        cost="39,153 steps of 16 images, 31 passes over ADE20K",
        result=f"{_NOT_RUN}ADE20K mean IoU 58.4 % (L/16 of DINOv2, 512 pixels)",
    ),
    # Fixed classes in place of words, on any backbone.
    "detect": Recipe(
        **_DETECTION,
        base_lr=1e-4,
        total_steps=10_000,
        batch_size=16,
        weight_decay=0.05,
        layer_decay=0.8,
        stochastic_depth_rate=0.1,
        ema=0.999,
        photometric=0.5,
        image_size=(512, 512),
        eval_every=1000,
        source="this package: crops and mosaics of OWL-ViT (Minderer et al. 2022, arXiv 2205.06230, and "
        "`scenic/projects/owl_vit/configs/clip_b32.py`), with AdamW, layer decay and averaged weights",
        cost="10,000 steps of 16 images",
        result="not run here; its parts are tested on small models",
    ),
    "detect_words": Recipe(
        **_DETECTION,
        base_lr=5e-5,
        total_steps=16_000,
        batch_size=256,
        stochastic_depth_rate=0.2,
        head_options={"text": "stored"},
        eval_every=4000,
        source="Minderer et al. 2022 (OWL-ViT, arXiv 2205.06230), and its code: "
        "`scenic/projects/owl_vit/configs/clip_b32_finetune.py`, with the text tower frozen and gradients "
        "clipped for a batch",
        cost="16,000 steps of 256 images",
        result="not run here; its parts are tested on small models",
    ),
    # The authors' rate of the encoder is a tenth of the head's, and decays by a power of 0.9; they neither
    # scale their images, which have one camera, nor clip gradients.
    "depth": Recipe(
        **_SCALED,
        task="depth",
        base_lr=5e-5,
        total_steps=20_000,
        warmup_steps=500,
        weight_decay=0.01,
        layer_decay=0.8,
        scale_jitter=(1.0, 1.5),
        head_options={"head": "dpt", "quantity": "metric", "gradient_weight": 0.0},
        image_size=(518, 518),
        eval_every=2000,
        source="this package: rates, decay and loss of Depth Anything V2 (Yang et al. 2024, arXiv "
        "2406.09414, and its `metric_depth/train.py` and `dist_train.sh`), with the scales of Eigen et al. "
        "2014 (arXiv 1406.2283)",
        cost="20,000 steps of 16 images; the authors' models of rooms: 120 passes over Hypersim with 32 "
        "images a step",
        result="not run here at this size; its parts are tested on small models",
    ),
    # The authors crop at the images' own scale, and also turn them by up to 2.5 degrees.
    "depth_linear": Recipe(
        **{**_SCALED, "decay": "cosine"},
        task="depth",
        base_lr=3e-4,
        total_steps=38_400,
        warmup_steps=12_800,
        beta_2=0.99,
        weight_decay=1e-4,
        clip_norm=35.0,
        freeze="encoder_norm",
        scale_jitter=(1.0, 1.15),
        head_options={"head": "linear", "head_norm": "batch", "variance_focus": 0.85, "gradient_weight": 0.0},
        image_size=(416, 544),
        eval_every=3840,
        source="Siméoni et al. 2025 (DINOv3, arXiv 2508.10104), the linear evaluation on NYU-Depth V2, and "
        "its code: `dinov3/eval/depth/configs/config-nyu.yaml`; for patches of 16 pixels",
        cost="38,400 steps of 16 images, with the gradient of the head alone",
        result="not run here at this size; its parts are tested on small models",
    ),
    # The authors divide the rate by 10 after 170 and 200 passes, draw scales and angles from normal
    # distributions, and show the upper or the lower half of some persons.
    "keypoints": Recipe(
        task="keypoints",
        optimizer="adamw",
        base_lr=5e-4,
        total_steps=210 * _PERSONS // 512,
        warmup_steps=500,
        batch_size=512,
        weight_decay=0.1,
        layer_decay=0.75,
        stochastic_depth_rate=0.3,
        crop_area=None,
        scale_jitter=(0.67, 1.5),
        rotate=40.0,
        image_size=(256, 192),
        eval_every=2926,
        source="Xu et al. 2022 (ViTPose, arXiv 2204.12484), B with weights of `mae`, and its code: "
        "`ViTPose_base_coco_256x192.py` of `ViTAE-Transformer/ViTPose`; with a cosine in place of steps",
        cost="61,446 steps of 512 images, 210 passes over the persons of COCO",
        result=f"{_NOT_RUN}AP 75.8 on COCO's validation split with the boxes of a detector",
    ),
    # From scratch; the next two start from its run.
    "digits_scenes": Recipe(
        **_SCENES,
        base_lr=3e-3,
        total_steps=1300,
        warmup_steps=104,
        weight_decay=0.5,
        # A digit is 8 tokens wide.
        model={**_AXIAL, "patch_size": 2, "hidden_size": 64, "num_layers": 3, "mlp_dim": 128, "num_heads": 2},
        head_options={"head": "up", "decoder_size": 32, "upscale_blocks": 1},
        eval_every=200,
        source="this package: scenes of scanned digits from scratch, `digits_scenes`",
        cost="1,300 steps of 24 images, 224 seconds on 2 cores",
        result="mean IoU 0.92 on 240 test scenes (seed 0)",
    ),
    "digits_scenes_linear": Recipe(
        **_SCENES,
        base_lr=1e-2,
        total_steps=200,
        warmup_steps=20,
        freeze="encoder_norm",
        head_options={"head": "linear"},
        source="this package: a linear head on the frozen encoder of `digits_scenes`",
        cost="200 steps of 24 images, whose features are computed once, 58 seconds on 2 cores",
        result="mean IoU 0.84 on 240 test scenes (seed 0)",
    ),
    # No masked attention: a scene has at most 5 masks, and a second prediction costs as much as the first.
    "digits_scenes_mask": Recipe(
        **_SCENES,
        base_lr=2e-3,
        total_steps=900,
        warmup_steps=45,
        weight_decay=0.1,
        freeze="encoder_block_1",
        head_options={
            **{"head": "mask", "num_queries": 16, "query_blocks": 1, "upscale_blocks": 1},
            **{"loss_points": 256, "masked_attention": False},
        },
        eval_every=150,
        source="this package: EoMT's queries in the last block of the encoder of `digits_scenes`",
        cost="900 steps of 24 images, 156 seconds on 2 cores",
        result="mean IoU 0.91 on 240 test scenes (seed 0)",
    ),
    # From scratch: the nearer digit hides the farther one, and is larger and brighter.
    "digits_depth": Recipe(
        **{**_SCENES, "task": "depth", "batch_size": 32},
        base_lr=2e-3,
        total_steps=1500,
        warmup_steps=150,
        weight_decay=0.1,
        model={**_AXIAL, "patch_size": 4, "hidden_size": 96, "num_layers": 4, "mlp_dim": 192, "num_heads": 3},
        head_options={"head": "dpt", "decoder_size": 32, "head_size": 16, "gradient_weight": 0.1},
        eval_every=300,
        source="this package: scenes of scanned digits from scratch, `digits_scenes`",
        cost="1,500 steps of 32 images, 623 to 1,043 seconds on 2 cores that did other work, too",
        result="abs_rel 0.021 to 0.023 on 240 test scenes (seeds 0 to 2)",
    ),
    # From scratch, without a decoder: each token predicts a digit and its box.
    "digits_detect": Recipe(
        **{**_SCENES, "task": "detection", "batch_size": 32},
        base_lr=2e-3,
        total_steps=2000,
        warmup_steps=150,
        weight_decay=0.1,
        model={**_AXIAL, "patch_size": 4, "hidden_size": 96, "num_layers": 6, "mlp_dim": 192, "num_heads": 3},
        eval_every=400,
        source="this package: scenes of scanned digits from scratch, `digits_scenes`",
        cost="2,000 steps of 32 images, 358 to 504 seconds on 2 cores",
        result="AP 0.72 to 0.83 and AP50 0.92 to 0.98 on 240 test scenes (seeds 0 to 2)",
    ),
    # From scratch: five points of each digit, whose box is a sample.
    "digits_keypoints": Recipe(
        **{**_SCENES, "task": "keypoints", "batch_size": 32, "flip": True},
        base_lr=2e-3,
        total_steps=1000,
        warmup_steps=100,
        weight_decay=0.1,
        scale_jitter=(0.8, 1.25),
        model={**_AXIAL, "patch_size": 4, "hidden_size": 64, "num_layers": 3, "mlp_dim": 128, "num_heads": 2},
        head_options={"decoder_width": 32},
        eval_every=250,
        source="this package: scenes of scanned digits from scratch, `digits_scenes`",
        cost="1,000 steps of 32 images of a digit, 49 to 133 seconds on 2 cores",
        result="AP 0.78 to 0.80 and PCK 0.90 to 0.91 at 5 % of a box, 240 test scenes (seeds 0 to 2)",
    ),
    # Two towers from scratch, for zero-shot labels in wordings that were not in training.
    "digits_words": Recipe(
        **_DIGITS,
        base_lr=2e-3,
        total_steps=800,
        warmup_steps=80,
        weight_decay=0.5,
        image_size=(16, 16),
        model={
            **{"patch_size": 2, "hidden_size": 64, "num_layers": 2, "mlp_dim": 128, "num_heads": 4},
            "pooling": "gap",
        },
        image_text={
            "text": {"hidden_size": 64, "num_layers": 1, "mlp_dim": 128, "num_heads": 4},
            "objective": "softmax",
            "image_projection": 64,
            "text_projection": 64,
        },
        source="this package: scanned digits with words from scratch, `digits_words`",
        cost="800 steps of 64 images with a caption each, 105 seconds of processor time",
        result="97.2 % of 355 held-out digits, by captions that are in no training text (seed 0)",
    ),
    # A new text tower for a pretrained image tower of B, which is not trained.
    "lit": Recipe(
        optimizer="adamw",
        base_lr=1e-3,
        total_steps=5_000,
        warmup_steps=150,
        batch_size=512,
        weight_decay=10.0,  # 0.01 a step, which big_vision does not multiply by the rate
        freeze="encoder_norm",
        image_text={
            "text": {"hidden_size": 768, "num_layers": 12, "mlp_dim": 3072, "num_heads": 12},
            "objective": "sigmoid",
            "text_projection": 768,
            "projection_bias": True,
        },
        image_size=(224, 224),
        crop_area=None,
        randaugment=(2, 0.1),
        eval_every=1000,
        source="`image_text/siglip_lit_coco.py` of `big_vision`, whose text tower is a pretrained BERT",
        cost="5,000 steps of 512 images with a caption each",
        result=f"{_NOT_RUN}no result",
    ),
    # Both towers of the weights.
    "finetune_pairs": Recipe(
        optimizer="adamw",
        base_lr=1e-5,
        total_steps=4_620,
        warmup_steps=100,
        batch_size=256,
        weight_decay=0.5,
        image_text={},
        crop_area=None,
        flip=False,
        eval_every=462,
        source='"Fine-tuning CLIP for MS-COCO Retrieval", documentation of ITRA',
        cost="4,620 steps of 256 images with a caption each, 10 passes over MS-COCO's 118,287 images",
        result=f"{_NOT_RUN}MS-COCO mean recall 15 % above that of CLIP before fine-tuning (RN50)",
    ),
    # Predict the next pixel: `keras-vit pretrain --objective igpt`.
    "digits_igpt": Recipe(
        **_DIGITS | {"shift": 0.0},
        base_lr=3e-3,
        total_steps=1500,
        warmup_steps=100,
        beta_2=0.95,
        weight_decay=0.1,
        dropout_rate=0.1,
        image_size=(8, 8),
        model={
            **_IGPT,
            **{"palette": 17, "hidden_size": 64, "num_layers": 6, "mlp_dim": 256, "num_heads": 4},
        },
        eval_every=250,
        source="this package: scanned digits of 8×8 pixels in their 17 shades of gray, from scratch",
        cost="1,500 steps of 64 images, 440 seconds of processor time",
        result="80.6 % of 355 held-out digits recognized after the completion of their lower halves",
    ),
    # iGPT-S. The authors try the rates 0.01, 0.003, 0.001, … until the validation loss increases; their crops
    # have one aspect ratio, and their initial weights are normal, smaller where there are more blocks.
    "igpt": Recipe(
        **_LONG,
        base_lr=3e-3,
        total_steps=1_000_000,
        warmup_steps=_IMAGENET // 128,
        batch_size=128,
        beta_2=0.95,
        clip_norm=None,
        image_size=(32, 32),
        model={**_IGPT, "hidden_size": 512, "num_layers": 24, "mlp_dim": 2048, "num_heads": 8},
        crop_area=(0.34, 0.77),
        flip=False,
        source='Chen et al. 2020, "Generative Pretraining from Pixels" (iGPT), sections 3.1 to 3.4',
        cost="1,000,000 steps of 128 images, 101 passes over ImageNet",
        result=f"{_NOT_RUN}ImageNet top-1 41.9 % (iGPT-S) by a linear probe of the best block",
    ),
    # Table 3. The rate is B's; L/32 6e-4, L/16 4e-4, H/14 3e-4 (14 passes), R50+L/32 2e-4.
    "pretrain_jft": _pretrain(
        7,
        _JFT,
        "87.76 % (L/16) and 88.55 % (H/14) after fine-tuning",
        **_SEVERAL_LABELS,
        base_lr=8e-4,
        weight_decay=0.1,
        source=f"{_PAPER}, tables 2 and 3, for data such as JFT: 303 million images with several labels each",
    ),
    # L/16 and L/32: 30 or 90 passes at the same rate.
    "pretrain_imagenet21k": _pretrain(
        90,
        _IMAGENET_21K,
        "83.97 % (B/16) after fine-tuning",
        **_SEVERAL_LABELS,
        base_lr=1e-3,
        weight_decay=0.03,
        dropout_rate=0.1,
        source=f"{_PAPER}, tables 3 and 5; `vision_transformer` issues 2, 28 and 34",
    ),
    "pretrain_imagenet": _pretrain(
        300,
        _IMAGENET,
        "77.91 % (B/16) after fine-tuning",
        base_lr=3e-3,
        weight_decay=0.3,
        dropout_rate=0.1,
        source=f"{_PAPER}, tables 3 and 5",
    ),
    # AugReg's settings for B: "medium2" for ImageNet, "light2" for ImageNet-21k; Ti and S use less. Keras's
    # factor has another scale than their magnitude: 0.1 rotates by up to 36 degrees, their 10 by 30.
    "augreg": _augreg(_IMAGENET, -6.9, (2, 0.15), 0.5, "vit_i1k", "about 79 % (B/16)"),
    "augreg_imagenet21k": _augreg(
        _IMAGENET_21K, -10.0, (2, 0.1), 0.2, "vit_i21k", "85.49 % (B/16, medium1) after fine-tuning"
    ),
    # The size of the stored kernel is that of the model; the authors' is 8. They also train by a teacher.
    "flexi": _passes(
        90,
        4096,
        images=_IMAGENET_21K,
        **{**_PRETRAINING, "image_size": (240, 240)},
        base_lr=1e-3,
        loss="sigmoid",
        weight_decay=0.1,
        randaugment=(2, 0.1),
        mixup=0.2,
        head_bias=-10.0,
        patch_sizes=(8, 10, 12, 15, 16, 20, 24, 30, 40, 48),
        model={"position_grid": 7, "prefix_positions": False},
        source="Beyer et al. 2023 (FlexiViT, arXiv 2212.08013); "
        "`big_vision/configs/proj/flexivit/i21k_sup.py`",
        cost=", of 273 patches on average",
        result="not run here; published results are of models that a teacher trains, by 90 to 1,200 passes",
    ),
    "plain_s16": _plain(90, 76.5),
    "plain_s16_150": _plain(150, 78.5),
    "plain_s16_300": _plain(300, 80.0),
    # Predict the colors of corrupted patches, without labels: `keras-vit pretrain --objective masked_patch`.
    "masked_patch": Recipe(
        **_LONG,
        **_PRETRAINING,
        base_lr=2e-4,
        total_steps=1_000_000,
        batch_size=4096,
        clip_norm=None,
        source=f"{_PAPER}, appendix B.1.2: Adam, rate 2e-4, 1 million steps with 10,000 of warm-up, cosine",
        cost="1,000,000 steps of 4096 images, 14 passes over JFT",
        result=f"{_NOT_RUN}ImageNet top-1 79.9 % (B/16) after fine-tuning",
    ),
    # The rates are the base rates times the batch size / 256. The authors' tokens decay, too; their
    # images are normalized by ImageNet's mean and standard deviation; both also hold for `mae_finetune`.
    "mae": _passes(
        800,
        4096,
        warmup_epochs=40,
        base_lr=2.4e-3,
        weight_decay=0.05,
        beta_2=0.95,
        clip_norm=None,
        pretrainer={"mask_fraction": 0.75, "normalize_targets": True},
        model={"position_embedding": "sincos2d", "preprocessing": {"interpolation": "bicubic"}},
        image_size=(224, 224),
        crop_area=(0.2, 1.0),
        source=f"{_MAE}, table 8 and section 4; crops: `main_pretrain.py` of `facebookresearch/mae`",
        cost="; the authors: 31 hours for 1,600 on 128 TPU v3 cores (L/16)",
        result=f"{_NOT_RUN}ImageNet top-1 83.6 % (B/16), 85.9 % (L/16) and 86.9 % (H/14) after 1,600 passes "
        "and fine-tuning",
    ),
    # Keras's RandAugment has another scale: 0.09 rotates by up to 32 degrees, their 9 by 27. L and H train
    # for 50 passes, H with a stochastic depth of 0.2. Their code has half of the rate and a layer decay of
    # 0.65 for B, and tests the middle 0.875 of each side of an image.
    "mae_finetune": _passes(
        100,
        1024,
        warmup_epochs=5,
        **_DEIT,
        base_lr=4e-3,
        layer_decay=0.75,
        model={"pooling": "gap", "class_token": True, "norm_after_pooling": True},
        source=f"{_MAE}, table 9; crops and random erasing: `main_finetune.py` of `facebookresearch/mae`",
        result=f"{_NOT_RUN}ImageNet top-1 83.6 % (B/16) after 1,600 passes of `mae`",
    ),
    # MixUp's coefficient is uniform, the Beta distribution of parameter 1.
    "distill": _passes(
        90,
        1024,
        base_lr=1e-4,
        warmup_steps=5000,
        weight_decay=0.1,
        mixup=1.0,
        distillation={"method": "soft", "temperature": 1.0},
        image_size=(240, 240),
        source="Beyer et al. 2022 (arXiv 2106.05237), function matching; values and B/16 from a B/16 at 384 "
        "pixels: `big_vision/configs/proj/flexivit/i1k_deit3_distill.py`, with a single patch size",
        cost="; the authors: 16 hours on 32 TPU v3 (B/16)",
        result=f"{_NOT_RUN}the authors' ResNet-50 has 82.8 % of its teacher's 83.0 % after 1,200 passes",
    ),
    "deit_distill": _passes(
        300,
        1024,
        warmup_epochs=5,
        **_DEIT,
        base_lr=1e-3,
        distillation={"method": "hard", "label_weight": 0.5},
        model={"distillation": True},
        source="Touvron et al. 2021 (DeiT, arXiv 2012.12877), table 9, without repeated augmentation",
        result=f"{_NOT_RUN}ImageNet top-1 83.4 % (B/16), without a teacher 81.8 %",
    ),
    "distill_features": _passes(
        100,
        1536,
        warmup_epochs=10,
        base_lr=5e-4,
        weight_decay=0.04,
        mixup=1.0,
        distillation={"method": "features"},
        image_size=(224, 224),
        crop_area=(0.4, 1.0),
        source="this package: the losses of AM-RADIO (arXiv 2312.06709) for one teacher; rate and weight "
        "decay of the documentation of lightly-train",
        result="not run here",
    ),
    # Patches of a single color are not normalized: a patch is a pixel of the scan.
    "digits_mae": Recipe(
        **_DIGITS,
        base_lr=2e-3,
        total_steps=2000,
        warmup_steps=200,
        weight_decay=0.05,
        beta_2=0.95,
        pretrainer={
            **{"decoder_hidden_size": 48, "decoder_num_layers": 1, "decoder_num_heads": 4},
            **{"mask_fraction": 0.75, "normalize_targets": False},
        },
        image_size=(16, 16),
        model={
            **{"patch_size": 2, "hidden_size": 96, "num_layers": 2, "mlp_dim": 192, "num_heads": 6},
            "pooling": "gap",
        },
        eval_every=1000,
        source="this package: masked autoencoding of scanned digits from scratch",
        cost="2,000 steps of 64 images, 166 seconds of processor time",
        result="with 100 labels 93.4 % of 355 held-out digits, without pre-training 79.5 % (seeds 0 to 4)",
    ),
    "digits_dino": Recipe(
        optimizer="adamw",
        base_lr=4e-4,
        total_steps=4000,
        warmup_steps=100,
        batch_size=64,
        weight_decay=0.04,
        clip_norm=3.0,
        crop_area=(0.4, 1.0),
        photometric=0.8,
        flip=False,
        image_size=(16, 16),
        model={"patch_size": 4, "hidden_size": 96, "num_layers": 2, "mlp_dim": 192, "num_heads": 6},
        pretrainer={
            **{"num_local": 2, "local_size": 8, "local_area": (0.25, 0.6), "momentum": 0.99},
            **{"out_dim": 256, "hidden_dim": 192, "bottleneck_dim": 48, "freeze_steps": 100},
        },
        eval_every=1000,
        source="this package: self-distillation of scanned digits from scratch",
        cost="4,000 steps of 64 images, 450 seconds of processor time",
        result="k-NN 94.6 % of 355 held-out digits (seed 0)",
    ),
    # The authors' weight decay rises to 0.4 along a cosine and is also that of the class token and positions,
    # their rate ends at 1e-6, they clip each weight's gradient, and their images are normalized by ImageNet's
    # mean and standard deviation. The paper has batches of 1024, and a temperature that rises to 0.07 in 30
    # passes.
    "dino": Recipe(
        **_LONG,
        base_lr=1e-3,  # 5e-4 for each 256 images
        total_steps=100 * _DINO_EPOCH,
        warmup_steps=10 * _DINO_EPOCH,
        batch_size=512,
        weight_decay=0.04,
        clip_norm=3.0,
        stochastic_depth_rate=0.1,
        crop_area=(0.4, 1.0),
        photometric=0.8,
        image_size=(224, 224),
        model={"preprocessing": {"interpolation": "bicubic"}},
        pretrainer={
            **{"num_local": 8, "local_size": 96, "local_area": (0.05, 0.4), "out_dim": 65_536},
            **{"momentum": 0.996, "teacher_temperature": 0.04, "freeze_steps": _DINO_EPOCH},
        },
        source="Caron et al. 2021 (DINO, arXiv 2104.14294), section 3.2; README (Vanilla DINO training) and "
        "`main_dino.py` of `facebookresearch/dino`",
        cost=f"{100 * _DINO_EPOCH:,} steps of 512 images, 100 passes; the authors: 1.75 days on 8 GPUs",
        result=f"{_NOT_RUN}ImageNet top-1 69.3 % by nearest neighbors, 74.0 % by a linear probe (S/16)",
    ),
}


# The recipe of `finetune` by what the weights learned from before; None are random ones.
DEFAULTS = {
    None: "finetune",
    "supervised": "finetune",
    "self_supervised": "probe_finetune",
    "image_text": "probe_finetune",
}


def default_recipe(pretraining, source):
    """The name of the recipe with which weights are fine-tuned, unless another is given.

    Args:
        pretraining: What they learned from, the option of a `VisionTransformer`.
        source: What the weights are called in a message.

    Raises:
        ValueError: if it is "unknown".

    >>> default_recipe("supervised", "a.npz"), default_recipe("image_text", "b.npz")
    ('finetune', 'probe_finetune')
    """
    if pretraining not in DEFAULTS:
        raise ValueError(
            f"expected a recipe: 'finetune' for weights that learned from labels, or 'probe_finetune' for "
            f"others; {source} does not say how it was trained"
        )
    return DEFAULTS[pretraining]


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; ValueError if there is none."""
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES)
        raise ValueError(f"recipe {name!r} is unknown{hint}; choose one of {', '.join(RECIPES)}")
    return RECIPES[name]
