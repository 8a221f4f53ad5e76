"""What a model has learned and what it looks at."""

from keras_vit.inspection.attention import attention_rollout as attention_rollout
from keras_vit.inspection.attention import attention_scores as attention_scores
