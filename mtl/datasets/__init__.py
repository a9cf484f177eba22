"""Data sets to try methods on: builders for tensorflow-datasets, and sources that draw rows.

tfds.Tfds.name = "mtl.datasets.digits.builder.Digits"
pipeline.Pipeline.source = @funnel.Funnel()
"""
