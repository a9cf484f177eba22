"""Tools that read a whole table, choose the use of each column and write a gin file with reasons.

table = lines.read_dialect(lines.find_files("TABLE", "train.csv"))
found = inspection.inspect_table(table)
plan = plans.make_plan(found, ["clicked", "minutes"], plans.Holdout(share=0.1))
print(gin_text.write_gin(plan, "train", "python -m launch.new ..."))

The modules here do not import TensorFlow, so a small table takes only a second or two.
"""
