"""The Vision Transformer: its options, what follows from them, and the model."""
