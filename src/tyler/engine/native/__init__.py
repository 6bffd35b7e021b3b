"""The reference engine: every router, sampler and intervention, on any device, exact in float32.

engine.py         a step: admit, synthesize, read, decide
row.py            a request in its slot
reader.py         a decoder that reads what is new of x_t
decisions.py      what each row chooses, tells, or repeats
fused_decoder.py  the forward pass that decoding runs
cache.py          x_t, keys and values of every slot
attention.py      attention of one packed pass
packing.py        weights as a CPU multiplies few rows by them fastest
"""
