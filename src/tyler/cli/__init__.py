"""The command line: one file per command where it is more than a call.

main.py        every command, its options and its help
options.py     arguments that commands share
quickstart.py  both stages and an evaluation on the mini model
doctor.py      what this machine can run
display.py     operators in a terminal
curves.py      curves of a run
"""
