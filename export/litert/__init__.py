"""The parts of LiteRT files: the form of the graph, metadata, and what delegates compute."""
