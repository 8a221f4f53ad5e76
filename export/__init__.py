"""Models for deployment: SavedModel, TF Hub, LiteRT and ONNX."""
