"""``python -m fedveil`` is ``fedveil``."""

from fedveil.cli import main

if __name__ == "__main__":
    main()
