"""Computes the gradients of single examples from the graph of a whole batch.

`uses` finds the ops that use a variable, and `ghost` computes gradients in the forms of
`gradient_forms`. The modules read the graph, so a network needs no further code. If the ops do not
show which entries of their tensors belong to which example, callers take a separate backward pass
for each example.
"""
