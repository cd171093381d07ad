"""Training: its configuration, the loop, and the run folder that it leaves behind."""
