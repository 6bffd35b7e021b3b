"""Experiments: grids of cells that are run once, and what is made of their records.

cells.py          a cell: a trained model, decoded in one way, on the problems of one split; named by its hash
training.py       the models of cells, trained once and shared
interventions.py  what is done to the latents of a model that is measured
records.py        a finished cell on disk, as short as it can be and still recount every number
grid.py           cells that have no record yet are run; a killed grid resumes
lens.py           what one latent block of an answer does, with controls
survey.py         the same over a set of problems, with intervals
studies/          which cells a study has
"""
