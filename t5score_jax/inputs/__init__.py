"""Input pipelines: batches from tasks or arrays."""
