"""Computes the gradients of single examples from the graph of a whole batch.

`uses` finds the ops that use a variable, and `ghost` computes gradients in the forms of
`gradient_forms`. These modules read the graph of a network, so the network needs no code for the
gradients of single examples. If the ops do not show which entries of their tensors belong to which
example, callers take a separate backward pass for each example.
"""
