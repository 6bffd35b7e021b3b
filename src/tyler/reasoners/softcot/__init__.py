"""SoftCoT (Xu et al., 2025): a frozen assistant writes soft thoughts for a frozen backbone; one Linear is trained.

model.py    the projection, where thoughts stand in a prompt, checkpoints, and SoftCoT as a reasoner
sft.py      the projection learns from traces
planned.py  what a step of it reads
"""
