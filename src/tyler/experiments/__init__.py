"""Experiments: grids of cells that are run once, and what is made of their records.

cells.py          a cell: a trained model, decoded in one way, on the problems of one split; named by its hash
grid.py           cells that have no record yet are run, on models trained once; a killed grid resumes
measures.py       what is kept of a cell's answers
records.py        finished cells in the store
scales.py         backbones, problems, seeds, chosen settings and methods of each scale
experiment.py     an experiment: entries, findings, tables and figures
declared/         one module an experiment of the paper
study.py          a study of our own, as a file declares it, and its tables and figure
studies/          one file a study
averages.py       shares with intervals, averages over tasks, differences; the paper's numbers (published.yaml)
reproduction.py   `tyler reproduce`: run what is missing; results.json, and tables and figures from it alone
figures.py        the style of figures (tyler.mplstyle), and the figure of a study
listing.py        a dry run's list with its costs, and what a number is made of
smoke.py          everything once, on small random backbones
"""
