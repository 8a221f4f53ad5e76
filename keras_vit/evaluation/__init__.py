"""How good a model is."""

from keras_vit.evaluation.classification import accuracy as accuracy
from keras_vit.evaluation.classification import confusion_matrix as confusion_matrix
from keras_vit.evaluation.classification import evaluate as evaluate
from keras_vit.evaluation.classification import per_class as per_class
from keras_vit.evaluation.classification import predict as predict
from keras_vit.evaluation.few_shot import few_shot as few_shot
