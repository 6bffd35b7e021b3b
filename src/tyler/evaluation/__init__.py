"""Answers, verdicts on them, and what people see.

answers.py          the rows of the store
store.py            answers and verdicts on disk; an evaluation resumes, and is read by everything below
line_files.py       files of lines that are added to, and resumed
folders.py          what evaluations and runs lie below a folder
parquet.py          the files of the store
pass_at_1.py        a reasoner answers problems; every answer is kept and graded
command.py          `tyler eval`
regrade.py          `tyler grade`: verdicts made again
options.py          what can be asked of an evaluation
question_files.py   answers to a file of questions, ungraded
reports.py          numbers and tables of records: accuracy, pass@k, a majority vote
html_report.py      a page of records, and their numbers as JSON
comparison.py       two evaluations, problem by problem
budget_matching.py  a baseline made as long as Tyler
statistics.py       intervals and tests
"""
