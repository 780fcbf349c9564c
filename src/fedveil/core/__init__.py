"""The words every room speaks: signals, stages, methods, flat vectors, random streams. Imports no other room."""
