"""The transition x_t -> x_{t+1}, and everything that makes it fast.

engine.py         a step: admit, serve, decide, read
request.py        what is asked, and the events that answer
request_state.py  a request in flight
trajectory.py     what came of it: actions, log-probabilities, latents, timings
presentation.py   how an answer with silent operators is shown, and the colours of operators
routing.py        who decides when an operator is invoked: the policy or a schedule
sampling.py       how an action is drawn from p
decisions.py      what each row chooses, tells, or repeats
branch.py         another answer's actions up to an invocation, which is left out
soft_sampling.py  choosing mixtures of tokens, for reasoners that do
detokenizer.py    text from tokens, as they come
scheduler.py      which requests wait, are admitted or are preempted
batch.py          the rows of a step
context.py        x_t: embeddings, positions and the two readers of them
ragged.py         rows one after another in one buffer, on a CPU
paged.py          rows in pages, on a GPU
fused_decoder.py  the forward pass that decoding runs
packing.py        weights as a CPU multiplies few rows by them fastest
cuda_graphs.py    recorded programs for passes of few positions
overlap.py        launching a step while the host still reads the last one
checks.py         what settings may be
sizes.py          how much is held or computed at once
"""
