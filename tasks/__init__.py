"""SeqIO tasks and mixtures, one file a corpus; installed as t5score_jax.tasks.

Importing a module of this package registers its tasks. Nothing that scores
imports it.
"""
