"""Pages, server, jobs and sandbox of a board."""
