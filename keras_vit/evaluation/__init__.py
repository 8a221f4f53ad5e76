"""How good a model is."""

from keras_vit.evaluation.classification import Predictions as Predictions
from keras_vit.evaluation.classification import accuracy as accuracy
from keras_vit.evaluation.classification import confusion_matrix as confusion_matrix
from keras_vit.evaluation.classification import evaluate as evaluate
from keras_vit.evaluation.classification import per_class as per_class
from keras_vit.evaluation.classification import predict as predict
from keras_vit.evaluation.few_shot import few_shot as few_shot
from keras_vit.evaluation.few_shot import representations as representations
from keras_vit.evaluation.multi_label import multi_label_classes as multi_label_classes
from keras_vit.evaluation.multi_label import multi_label_scores as multi_label_scores
from keras_vit.evaluation.real_labels import read_real_labels as read_real_labels
from keras_vit.evaluation.real_labels import real_accuracy as real_accuracy
from keras_vit.evaluation.real_labels import real_labels_of as real_labels_of
from keras_vit.evaluation.regression import regression_scores as regression_scores
