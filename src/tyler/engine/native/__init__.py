"""The reference engine: every router, sampler and intervention, on any device, exact in float32.

engine.py         a step: admit, serve, decide, read
decisions.py      what each row chooses, tells, or repeats
scheduler.py      which requests wait, are admitted or are preempted
batch.py          the rows of a step
context.py        x_t: embeddings, positions and the two readers of them
ragged.py         rows one after another in one buffer
fused_decoder.py  the forward pass that decoding runs
packing.py        weights as a CPU multiplies few rows by them fastest
"""
