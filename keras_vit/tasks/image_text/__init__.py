"""Images and texts in one space of vectors."""
