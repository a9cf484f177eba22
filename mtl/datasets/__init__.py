"""Data sets for experiments: builders for tensorflow-datasets, and sources of simulated rows.

tfds.Tfds.name = "mtl.datasets.digits.builder.Digits"
pipeline.Pipeline.source = @funnel.Funnel()
"""
