"""The command line: one file per command where it is more than a call.

`main` has the commands, and what becomes of their errors and interruptions; `options` has arguments that they share,
`logs` messages of the library as plain lines, `answers` answers in a terminal, `catalogue` what runs and presets there
are.
"""
