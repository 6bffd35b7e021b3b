"""Memory, time and dry runs, before renting a GPU.

plan.py              `tyler plan`
memory.py            what is held, tensor by tensor
roofline.py          how long a pass takes: bytes over bandwidth, operations over rate
hardware.py          devices that are known
device_benchmark.py  the machine at hand, measured
dry_run.py           a real architecture with random weights, run and compared with the plan
"""
