"""UCI Adult: income and marital status of 48,842 people of the US census of 1994.

tfds.Tfds.name = "mtl.datasets.adult.builder.Adult"
tfds.Tfds.manual_dir = "data/adult"             # without internet access
spec.Spec.labels = {"income": "string", "marital-status": "string"}
"""
