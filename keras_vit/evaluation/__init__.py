"""How good a model is."""

from keras_vit.evaluation.classification import evaluate as evaluate
