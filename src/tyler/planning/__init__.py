"""Parameters, memory and dry runs, before renting a GPU.

plan.py     `tyler plan`
steps.py    what a step of each training reads at once
memory.py   what is held, tensor by tensor
dry_run.py  a real architecture with random weights, run and compared with the plan
learners.py what a dry run takes a step with
"""
