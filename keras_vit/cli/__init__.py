"""One file a verb of the console script; `keras_vit_cli` has the parser."""
