"""Ours against the peers, measured side by side in one run (DESIGN 4: ``fedveil bench``).

The core (``python -m fedveil.bench.engine``) needs torch and numpy only, so that it also runs on a bare machine with an
accelerator. Peers are imported here and nowhere else in the product, when they are installed and their turn has come.
"""
