"""`keras-vit pretrain`: train from random weights, as `finetune` but for recipe and objective."""

from keras_vit.cli.finetune import run as run
