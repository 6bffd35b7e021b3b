"""The two stages, their losses and rewards, and the loop they share.

traces.py                  solutions as tokens, with their candidates
stage1.py                  operators learn from solution traces
stage2.py                  the policy learns when to invoke what
supervised.py              fine-tuning on traces, for the baselines that need it
objectives.py              losses, one function per equation
rewards.py                 rewards and advantages, one function per equation
teacher_forcing.py         latents inside given solutions
replay.py                  log-probabilities of finished trajectories
merging.py                 a LoRA folded into an ordinary model folder
calibration.py             how psi starts
gradient_checkpointing.py  activations computed again where memory is short
loop.py                    the steps a run has left, with checkpoints
mixed_precision.py         products in bfloat16 over float32 weights
micro_batches.py           which rows of a batch are read at once
optimizer.py               AdamW and its schedule
state.py                   what the next step depends on, saved and put back
distributed.py             several processes that train as one
"""
