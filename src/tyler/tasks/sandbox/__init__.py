"""How a program that a model wrote is run: without a network, the host's files, or a way to fake success."""
