"""Many texts under one model, fast and in order."""
