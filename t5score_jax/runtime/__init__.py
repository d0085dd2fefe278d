"""The processes of a run: start, rendezvous, shutdown, forks, and caches."""
