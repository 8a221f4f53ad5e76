"""The parts of a Vision Transformer as Keras layers, written with keras.ops only."""

from keras_vit.layers.attention import MultiHeadSelfAttention as MultiHeadSelfAttention
from keras_vit.layers.attention import attend as attend
from keras_vit.layers.attention import attention_scores as attention_scores
from keras_vit.layers.attention_pooling import AttentionPooling as AttentionPooling
from keras_vit.layers.class_token import ClassToken as ClassToken
from keras_vit.layers.dropout import StochasticDepth as StochasticDepth
from keras_vit.layers.encoder_block import EncoderBlock as EncoderBlock
from keras_vit.layers.encoder_block import LayerScale as LayerScale
from keras_vit.layers.encoder_block import standard_block as standard_block
from keras_vit.layers.layer_norm import LayerNormalization as LayerNormalization
from keras_vit.layers.layer_norm import RMSNormalization as RMSNormalization
from keras_vit.layers.logit_factors import LogitFactors as LogitFactors
from keras_vit.layers.mask_tokens import MaskTokens as MaskTokens
from keras_vit.layers.mlp import MlpBlock as MlpBlock
from keras_vit.layers.packed_patches import PackedPositionEmbs as PackedPositionEmbs
from keras_vit.layers.packed_patches import PaddingBias as PaddingBias
from keras_vit.layers.palette_embedding import PaletteEmbedding as PaletteEmbedding
from keras_vit.layers.patch_dropout import PatchDropout as PatchDropout
from keras_vit.layers.patch_embedding import PatchEmbedding as PatchEmbedding
from keras_vit.layers.patch_embedding import extract_patches as extract_patches
from keras_vit.layers.position_embedding import AddPositionEmbs as AddPositionEmbs
from keras_vit.layers.position_embedding import resize_position_grid as resize_position_grid
from keras_vit.layers.position_embedding import sincos_2d as sincos_2d
from keras_vit.layers.relative_position_bias import RelativePositionBias as RelativePositionBias
from keras_vit.layers.relative_position_bias import RelativePositionIndex as RelativePositionIndex
from keras_vit.layers.rotary import RotaryPositions as RotaryPositions
from keras_vit.layers.rotary import rotate as rotate
from keras_vit.layers.start_token import StartToken as StartToken
from keras_vit.layers.std_conv import StdConv2D as StdConv2D
from keras_vit.layers.text_tokens import TokenEmbedding as TokenEmbedding
from keras_vit.layers.text_tokens import TokenPaddingBias as TokenPaddingBias
from keras_vit.layers.text_tokens import TokenPooling as TokenPooling
from keras_vit.layers.token_grid import GridToTokens as GridToTokens
from keras_vit.layers.token_grid import TokensToGrid as TokensToGrid
from keras_vit.layers.weight_norm import WeightNormDense as WeightNormDense
from keras_vit.layers.whole_patches import WholePatches as WholePatches
from keras_vit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
