"""What is asked of a decoding engine, and what it answers; the engines are below.

request.py        what is asked, and the events that answer
trajectory.py     what came of it: actions, log-probabilities, latents, timings
routing.py        who decides when an operator is invoked: the policy or a schedule
sampling.py       how an action is drawn from p, by the plain rule or a request's own
logits.py         what a request changes before that: penalties, biases, min_p, a grammar
request_state.py  a request in flight
base.py           what an engine is
shared_engine.py  one engine for many callers, in a thread of its own
checks.py         what settings may be
native/           the exact reference, on any device
vllm/             the same on vLLM, for scale
"""
