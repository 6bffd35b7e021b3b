"""Parameters, memory and dry runs, before renting a GPU. What a step of a training reads, its method says.

plan.py     `tyler plan`
memory.py   what is held, tensor by tensor
dry_run.py  a real architecture with random weights, run and compared with the plan
"""
