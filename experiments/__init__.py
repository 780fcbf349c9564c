"""Studies: each one is re-run, and its page in ``docs/results`` re-written, with one command."""
