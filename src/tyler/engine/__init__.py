"""What is asked of a decoding engine, and what it answers; the engines are below.

request.py        what is asked, and the events that answer
trajectory.py     what came of it: actions, log-probabilities, latents, timings
presentation.py   how an answer with silent operators is shown, and the colours of operators
routing.py        who decides when an operator is invoked: the policy or a schedule
sampling.py       how an action is drawn from p
soft_sampling.py  choosing mixtures of tokens, for reasoners that do
detokenizer.py    text from tokens, as they come
request_state.py  a request in flight
shared_engine.py  one engine for many callers
checks.py         what settings may be
sizes.py          how much is held or computed at once
protocol.py       what an engine is
choice.py         which engine decodes, and with which arguments
native/           the exact reference, on any device
vllm/             the same on vLLM, for scale
"""
