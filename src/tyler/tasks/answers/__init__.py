"""How an answer is read and compared. Nothing a model wrote is ever evaluated.

boxed.py            the last \\boxed of an answer, and the verdict without one
quantities.py       the one reader of a number, exactly, and of its unit, currency or percent sign
program.py          the program of a completion, with its helpers
latex.py            LaTeX brought to one spelling
relations.py        lists, intervals, sets and relations, part by part
expressions.py      the value of an expression of constants, to as many digits as are needed
mathematics.py      whether two mathematical answers are equal: all of the above, then algebra
symbolic.py         algebra, asked of a process that can be killed
symbolic_worker.py  that process
"""
