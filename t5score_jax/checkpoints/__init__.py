"""Models on disk: bundles that score and checkpoints that train on."""
