"""The verbs of `t5score`, one module each.

A verb has `SUMMARY` (a line for `t5score --help`), `add_arguments(parser)` and
`run(args)`, which returns the exit code.
"""
