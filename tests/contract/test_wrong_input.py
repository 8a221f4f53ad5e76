"""A hundred wrong command lines and a hundred wrong calls: each is refused in one line that says what to do.

Words in capitals are the paths of the fixture `paths`. Nothing may be left, such as at NEW.
"""

import functools
import io
import pathlib
import re
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from made.tables import by_table
from reference.small import PACKED, one_block

import _keras_vit_cli
import keras_vit
from keras_vit import data
from keras_vit.cli import console
from keras_vit.weights import checkpoint

GOLDEN = pathlib.Path(__file__).parents[1] / "golden/token.npz"
FINETUNE = "finetune --model mu/16 --dataset digits --workdir NEW"
TUNE = "finetune --weights GOLDEN --dataset folder:IMAGES --workdir NEW"
EVALUATE, EXPORT = "evaluate --model MODEL --dataset folder:IMAGES", "export --model MODEL --output NEW"

# A command line, and a part of the message.
COMMAND_LINES = {
    "": "SUBCOMMAND",
    "nothing": "unknown 'nothing' (one of quickstart, models",
    "train": "unknown 'train'; did you mean finetune?",
    "trian --dataset digits": "did you mean finetune?",
    "models --sizes": "unknown option --sizes; did you mean --image_size VALUE? See keras-vit models",
    "finetune --dataset digits": "required: --workdir",
    "finetune --lr 3e-4": "unknown option --lr; did you mean --set base_lr=3e-4?",
    "finetune --dataset d --epochs 3": "did you mean --total_steps (epochs × images / batch size)?",
    "finetune --dataset d --bs 8": "did you mean --batch_size 8?",
    "finetune --dataset d --batch-sise 8": "did you mean --batch_size?",
    "finetune --model_name B/16": "did you mean --model B/16?",
    "finetune --model_name_or_path vit.npz": "did you mean --weights vit.npz?",
    "finetune --sched cosine": "did you mean --set decay=cosine?",
    "predict --source photo.jpg": "--source; did you mean photo.jpg, without an option?",
    "predict --save-txt": "did you mean --output FILE.csv?",
    "predict model=vit.npz source=photo.jpg": "unknown argument model=vit.npz; did you mean --model vit.npz?",
    "predict conf=0.3": "unknown argument conf=0.3; did you mean --threshold 0.3?",
    "weights push_to_hub vit.npz": "unknown 'push_to_hub'; did you mean push?",
    "finetune --model mu/16 --dataset folder:FILE --workdir NEW": "expected a folder, such as",
    "finetune --dataset d --mixup 0.2": "did you mean --set mixup=0.2?",
    "finetune --dropuot 0.1": "did you mean --set dropout_rate=0.1?",
    "finetune --checkpoint vit.npz": "did you mean --weights vit.npz?",
    "finetune --resume": "--resume; the same command continues what was interrupted; see keras-vit finetune",
    "finetune --workers 4": "--workers; images are read by several threads without an option",
    "finetune -j 4": "-j; images are read by several threads without an option",
    "export --device cpu": "--device; all devices are used that CUDA_VISIBLE_DEVICES allows",
    "benchmark --device cuda:0": "--device: expected auto, cpu, gpu or gpu:NUMBER; got 'cuda:0'",
    "finetune --gpus 2": "did you mean --device gpu?",
    "predict --model none.tflite --device gpu IMAGE": "'none.tflite' computes on the CPU; got --device gpu",
    "finetune --dataset d --workdir NEW lr=0.1": "unknown field lr; did you mean --set base_lr=0.1?",
    "finetune --dataset d --workdir NEW --set fp16=1": "unknown field fp16; did you mean --set dtype=1?",
    "pretrain --model B/16 --dataset d --workdir NEW --seed 1 --set seed=2": "--seed or --set seed=; got",
    "finetune --cfg run.yaml": "did you mean --config run.yaml?",
    "finetune --dataset d --work runs": "unknown option --work; did you mean --workdir?",
    "finetune --config none.yaml": "no such file: 'none.yaml'",
    "finetune --config": "argument --config: expected one argument",
    "evaluate --output scores.json": "did you mean --json scores.json?",
    "evaluate --zero_shot cat,dog": "did you mean --labels cat,dog?",
    "fewshot --k 20": "did you mean --neighbors 20?",
    "average a b --weights 1,2": "did you mean --proportions 1,2?",
    "export --images 9": "did you mean --max_images 9?",
    "predict --class_names names.txt": "did you mean --classes names.txt?",
    "predict --json found.json": "did you mean --format json?",
    "data write --to shards": "did you mean --output shards?",
    "finetune --wandb": "did you mean --log wandb.integration.keras.WandbMetricsLogger?",
    "finetune --patience 5": "--patience; did you mean --set patience=5?",
    "finetune --val_split 0.2": "--val_split; a split that a data set lacks is held out",
    "finetune --half": "did you mean --set dtype=VALUE?",
    "detect --model m": "unknown 'detect'; did you mean predict?",
    "export --model m --output o --formats tflite,coreml": "unknown format coreml; did you mean tflite",
    "export --model m --half": "did you mean --precisions float16?",
    "predict --model m --half photo.jpg": "other precisions: export --precisions float16",
    "predict --model m --conf 0.4 photo.jpg": "did you mean --threshold 0.4?",
    "predict --model m --imgsz 640 photo.jpg": "--imgsz; images are resized to the model's size",
    "finetune --imgsz 640": "did you mean --image_size 640?",
    "pretrain --weights vit.npz": "unknown option --weights; see",
    "predict": "required: --model, images",
    "predict --model m --top_k=3 photo.jpg": "did you mean --top 3?",
    "predict --weights runs/flowers photo.jpg": "did you mean --model runs/flowers?",
    "predict --model m -k 3 photo.jpg": "unknown option -k; did you mean --top 3?",
    "inspect --model m --image i": "required: --output",
    "inspect --model m --output o --block last": "--block: invalid int value: 'last'",
    "benchmark --bs --model m": "did you mean --batch_sizes VALUE?",
    "weights show --lr 1 vit.npz": "unknown option --lr; see",
    "weights show vit.npz --frobnicate": "unknown option --frobnicate; see keras-vit weights show",
    "search": "required: ACTION",
    "weights": "required: ACTION",
    "models --variant b16": "'b16' is unknown (did you mean 'B/16'?)",
    "models --json none/x.json": "there is no folder 'none'",
    "models --image_size 0": "expected a positive integer; got '0'",
    "models --num_classes ten": "expected a non-negative integer; got 'ten'",
    "finetune --dataset digits --workdir NEW": "expected --model, a variant such as B/16",
    "finetune --model B16 --dataset digits --workdir NEW": "(did you mean 'B/16'?)",
    "finetune --model vit_base_patch16_224 --dataset digits --workdir NEW": "(did you mean 'B/16'?)",
    "finetune --model MODEL --dataset digits --workdir NEW": "--model is a variant such as B/16; use",
    "finetune --model mu/16 --dataset photos --workdir NEW": "no images in class folders of '",
    "finetune --model mu/16 --dataset cifar10 --workdir NEW": "(did you mean 'tfds:cifar10'?)",
    "finetune --model mu/16 --dataset folder:none --workdir NEW": "no such folder",
    "finetune --model mu/16 --dataset folder: --workdir NEW": "data set 'folder:' is unknown; expected",
    "finetune --model mu/16 --dataset vtab:cifar --workdir NEW": "(did you mean 'cifar100'?)",
    "finetune --model mu/16 --dataset digits --workdir FILE": "exists and is no run of keras-vit",
    "finetune --weights none.npz --dataset digits --workdir NEW": "no such checkpoint file",
    "finetune --weights B/16 --dataset digits --workdir NEW": "is a variant and has no weights",
    "finetune --weights none.tflite --dataset digits --workdir NEW": "none.tflite",
    f"{TUNE} --model Ti/8 --total_steps 1 --batch_size 2": "expected hidden_size 192 for Ti/8",
    f"{TUNE} --image_size 16x7 --total_steps 1 --batch_size 2": "smaller than the patch of 8×8",
    f"{TUNE} --image_size 1x2x3": "expected a side in pixels or HEIGHTxWIDTH; got '1x2x3'",
    "finetune --weights vit_b16_augreg_in21 --dataset digits --workdir NEW": "'vit_b16_augreg_in21k'",
    "pretrain --dataset digits --workdir NEW": "expected --model, a variant such as B/16",
    "pretrain --model mu/16 --dataset digits --workdir NEW --objective maee": "(did you mean 'mae'?)",
    "pretrain --model mu/16 --dataset digits --workdir NEW --objective mae --target pixels": "target=",
    "pretrain --model mu/16 --dataset digits --workdir NEW --objective masked_patch --target no": "'no'",
    "pretrain --model GOLDEN --dataset digits --workdir NEW": "use keras-vit finetune --weights",
    "pretrain --model mu/16 --dataset digits --workdir NEW --recipe digit": "(did you mean 'digits'",
    "plan --topology v5e:4x4 --num_classes 0": "expected a positive integer; got '0'",
    "plan --model B16 --topology v5e:4x4": "(did you mean 'B/16'?)",
    "plan --model B/16 --topology v5e:4x4 --recipe augregg": "(did you mean 'augreg'?)",
    "evaluate --model none --dataset digits": "no checkpoint is called 'none'",
    "evaluate --model none.keras --dataset digits": "no such model file: 'none.keras'",
    "evaluate --model vit_base_patch16_224 --dataset digits": "vit_base_patch16_224.augreg2_in21k_ft_in1k",
    "evaluate --model MODEL --dataset digits": "expected a model with the data set's 10 classes",
    "evaluate --model MODEL --dataset EMPTY": "no images in class folders of '",
    "evaluate --model FILE --dataset digits": "is no checkpoint that can be read",
    "evaluate --model EMPTY --dataset digits": "holds no finished run, no checkpoint and no export",
    "evaluate --model B16 --dataset digits": "'B16' is a variant and has no weights",
    "evaluate --model ftp://host/x.npz --dataset digits": "ftp:// is unknown; expected a path",
    f"{EVALUATE} --split val": "(did you mean 'validation'?)",
    f"{EVALUATE} --task regresion": "(did you mean 'regression'?)",
    f"{EVALUATE} --task multi_label": "needs the table",
    f"{EVALUATE} --batch_size 0": "expected a positive integer; got '0'",
    f"{EVALUATE} --seed -1": "expected a non-negative integer; got '-1'",
    f"{EVALUATE} --confusion c.jpg": "expected --confusion to be a .png file; got 'c.jpg'",
    # Impossible options are refused before the model is opened.
    "evaluate --model none --dataset digits --confusion none/c.png": "'none/c.png' cannot be written: there",
    "evaluate --model none --dataset digits --real none.json": "cannot read 'none.json'",
    "evaluate --model none --dataset digits --json .": "'.' cannot be written: it is a folder",
    "evaluate --model none --dataset digits --task multi_label --real x": "--real needs one label per image",
    "evaluate --model none --dataset digits --task regression --per_class": "--per_class needs classes",
    "evaluate --model none --dataset digits --retrieval --per_class --prompts clip_7": (
        "--retrieval scores captions, without classes; got it with --per_class, --prompts"
    ),
    f"{EVALUATE} --retrieval": "--retrieval needs an image-text model",
    f"{EVALUATE} --labels cat,dog": "need a model with a text tower",
    f"{EVALUATE} --on_bad_image none": "on_bad_image must be one of 'fail', 'skip', 'keep'; got 'none'",
    f"{EVALUATE} --json none/x.json": "there is no folder 'none'",
    "fewshot --model MODEL --dataset digits --shots one": "expected a non-negative integer; got 'one'",
    "fewshot --model none.tflite --dataset digits": "none.tflite",
    "fewshot --model MODEL --dataset folder:IMAGES --shots 9": "9 or more training images per class; got 7",
    "fewshot --model MODEL --dataset digits --neighbors 0": "expected a positive integer; got '0'",
    "fewshot --model MODEL --dataset digits --seeds -1": "expected a non-negative integer; got '-1'",
    "probe --model MODEL --dataset digits --shots 0": "expected a positive integer; got '0'",
    "probe --model none --dataset digits --figure x.jpg": "expected --figure to be a .png file",
    "probe --model none --dataset digits --figure none/x.png": "there is no folder 'none'",
    "predict --model MODEL none.png": "no such image file: none.png",
    "predict --model MODEL FILE": "(expected JPEG, PNG, BMP, GIF, WEBP, TIFF, AVIF, HEIF)",
    "predict --model MODEL EMPTY": "no images in the folder",
    "predict --model B/16 IMAGE": "'B/16' is a variant and has no weights",
    "predict --model HEADLESS IMAGE": "no classification head",
    "predict --model MODEL IMAGE --output none/x.csv": "there is no folder 'none'",
    "predict --model MODEL ftp://host/a.png": "no such image file: ftp://host/a.png",
    "predict --model MODEL http://127.0.0.1:1/a.png": "the request failed (ConnectionError)",
    "predict --model MODEL IMAGE --top 0": "expected a positive integer; got '0'",
    "predict --model MODEL IMAGE --classes none.txt": "or a text file of class names; got 'none.txt'",
    "predict --model MODEL IMAGE --classes imagenet_1k": "has 1000 class names; the model has 2 classes",
    "predict --model MODEL IMAGE --labels cat,dog": "need a model with a text tower",
    "predict --model MODEL IMAGE --format jsn": "(did you mean 'json' or 'jsonl'?)",
    "predict --model MODEL IMAGE --output x.xml": ".csv, .jsonl, .json, .parquet or .coco.json",
    "predict --model MODEL IMAGE --masks NEW": "need a model with outputs for each pixel",
    "complete --model MODEL --output NEW": "expected either images to complete, or --count",
    "complete --model MODEL --output NEW IMAGE": "expected --rows",
    "complete --model MODEL --output NEW --count 2 --rows 1": "expected --rows, the rows that are kept",
    "complete --model MODEL --output NEW IMAGE --count 2": "expected either images",
    "complete --model MODEL --output NEW --count 2": "expected one trained without labels",
    "complete --model none.keras --output EMPTY --count 1": "exists;",
    "complete --model MODEL IMAGE --output NEW --rows 2": "expected one trained without labels",
    "search index --model none IMAGES --index NEW": "no checkpoint is called 'none'",
    "search index --model MODEL https://host/a.png --index NEW": "no such image file: https://host/a.png",
    "search query IMAGE --index none": "'none' holds no index.json",
    "inspect --model MODEL --output NEW": "expected images with --image, or a data set with --dataset",
    "inspect --model MODEL --image IMAGE --output EMPTY": "exists;",
    "inspect --model MODEL --image IMAGE --output NEW --block 99": "--block 99 is out of range",
    "inspect --model MODEL --image none --output NEW": "no such image file: none",
    "inspect --model MODEL --image FILE --output NEW": "not a readable image",
    "inspect --model MODEL --image IMAGE --output NEW --task detection": "'detection'",
    "inspect --model MODEL --dataset digits --output NEW": "got one with 2 outputs (",
    "inspect --model HEADLESS --image IMAGE --dataset digits --output NEW": "give --image or --dataset",
    "inspect --model MODEL --image IMAGE --image_size 7 --output NEW": "is smaller than the patch of 8×8",
    "inspect --model MODEL --dataset digit --output NEW": "(did you mean 'digits'?)",
    "export --model MODEL --output EMPTY": "exists;",
    "export --model none.tflite --output NEW": "is an exported model; expected the run",
    "export --model none.keras --output NEW --image_size 24": "no such model file",
    # What needs images of one size.
    "export --model PACKED --output NEW": "image_size",
    "inspect --model PACKED --image IMAGE --output NEW": "image_size",
    "fewshot --model PACKED --dataset digits": "image_size",
    "probe --model PACKED --dataset digits": "image_size",
    "finetune --weights PACKED --dataset digits --recipe digits --workdir NEW": "image_size",
    f"{EXPORT} --dataset digits": "10 classes (0, 1, 2, 3, 4 and 5 more); got one with 2 outputs",
    f"{EXPORT} --formats hub --name My/Flowers": "'My/Flowers'",
    f"{EXPORT} --formats savedmodel": "(did you mean 'saved_model'?)",
    f"{EXPORT} --formats tflite,,onnx": "got ''",
    f"{EXPORT} --precisions int9": "(did you mean 'int8'?)",
    f"{EXPORT} --precisions int8": "int8 is calibrated on images: give some",
    f"{EXPORT} --batch_size 0": "expected a positive integer; got '0'",
    f"{EXPORT} --version -1": "expected a non-negative integer; got '-1'",
    f"{EXPORT} --integer_io float": "integer_io is an option of LiteRT's full_int8 only",
    f"{EXPORT} --drawing 28": "drawing need the format 'web'; got saved_model, tflite",
    f"{EXPORT} --single_file --attention": "single_file, attention need the format 'web'",
    f"{EXPORT} --fused_attention": "fused_attention need the format 'onnx'; got saved_model, tflite",
    f"{EXPORT} --formats hub --publisher UPPER/x": "publisher must consist of lowercase letters",
    "benchmark --model b16": "'b16' is a variant and has no weights",
    "benchmark --model B/0": "no such checkpoint file: 'B/0'",
    "benchmark --model mu/16 --image_size 8": "smaller than the patch of 16×16",
    "benchmark --model MODEL --all --formats live": "--all exports a model in every format; omit --formats",
    "benchmark --model MODEL --all --precisions int8": "--all exports a model in every format; omit --precis",
    "benchmark --model MODEL --dataset digits": "expected --all with --dataset; got none",
    f"{EXPORT} --field label=a": "expected --dataset with --field; got none",
    "inspect --model MODEL --image IMAGE --classes FILE --output NEW": "expected --dataset with --classes",
    "fewshot --embeddings NEW --data_dir DIR": "expected --dataset with --data_dir; got none",
    "benchmark --model MODEL --formats tfjs": "unknown format tfjs; did you mean web?",
    "benchmark --model MODEL --precisions int4": "got 'int4'",
    "benchmark --model MODEL --batch_sizes 1,a": "expected a positive integer; got 'a'",
    "benchmark --model MODEL --rounds 0": "expected a positive integer; got '0'",
    "benchmark --model MODEL --image_size 0": "expected a side in pixels or HEIGHTxWIDTH; got '0'",
    "weights show none.npz": "no such checkpoint file: 'none.npz'",
    "weights show FILE": "is no checkpoint that can be read",
    "weights show GOLDEN:nothing": "has nothing under 'nothing'",
    "weights show GOLDEN --set num_heads": "--set expects FIELD=VALUE; got 'num_heads'",
    "weights show GOLDEN --set heads=3": "(did you mean 'num_heads'?)",
    "weights show b/16": "'b/16' is a variant and has no weights",
    "weights convert GOLDEN NEW.npz --layout vit_jax --dtype int8": "dtype must be one of",
    "weights push GOLDEN me/vit --layout vit_jax": "got 'vit_jax'",
    "weights convert GOLDEN NEW.npz --layout vit-jax": "(did you mean 'vit_jax'?)",
    "weights convert GOLDEN NEW.txt --layout vit_jax": "expected a .npz file for the layout 'vit_jax'",
    "weights convert GOLDEN NEW.npz --layout huggingface": "expected a folder for the layout 'huggingface'",
    "weights push GOLDEN me": "repository must be ORG/NAME or USER/NAME; got 'me'",
    "weights push GOLDEN me/x --license": "expected one argument",
    **{
        f"{FINETUNE} {options}": message
        for options, message in {
            "--recipe augregg": "(did you mean 'augreg'?)",
            "--set base_lr": "--set expects FIELD=VALUE; got 'base_lr'",
            "--set base_lr=fast": "base_lr must be a number above 0; got 'fast'",
            "--set base_lr=-1": "base_lr must be a number above 0; got -1",
            "--set optimizer=adam": "(did you mean 'adamw'?)",
            "--set decay=step": "decay must be one of 'cosine', 'linear'; got 'step'",
            "--set dtype=bfloat16": "(did you mean 'mixed_bfloat16'",
            "--set dropout_rate=1.5": "dropout_rate must be a number in [0, 1); got 1.5",
            "--set mixup=True": "mixup must be a number in [0, 1]; got True",
            "--set crop_area=(0.9,0.1)": "crop_area must be (smallest, largest) in (0, 1]",
            "--set layer_decay=2": "layer_decay must be a number in (0, 1] or None; got 2",
            "--set learning_rates=2": "a recipe has no learning_rates",
            "--total_steps 0": "expected a positive integer; got '0'",
            "--batch_size 1.5": "expected a positive integer; got '1.5'",
            "--image_size 30x": "expected a side in pixels or HEIGHTxWIDTH; got '30x'",
            "--strategy gpu --total_steps 1 --batch_size 4": "strategy must be one of 'auto'",
            "--on_bad_image ignore": "on_bad_image must be one of 'fail', 'skip'",
        }.items()
    },
}

# An expression of the names in `values`, and a part of the message.
CALLS = {
    "VisionTransformer()": "missing image_size, patch_size, hidden_size, num_layers, mlp_dim, num_heads",
    "VisionTransformer(num_class=3)": "(did you mean 'num_classes'",
    "from_variant('B16')": "(did you mean 'B/16'?)",
    "from_variant('dinov3-s/16')": "(did you mean 'DINOv3-S/16'?)",
    "from_variant(None)": "variant None is unknown",
    "from_variant('mu/16', 8)": "smaller than the patch of 16×16",
    "from_variant('mu/16', 'big')": "got 'big'",
    "from_variant('mu/16', -32)": "got -32",
    "from_variant('mu/16', num_classes=-1)": "num_classes must be a positive int or None; got -1",
    "from_variant('mu/16', num_classes=2.5)": "num_classes must be a positive int or None; got 2.5",
    "from_variant('mu/16', num_classes=True)": "num_classes must be a positive int or None; got True",
    "from_variant('mu/16', pooling='mean')": "pooling must be one of 'token', 'gap'",
    "from_variant('mu/16', class_names=['a'], num_classes=2)": "class_names",
    "from_variant('mu/16', dropout_rate=2)": "dropout_rate must be a number in [0, 1); got 2",
    "from_variant('mu/16', num_heads=3)": "num_heads",
    "one_block(activation='gelu_tan')": "(did you mean 'gelu_tanh'?)",
    "one_block(patch_size=0)": "patch_size",
    "one_block(position_embedding='rope')": "position_embedding must be one of",
    "one_block(norm='batch')": "norm must be one of",
    "one_block(image_size=(16,))": "image_size",
    "from_pretrained('B/16')": "VisionTransformer.from_variant('B/16') builds it",
    "from_pretrained('vit_base_patch16_224')": "did you mean 'vit_base_patch16_224.augreg2_in21k_ft_in1k'",
    "from_pretrained('none.npz')": "no such checkpoint file: 'none.npz'",
    "from_pretrained('')": "''",
    "from_pretrained(None)": "source must be a str or a path; got None",
    "from_pretrained(FILE)": "is no checkpoint that can be read",
    "from_pretrained(EMPTY)": "is a folder without model.keras",
    "from_pretrained('hf://org')": "expected hf://org/repo",
    "from_pretrained(GOLDEN, sha256='abc')": "sha256 must be 64 hexadecimal digits; got 'abc'",
    "from_pretrained(GOLDEN, num_classes=-1)": "num_classes",
    "from_pretrained(GOLDEN, head='keeep')": "(did you mean 'keep'?)",
    "from_pretrained(GOLDEN, variant='B/16')": "variant B/16 says hidden_size=768",
    "from_pretrained(GOLDEN, image_size='large')": "got 'large'",
    "from_pretrained(GOLDEN, position_interpolation='nearest')": "position_interpolation must be one of",
    "from_pretrained(GOLDEN, dropout=0.1)": "(did you mean 'dropout_rate'",
    "from_pretrained(GOLDEN, kind='classifer')": "got 'classifer' (did you mean 'classifier'?)",
    "from_pretrained(GOLDEN, kind='segmenter')": "expected a segmenter's file, or its head in segmenter={…}",
    "from_pretrained(GOLDEN, kind='segmenter', num_classes=0)": "kind='segmenter' needs it",
    "from_pretrained(GOLDEN, kind='pretrainer', segmenter={})": "got arguments for pretrainer and segmenter",
    "from_pretrained(GOLDEN, kind='detector')": "expected a detector's file, or its head in detector={…}",
    "keras_vit.save_weights(model, NEW + '.npz', 'vitjax')": "(did you mean 'vit_jax'?)",
    "keras_vit.save_weights(model, NEW + '.txt', 'vit_jax')": "expected a .npz file",
    "keras_vit.save_weights(model, NEW + '.npz', 'vit_jax', dtype='int8')": "dtype must be one of",
    "keras_vit.save_weights(None, NEW + '.npz', 'vit_jax')": "expected a VisionTransformer; got a NoneType",
    "keras_vit.save_weights(MaskedPatchPredictor(headless), NEW, 'huggingface')": "whose `encoder` can",
    "keras_vit.save_weights(model, None, 'vit_jax')": "path must be a str or a path; got None",
    "keras_vit.list_models(variant='B16')": "(did you mean 'B/16'?)",
    "keras_vit.list_models(3)": "filter must be a tuple, each item a str; got 3",
    "keras_vit.push_to_hub(model, None)": "repository must be ORG/NAME or USER/NAME; got None",
    "keras_vit.push_to_hub(model, 'me/x', layout='tim')": "(did you mean 'timm'?)",
    "keras_vit.push_to_hub(model, 'me/x', metrics={'accuracy': 1})": "expected the dataset of the metrics",
    "Preprocessing('224')": "got '224'",
    "Preprocessing(8, resize='croop')": "(did you mean 'crop'?)",
    "Preprocessing(8, mean=(0.5,), std=(0.5, 0.5))": "mean and std must have one number per channel",
    "Preprocessing(8, std=(0, 0, 0))": "std positive",
    "Preprocessing(8)(None)": "got NoneType of rank 0",
    "Preprocessing(8)('none.png')": "no such image file: none.png",
    "Preprocessing(8)(b'abc')": "not a readable image: 3 bytes (expected JPEG",
    "Preprocessing(8)([None])": "an image must have the shape",
    "Preprocessing(8)({'a': 1})": "got dict of rank 0",
    "Preprocessing(8)(np.zeros((2, 2, 5)))": "the model reads 3 channels; got an image with 5",
    "Preprocessing(8)(np.full((4, 4), 300.0))": "got values from 300 to 300",
    "Preprocessing(8)(np.zeros((4, 4)), value_range=(1, 0))": "value_range must be (lowest, highest)",
    "Preprocessing(8)(np.array([['a']]))": "images must be uint8 or float in [0, 1]; got str32",
    "model.classify(IMAGE, top=0)": "top must be a positive int; got 0",
    "model.classify(IMAGE, top='all')": "top must be a positive int; got 'all'",
    "model.classify(IMAGE, batch_size=0)": "batch_size must be a positive int; got 0",
    "model.classify(IMAGE, batch_size='a')": "batch_size must be a positive int; got 'a'",
    "model.classify(IMAGE, task='regression')": "classify needs a task with classes",
    "model.classify(IMAGE, task='single')": "(did you mean 'single_label'?)",
    "headless.classify(IMAGE)": "this model has no classification head",
    "model.feature_extractor('encodr_norm')": "(did you mean 'encoder_norm'?)",
    "model.feature_extractor([])": "expected stages among",
    "model.feature_extractor('logits', grid=True)": "'logits' holds no grid",
    "model.classify(IMAGE, task='segmentation')": "classes of whole images; got 'segmentation'",
    "keras_vit.dense_features(model, 'none.png')": "no such image file: none.png",
    "keras_vit.dense_features(model, IMAGE, blocks=(99,))": "blocks must be increasing numbers from 0 to 0",
    "data.load_dataset('digit')": "(did you mean 'digits'?)",
    "data.load_dataset(None)": "name must be a str; got None",
    "data.load_dataset(pathlib.Path('none'))": "no such folder: 'none'",
    "data.load_dataset('digits', task='regresion')": "(did you mean 'regression'?)",
    "data.load_dataset('digits', task='multi_label')": "digits has no labels for task 'multi_label'",
    "data.load_dataset('digits', on_bad_image='warn')": "on_bad_image must be one of",
    "data.load_dataset('digits', seed='x')": "seed must be an int of at least 0 or None; got 'x'",
    "data.load_dataset('digits', seed=-1)": "seed must be an int of at least 0 or None; got -1",
    "digits.split('val')": "(did you mean 'validation'?)",
    "data.Augmentation(mixup=2)": "mixup must be a number in [0, 1]; got 2",
    "data.Augmentation(crop_area=(1, 0))": "crop_area must be (smallest, largest)",
    "data.training_batches(digits.split('test'), Preprocessing(8), 0, seed=0, steps=1)": "batch_size must be",
    "data.evaluation_batches(digits.split('test'), Preprocessing(8), 0)": "batch_size must be",
    "evaluation.evaluate(headless, digits.split('test'))": "this model has no classification head",
    "evaluation.evaluate(model, digits.split('test'))": "labels up to 9, but the model has 2",
    "evaluation.evaluate(model, digits.split('test'), task='x')": "task must be one of 'single_label'",
    "evaluation.few_shot(headless, digits, shots=0)": "shots",
    "evaluation.read_real_labels('none.json')": "cannot read 'none.json'",
    "evaluation.representations(model, digits.split('test'), batch_size=0)": "batch_size must be",
    "training.find_recipe('augregg')": "(did you mean 'augreg'?)",
    "training.find_recipe('finetune').with_changes(lr=1)": "a recipe has no lr (did you mean 'base_lr'?)",
    "training.find_recipe('finetune').with_changes(base_lr='fast')": "base_lr must be a number",
    "training.find_recipe('finetune').with_changes(total_steps=0)": "total_steps",
    "training.compile_model(model, 'fintune')": "(did you mean 'finetune'",
    "training.compile_model(model, epochs=3)": "got epochs=3 and steps_per_epoch=None",
    "training.freeze(model, 'encoder_block')": "(did you mean 'encoder_block_0'?)",
    "training.WarmupDecay(0.1, total_steps=5, warmup_steps=9)": "warmup_steps",
    "training.WarmupDecay(0.1, total_steps=5, warmup_steps=1, decay='step')": "decay must be one of",
    "training.RunConfig('digits', 'finetune', weights='x')": "recipe must be a Recipe",
    "training.RunConfig(3, training.find_recipe('finetune'), weights='x')": "dataset must be a str; got 3",
    "training.RunConfig('digits', training.find_recipe('finetune'))": "expected a model",
    "training.make_strategy('miror')": "(did you mean 'mirrored'?)",
    "weights.class_names('imagenet1k')": "got 'imagenet1k'",
    "weights.class_names(None)": "names must be a str or a path; got None",
    "weights.prompt_templates('clip_81')": "(did you mean 'clip_80'",
    "weights.fetch(None)": "source must be a str or a path; got None",
    "weights.fetch(GOLDEN, size=-1)": "size must be an int of at least 0 or None; got -1",
    "weights.read_arrays(FILE)": "is no checkpoint that can be read",
    "export.open_exported('none')": "'none' does not exist; expected a folder",
    "export.export_saved_model(model, NEW, task='x')": "task must be one of",
    "export.export_tflite(EMPTY, NEW + '.tflite', precision='int4')": "precision must be one of",
    "export.export_folder(model, NEW, formats=('tflit',))": "(did you mean 'tflite'?)",
    "export.export_folder(model, NEW, formats=())": "got ()",
    "export.export_folder(model, NEW, drawing=28)": "drawing need the format 'web'",
    "inspection.attention_maps(model, np.zeros((1, 16, 16, 3)), block=9)": "block 9 is out of range",
    "search.open_index('none')": "'none' holds no index.json",
    "keras_vit.variants.cost('B/16', 8)": "at least its patch size of 16; got 8×8",
    "keras_vit.variants.cost('B/16', 'a')": "image_size must be a positive int; got 'a'",
}


@pytest.fixture(scope="module")
def paths(places):
    one_block(num_classes=None).save(places / "headless.keras")
    one_block(num_classes=2, **PACKED).save(places / "packed.keras")
    (places / "file.txt").write_text("hello")
    (places / "empty").mkdir()
    (places / "photos").mkdir()
    names = {"MODEL": "model.keras", "IMAGES": "images", "FILE": "file.txt", "EMPTY": "empty", "NEW": "new"}
    names |= {"HEADLESS": "headless.keras", "PACKED": "packed.keras"}
    names |= {"IMAGE": "images/cat/00.png", "GOLDEN": GOLDEN}
    return {name: str(places / path) for name, path in names.items()}


@pytest.fixture(scope="module")
def values(paths, model):
    models = {"model": model, "headless": one_block(num_classes=None), "one_block": one_block}
    names = {name: getattr(keras_vit, name) for name in dir(keras_vit) if not name.startswith("__")}
    names |= {"keras_vit": keras_vit, "np": np, "pathlib": pathlib, "digits": data.load_dataset("digits")}
    return {**paths, **names, **models, "from_variant": keras_vit.VisionTransformer.from_variant}


@pytest.fixture(autouse=True, scope="module")
def _once():
    """The parser and the model are made once."""
    with pytest.MonkeyPatch.context() as changes:
        parser = console.parser()
        changes.setattr(console, "parser", lambda words: parser)
        changes.setattr(checkpoint, "read_model", functools.cache(checkpoint.read_model))
        yield


@pytest.fixture(autouse=True)
def _nothing_is_left(places, paths, monkeypatch):
    monkeypatch.chdir(places)
    before = {*places.iterdir()}
    yield
    assert {*places.iterdir()} == before


@by_table("command, message", COMMAND_LINES.items(), ids=COMMAND_LINES)
def test_a_wrong_command_line_is_refused_in_one_line(command, message, paths):
    words = [re.sub("[A-Z]{3,}", lambda name: paths.get(name[0], name[0]), word) for word in command.split()]
    stderr = io.StringIO()
    with redirect_stderr(stderr), redirect_stdout(io.StringIO()):
        try:
            status = _keras_vit_cli.main(words)
        except SystemExit as stop:
            status = stop.code
    (line,) = stderr.getvalue().splitlines()
    assert status == 2 and line.startswith("keras-vit") and message in line


@by_table("call, message", CALLS.items(), ids=CALLS)
def test_a_wrong_call_is_refused_in_one_line(call, message, values):
    with pytest.raises((ValueError, TypeError)) as error:
        eval(call, values)
    assert message in str(error.value) and "\n" not in str(error.value)
