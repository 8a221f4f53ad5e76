"""The subcommands of the console script, one file each; `_keras_vit_cli` has the parser."""
