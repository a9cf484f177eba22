"""Explains an unknown flag, which may be a misspelt flag, or a setting of a gin file.

unknown_flags.explain("lr", ["gin_file", "gin_param"])     # "It is a setting of the gin file: ..."
unknown_flags.explain("gin_fiel", ["gin_file"])            # "Did you mean '--gin_file'?"
"""

from collections.abc import Collection

from mtl import checks

# {flag: names that other programs use for this flag}.
FLAGS = {
    "model_dir": ("dir", "folder", "logdir", "log_dir", "out_dir", "output_dir", "run", "workdir"),
    "gin_file": ("config", "config_file", "gin", "gin_config", "gin_files", "gin_configs"),
    "gin_param": ("gin_binding", "gin_bindings", "gin_params", "override", "param", "set"),
    "task": ("label", "labels", "target", "targets", "y"),
    "data": ("csv", "file", "input", "table"),
    "out": ("output",),
    "output": ("out", "o", "save_to"),
    "input": ("data", "file", "files"),
    "checkpoint": ("ckpt", "step"),
    "limit": ("max_rows", "num_rows", "samples"),
}
# {binding of a setting: names that other programs use for this setting}.
SETTINGS = {
    "Run.train_steps = 1000": (
        "epochs",
        "iterations",
        "max_steps",
        "num_epochs",
        "num_steps",
        "steps",
        "train_steps",
    ),
    "Pipeline.batch_size = 64": ("batch", "batch_size", "bs", "train_batch_size"),
    "Pipeline.eval_split = 'test'": ("eval_split", "split", "test", "validation"),
    "Run.seed = 2": ("random_seed", "random_state", "seed"),
    "Run.checkpoint_steps = 500": ("eval_steps", "save_steps", "checkpoint_steps"),
    "Adam.learning_rate = 0.001": ("learning_rate", "lr"),
    "Binary.threshold = 0.5": ("cutoff", "threshold"),
    "Binary.label = 'clicked'": ("label", "labels", "target", "targets"),
    "Best.patience = 5": ("early_stopping", "patience"),
    "MLP.dropout = 0.1": ("dropout",),
    "MLP.layers = [64, 32]": ("hidden", "hidden_units", "layers"),
    "Csv.files = {'train': 'a.csv', 'test': 'b.csv'}": ("data", "input", "train", "train_file"),
}


def explain(flag: str, known: Collection[str]) -> str:
    """Return a sentence that names the intended flag or setting, or points to --help.

    Args:
      flag: the unknown flag, with or without dashes.
      known: the flags of the command, without dashes.
    """
    name = flag.lstrip("-").replace("-", "_").lower()
    # The name is right, but its form is wrong, such as -gin_file or --gin-file.
    if name in known:
        return f"Did you mean '--{name}'?"
    for flag_name, others in FLAGS.items():
        if flag_name in known and name in others:
            return f"Did you mean '--{flag_name}'?"
    close = checks.closest(name, known)
    if close:
        return f"Did you mean '--{close}'?"
    for setting, others in SETTINGS.items():
        if "gin_param" in known and name in others:
            return f'It is a setting of the gin file: --gin_param "{setting}".'
    return "See --help."
