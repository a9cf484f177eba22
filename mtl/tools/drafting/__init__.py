"""Tools that read a table, choose the use of each column, and write a gin file with reasons.

dialect = lines.read_dialect(lines.find_files("TABLE", "train.csv"))
table = inspection.inspect_table(dialect)
plan = plans.make_plan(table, ["clicked", "minutes"], plans.Holdout(share=0.1))
print(gin_text.write_gin(plan, "train", "python -m launch.new ..."))

The modules in this package do not import TensorFlow, so drafting for a small table takes only a
second or two.
"""
