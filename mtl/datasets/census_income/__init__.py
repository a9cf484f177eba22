"""UCI Census-Income (KDD): income and marital status of 299,285 people of the US census.

tfds.Tfds.name = "mtl.datasets.census_income.builder.CensusIncome"
tfds.Tfds.manual_dir = "data/census_income"
spec.Spec.labels = {"income": "string", "marital-status": "string"}
"""
