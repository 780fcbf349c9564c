"""Private methods compared on digits: accuracy against epsilon, tuned alike (``python -m experiments.dp_methods``)."""
