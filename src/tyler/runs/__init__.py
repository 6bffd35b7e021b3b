"""Run directories that survive: what is kept of a run, and how it is written.

run.py           the directory: config, environment, metrics, trajectories, and who may write to it
checkpoints.py   whole or not there; the newest and the best
environment.py   versions, machine and seeds, as recorded
atomic_files.py  files that are whole or not there
json_lines.py    logs: what a record may hold, and reading what a kill cut short
signals.py       a signal ends a run at the next whole step
metrics.py       every key that is logged, and what it means
progress.py      progress with the time left: a bar, or lines of a log
catalogue.py     a run directory read: how it stands
trackers.py      TensorBoard, trackio, Weights & Biases
"""
