"""Models for deployment: SavedModel and LiteRT."""
