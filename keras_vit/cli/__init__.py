"""The subcommands of the console script, one file each: its options, and `run`.

The console script imports these files to parse a command line, so they import what needs Keras or NumPy in
their functions, and leave longer work to modules that are no subcommands.
"""
