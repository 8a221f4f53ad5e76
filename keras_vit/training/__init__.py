"""Training by recipes: `compile_model` and plain `fit`; whole runs are in `keras_vit.training.run`."""

from keras_vit.models.distributed import DistributedModel as DistributedModel
from keras_vit.training.compiling import compile_model as compile_model
from keras_vit.training.compiling import freeze as freeze
from keras_vit.training.losses import SigmoidCrossEntropy as SigmoidCrossEntropy
from keras_vit.training.losses import SoftmaxCrossEntropy as SoftmaxCrossEntropy
from keras_vit.training.named_recipes import RECIPES as RECIPES
from keras_vit.training.optimizers import SGD as SGD
from keras_vit.training.optimizers import AdamW as AdamW
from keras_vit.training.recipes import Recipe as Recipe
from keras_vit.training.schedules import WarmupDecay as WarmupDecay
from keras_vit.training.tasks import Accuracy as Accuracy
