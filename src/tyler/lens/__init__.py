"""The operator lens: what one latent block of an answer does, beside controls.

block.py          one block of one answer: what it is read as, and what changes without it
survey.py         the same over a set of problems, with intervals
stored.py         answers of the store, read again instead of decoded
interventions.py  what is done to the latents of a model that is measured
tables.py         what the lens measured as tables and pages
curves.py         training curves as pictures
run_report.py     `tyler report`: a page of runs and evaluations, from what they left on disk
"""
