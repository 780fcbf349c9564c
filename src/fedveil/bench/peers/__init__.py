"""The peers, one file each; importing these files imports no peer."""
