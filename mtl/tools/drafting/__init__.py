"""From a table to a gin file: reads all rows, decides how each column is used, and says why.

table = lines.read_dialect(lines.find_files("train.csv"))
found = inspection.inspect_table(table)
plan = plans.make_plan(found, ["clicked", "minutes"], plans.Holdout(share=0.1))
print(gin_text.write_gin(plan, "train", "python -m launch.new ..."))

No module here imports TensorFlow, so that a table is looked at within a second or two.
"""
