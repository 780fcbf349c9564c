"""Commands of ``fedveil`` that stand in files of their own."""
