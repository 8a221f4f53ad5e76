"""The subcommands of the console script, one file each: its options, and `run`.

The console script imports one of these files to parse a command line, before `keras_vit` is loaded. So they
import what needs Keras or NumPy in their functions, use the public names as attributes of `keras_vit`, and
leave longer work to files that are no subcommands.
"""
