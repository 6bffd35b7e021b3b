"""How a program that a model wrote is run: without a network, the host's files, or a way to fake success.

sandbox.py     limits, packages, and the wait for a signal that cannot be forged
bubblewrap.py  what isolates it: namespaces, files, users
seccomp.py     the system calls that are refused
worker.py      what runs inside: the test in one process, the program in another
"""
