"""Attacks, robust rules and the detectors, measured on a small Fashion-MNIST."""
