"""A federation between real machines: the folder that ``fedveil deploy init`` writes, and what starts it."""
