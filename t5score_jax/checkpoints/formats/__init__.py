"""Foreign formats of checkpoints, one module or folder each."""
