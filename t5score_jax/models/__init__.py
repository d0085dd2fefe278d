"""Models: parameters and a batch in, a loss or scores out."""
