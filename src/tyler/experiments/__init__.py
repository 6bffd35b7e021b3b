"""Experiments: grids of cells that are run once, and what is made of their records.

cells.py          a cell: a trained model, decoded in one way, on the problems of one split; named by its hash
training.py       the models of cells, trained once and shared
records.py        a finished cell on disk, as short as it can be and still recount every number
grid.py           cells that have no record yet are run; a killed grid resumes, and several processes share one
scales.py         backbones, problems, seeds, chosen settings and methods of each scale
experiment.py     an experiment: entries, findings, tables and figures
declared/         one module an experiment of the paper
studies/          one module a study of our own
study.py          what a study declares, and its tables and figure
averages.py       shares with intervals, averages over tasks, differences; the paper's numbers (published.yaml)
measures.py       what is kept of a cell's answers
reproduction.py   `tyler reproduce`: run what is missing, then results.json
outputs.py        tables and figures from results.json alone (figures.py, tyler.mplstyle)
listing.py        a dry run's list with its costs, and what a number is made of
smoke.py          everything once, on small random backbones
"""
