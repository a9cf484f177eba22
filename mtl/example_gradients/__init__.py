"""Computes gradients of single examples from the graph: `uses` -> `gradient_forms` -> `ghost`.

The modules read the ops, so a network needs no code for it. If the ops do not tell the examples of
a variable apart, the variable takes one pass for each example.
"""
