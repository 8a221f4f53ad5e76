"""One file a verb of the console script; `_keras_vit_cli` has the parser."""
