"""Pass@1 of any reasoner: what is run, what is kept, and what people see.

pass_at_1.py        a reasoner answers problems; every answer is graded and kept
command.py          `tyler eval`
options.py          what can be asked of it
records.py          answers on disk, so that an evaluation resumes
answers.py          answers to a file of questions, ungraded
reports.py          tables of records
samples.py          several answers to a problem: pass@k, a majority vote
summary.py          the numbers of a report as JSON
html_report.py      a page of records
views.py            what such a page shows
verdicts.py         the word, sign, colour and pattern of each verdict
pages.py            pages of HTML from templates
comparison.py       two evaluations, problem by problem
budget_matching.py  a baseline made as long as Tyler
statistics.py       intervals and tests
harness.py          lm-evaluation-harness
"""
