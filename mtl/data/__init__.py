"""Sources of raw records, and the pipeline that turns them into batches.

pipeline.Pipeline.source = @tfds.Tfds()
pipeline.Pipeline.spec = @spec.Spec()
pipeline.Pipeline.batch_size = 64
"""
