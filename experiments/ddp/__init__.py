"""Distributed against central differential privacy: the same budget, nobody trusted."""
