"""The two stages, their losses and rewards, and the loop they share.

traces.py                  solutions as tokens, with their candidates
stage1.py                  operators learn from solution traces
stage2.py                  the policy learns when to invoke what
supervised.py              the trainer of all that learns from traces
grpo.py                    the trainer of all that learns from groups of rewarded answers
rollouts.py                who answers while a policy learns
rewards.py                 what answers are worth: built-in rewards, one's own, and several with weights
reward_worker.py           the process in which one's own is called
verdicts.py                the verifier on many answers at once
policy_losses.py           advantages and losses of policies, one function per equation
objectives.py              the loss of Stage 1, and log-probabilities
teacher_forcing.py         latents inside given solutions
replay.py                  log-probabilities of finished trajectories
merging.py                 a LoRA folded into an ordinary model folder
calibration.py             how psi starts
loop.py                    what all trainings share: their loop, with checkpoints
micro_batches.py           which rows of a batch are read at once
planned.py                 the same of a largest step, from an architecture's numbers, for plans
optimizer.py               AdamW, its schedule, and what the next step depends on
distributed.py             several processes that train as one
sharding.py                layers that several processes share
"""
