"""Training: a run document, the loop that executes it, and everything it leaves in its run folder."""
