"""SeqIO tasks and mixtures, a file per corpus; installed as t5score_jax.tasks.

Importing a module of this package registers its tasks. Scoring does not import
it.
"""
