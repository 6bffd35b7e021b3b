"""The command line: one file per command where it is more than a call.

main.py        the commands, and what becomes of their errors and interruptions
options.py     arguments that commands share
logs.py        messages of the library as plain lines
train.py       stage1, stage2 and train
solve.py       one answer as it is decoded, or a file of questions
lens.py        what its latent blocks do
evaluate.py    accuracy on tasks
quickstart.py  both stages and an evaluation on the mini model
doctor.py      what this machine can run
curves.py      curves of a run
"""
