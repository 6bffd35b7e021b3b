"""A trained Tyler for others: what is sent to the Hub, and what its card says.

records.py   what a run and its evaluations wrote down, as far as it may be told
card.py      the model card made from it
push.py      `tyler push`: a checked copy without private parts, and its upload
"""
