"""One loaded metric over HTTP."""
