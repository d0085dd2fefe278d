"""From tasks or arrays to batches."""
