"""Training by recipes: `compile_model` and plain `fit`, or a whole run with `train`."""

from keras_vit.engine.device_dtype import device_dtype as device_dtype
from keras_vit.engine.distributed_model import DistributedModel as DistributedModel
from keras_vit.engine.muon import Muon as Muon
from keras_vit.engine.optimizers import SGD as SGD
from keras_vit.engine.optimizers import AdamW as AdamW
from keras_vit.engine.schedules import WarmupDecay as WarmupDecay
from keras_vit.engine.sharding import make_distribution as make_distribution
from keras_vit.lazy import lazy_names
from keras_vit.losses import SigmoidCrossEntropy as SigmoidCrossEntropy
from keras_vit.losses import SoftmaxCrossEntropy as SoftmaxCrossEntropy
from keras_vit.losses import SquaredError as SquaredError
from keras_vit.metrics import Accuracy as Accuracy
from keras_vit.tasks.distillation.loss import DistillationLoss as DistillationLoss

LAZY = {  # what loads checkpoints or needs TensorFlow, which other Keras backends do without
    "RECIPES": "named_recipes",
    "Recipe": "recipes",
    "RunConfig": "run_config",
    "Workdir": "workdir",
    "compile_model": "compiling",
    "find_recipe": "named_recipes",
    "fit_head": "probing",
    "freeze": "compiling",
    "make_strategy": "keras_vit.engine.strategy",
    "train": "run",
}
__getattr__, __dir__ = lazy_names(__name__, LAZY)
