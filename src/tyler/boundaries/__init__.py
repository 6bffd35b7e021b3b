"""B(q, y): where in a text each operator belongs. One rule, used on traces in training and on text while it is decoded.

rules.py        what a boundary rule proposes, by name
patterns.py     what the scanner looks for
scanner.py      reads a text character by character and says where boundaries are
placement.py    boundaries as positions of tokens: of a whole text, and as one grows
detokenizer.py  text from tokens, as they come
"""
