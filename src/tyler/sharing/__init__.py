"""A trained Tyler for others: what is sent to the Hub, and what its card says.

card.py   the model card, made from what a run and its evaluations wrote down
push.py   `tyler push`: a checked copy without private parts, and its upload
"""
