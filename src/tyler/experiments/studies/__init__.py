"""Studies of our own: each one file that declares its rows, controls and comparisons as a STUDY (`study.py`)."""
