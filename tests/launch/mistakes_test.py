"""Mistakes on the real command line: each gives one line and exit code 2, and leaves no files."""

import dataclasses
import gzip
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tensorflow as tf

from tests.launch import toy

pytestmark = pytest.mark.medium


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One row of the table.

    `gin` replaces text in toy.gin, `change` does something to the directory, `args` follow
    `launch.<verb>`; the error must contain each of `says`; `after` are the checkpoints of a run
    that found the mistake on its way.
    """

    name: str
    says: Sequence[str]
    gin: Sequence[tuple[str, str]] = ()
    change: Callable[[Any], Any] = lambda directory: None
    args: Sequence[str] = ("--gin_file", "toy.gin", "--model_dir", "run")
    verb: str = "train"
    after: Sequence[str] = ()


def param(name, binding, *says):
    """A mistake in a --gin_param."""
    args = ("--gin_file", "toy.gin", "--model_dir", "run", "--gin_param", binding)
    return Mistake(name, (f"--gin_param {binding!r}: ", *says), args=args)


def gin(name, old, new, *says, line=None):
    """A mistake in toy.gin, in the line that starts with `line`, `old` if not given."""
    return Mistake(name, (f"toy.gin line {toy.line_of(line or old)}: ", *says), gin=((old, new),))


def row(name, number, text, *says, split="train", after=()):
    """A bad line in a CSV file; line 1 is the header."""

    def change(directory):
        path = directory / "data" / f"{split}.csv"
        lines = path.read_text().splitlines()
        lines[number - 1] = text
        path.write_text("\n".join(lines) + "\n")

    says = (f"data/{split}.csv line {number}", *says)
    return Mistake(name, says, change=change, after=after)


def append(name, text, *says):
    """A mistake at the end of toy.gin."""
    number = len(toy.GIN.splitlines()) + 1
    return Mistake(name, (f"toy.gin line {number}: ", *says), gin=((toy.GIN, toy.GIN + text),))


def flags(name, args, *says, verb="train", change=lambda directory: None):
    """A mistake in flags."""
    return Mistake(name, says, args=args, verb=verb, change=change)


def cut(name):
    """Changes a file in data/ to its first half."""

    def change(directory):
        path = directory / "data" / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 20])

    return change


def unlabelled(split, *columns):
    """Empties columns of a CSV file."""

    def change(directory):
        path = directory / "data" / f"{split}.csv"
        header, *rows = (line.split(",") for line in path.read_text().splitlines())
        rows = [["" if i in columns else cell for i, cell in enumerate(row)] for row in rows]
        path.write_text("\n".join(",".join(cells) for cells in [header, *rows]) + "\n")

    return change


def zipped(directory):
    path = directory / "data" / "train.csv.gz"
    path.write_bytes(gzip.compress((directory / "data" / "train.csv").read_bytes()))
    cut("train.csv.gz")(directory)


def records(directory):
    """The splits as TFRecord files."""
    for split, size in (("train", 200), ("test", 40)):
        names, *rows = (line.split(",") for line in toy.lines(split, size))
        with tf.io.TFRecordWriter(str(directory / "data" / f"{split}.tfrecord")) as writer:
            for values in rows:
                example = tf.train.Example()
                for name, value in zip(names, values, strict=True):
                    feature = example.features.feature[name]
                    if name == "age":
                        feature.float_list.value.append(float(value))
                    elif name == "job":
                        feature.bytes_list.value.append(value.encode())
                    else:
                        feature.int64_list.value.append(int(value))
                writer.write(example.SerializeToString(deterministic=True))


TFRECORD = (
    ("from mtl.data import csv", "from mtl.data import tfrecord"),
    (
        '{"train": "train.csv", "test": "test.csv"}',
        '{"train": "train.tfrecord", "test": "test.tfrecord"}',
    ),
    ("csv.Csv", "tfrecord.TfRecord"),
)
TFDS = (
    ("from mtl.data import csv", "from mtl.data import tfds"),
    ('csv.Csv.files = {"train": "train.csv", "test": "test.csv"}', 'tfds.Tfds.name = "no_such"'),
    ("csv.Csv.data_dir", "tfds.Tfds.data_dir"),
    ("csv.Csv", "tfds.Tfds"),
)


def corrupt_record(directory):
    records(directory)
    path = directory / "data" / "train.tfrecord"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def truncated_records(directory):
    records(directory)
    cut("train.tfrecord")(directory)


def remote(directory):
    """A builder whose data cannot be fetched."""
    file("remote.py", UNREACHABLE)(directory)
    file("checksums.tsv", f"http://127.0.0.1:9/data.csv\t10\t{'0' * 64}\tdata.csv\n")(directory)


def file(path, text):
    """Writes a file."""
    return lambda directory: (directory / path).write_text(text)


UNREACHABLE = """
import tensorflow as tf
import tensorflow_datasets as tfds

class Remote(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"age": tf.float32})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        path = dl_manager.download("http://127.0.0.1:9/data.csv")
        return {"train": self._generate_examples(path)}

    def _generate_examples(self, path):
        yield 0, {"age": 1.0}
"""

EXPERIMENT = "from __gin__ import dynamic_registration\nfrom mtl import experiment\n"
ADAM = "optimizers.Adam.learning_rate = 0.01"
CLASSES = "level/heads.MultiClass.classes = 3"
MISTAKES = [
    # Flags.
    flags("unknown flag", ("--gin_fil", "toy.gin"), "unknown flag '--gin_fil'", "'--gin_file'?"),
    flags("a setting as a flag", ("--epochs", "3"), "unknown flag '--epochs'. It is a setting"),
    flags("stray argument", ("toy.gin",), "unexpected argument 'toy.gin'"),
    flags("flag without a value", ("--gin_file",), "gin_file"),
    flags("no flags", (), "--gin_file or --model_dir must be set"),
    flags("no such gin file", ("--gin_file", "toi.gin"), "'toi.gin'", "Did you mean 'toy.gin'?"),
    flags("gin file is a folder", ("--gin_file", "data"), "no gin file 'data'. It is a folder."),
    flags(
        "binary gin file",
        ("--gin_file", "bad.gin"),
        "'bad.gin' must be text in UTF-8",
        change=lambda directory: (directory / "bad.gin").write_bytes(b"\xff\xfe\x00x"),
    ),
    flags(
        "gin file without an experiment",
        ("--gin_file", "empty.gin"),
        "--gin_file must describe an experiment, got ['empty.gin']",
        change=file("empty.gin", "# nothing\n"),
    ),
    flags("model_dir without a run", ("--model_dir", "data"), "--model_dir must hold", "'data'"),
    flags(
        "model_dir without a run, evaluate",
        ("--model_dir", "nowhere"),
        "--model_dir must hold",
        verb="evaluate",
    ),
    flags("misspelt dry run", ("--gin_file", "toy.gin", "--dry-run"), "dry-run", "dry_run"),
    flags(
        "dry run that is neither",
        ("--gin_file", "toy.gin", "--dry_run=maybe"),
        "flag --dry_run=maybe: ",
    ),
    flags(
        "ONNX over a file of the run",
        ("--gin_file", "toy.gin", "--model_dir", "run", "--onnx", "run/statistics.json"),
        "--onnx must end in .onnx, got 'run/statistics.json'.",
        verb="export",
    ),
    flags(
        "TensorFlow Lite into a file of another kind",
        ("--gin_file", "toy.gin", "--model_dir", "run", "--tflite", "model.bin"),
        "--tflite must end in .tflite, got 'model.bin'.",
        verb="export",
    ),
    flags(
        "weights that TensorFlow Lite does not know",
        ("--gin_file", "toy.gin", "--model_dir", "run", "--tflite_weights", "spars"),
        "--tflite_weights must be one of",
        "'sparse'",
        verb="export",
    ),
    flags(
        "weights of no file of TensorFlow Lite",
        ("--gin_file", "toy.gin", "--model_dir", "run", "--tflite_weights", "sparse"),
        "--tflite_weights must come with --tflite, got 'sparse'.",
        verb="export",
    ),
    flags(
        "a comparison that writes nothing, and a file",
        ("--gin_file", "toy.gin", "--model_dir", "run", "--compare", "--tflite", "x.tflite"),
        "--tflite must be left out, as --compare writes nothing, got 'x.tflite'.",
        verb="export",
    ),
    flags(
        "ONNX among files of the run",
        ("--gin_file", "toy.gin", "--model_dir", "run", "--onnx", "run/best/toy.onnx"),
        "--onnx must not be a file of the run itself, got 'run/best/toy.onnx'",
        verb="export",
    ),
    flags(
        "model_dir without a checkpoint",
        ("--gin_file", "toy.gin", "--model_dir", "run"),
        "--checkpoint must be 'latest'",
        verb="predict",
    ),
    flags(
        "model_dir cannot be made",
        ("--gin_file", "toy.gin", "--model_dir", "toy.gin/run"),
        "--model_dir must be a folder that can be written, got 'toy.gin/run'",
    ),
    flags(
        "model_dir is a file",
        ("--gin_file", "toy.gin", "--model_dir", "toy.gin"),
        "--model_dir must be a folder that can be written, got 'toy.gin'",
    ),
    # The grammar of gin.
    gin("syntax", CLASSES, "level/heads.MultiClass.classes 3", "expected ':' or '='", line=CLASSES),
    gin(
        "unquoted text",
        '"rich/auc"',
        "rich/auc",
        "'rich' must be a value",
        "quotes",
        line="checkpoints.Best.metric",
    ),
    gin(
        "open bracket",
        '["age"]',
        '["age"',
        "Expected ',' or ']'",
        line="features.Categorical.names",
    ),
    Mistake(
        "open quote",
        ("toy.gin line ", "quote", "not closed"),
        gin=((toy.GIN, toy.GIN + 'data.x = """ab\n'),),
    ),
    append("bound twice", CLASSES + "\n", f"bound in line {toy.line_of(CLASSES)} already"),
    Mistake(
        "include takes a binding back",
        (
            f"toy.gin line {len(toy.GIN.splitlines()) + 1}: ",
            "late.gin line 3 overrides experiment.Run.train_steps",
            "Put the include before it",
        ),
        gin=((toy.GIN, toy.GIN + 'include "late.gin"\n'),),
        change=file(
            "late.gin",
            EXPERIMENT + "experiment.Run.train_steps = 3\n",
        ),
    ),
    gin(
        "missing include",
        "gin_configs/defaults.gin",
        "gin_configs/default.gin",
        "'gin_configs/default.gin'",
        "Did you mean 'defaults.gin'?",
        line="include",
    ),
    append("include of itself", 'include "toy.gin"\n', "'toy.gin' includes itself"),
    Mistake(
        "mistake in an include",
        ("more.gin line 3: ", "no parameter 'train_step'", "Did you mean 'train_steps'?"),
        gin=((toy.GIN, toy.GIN + 'include "more.gin"\n'),),
        change=file(
            "more.gin",
            EXPERIMENT + "experiment.Run.train_step = 3\n",
        ),
    ),
    # Names in gin.
    gin(
        "parameter",
        CLASSES,
        "level/heads.MultiClass.num_clases = 3",
        "heads.MultiClass has no parameter 'num_clases'",
        "'classes'",
        "It has: ",
    ),
    gin(
        "class",
        CLASSES,
        "level/heads.MultiClas.classes = 3",
        "'heads' has no class 'MultiClas'",
        "Did you mean 'heads.MultiClass'?",
    ),
    gin(
        "referenced class",
        "@optimizers.Adam()",
        "@optimizers.Adamm()",
        "no class 'Adamm'",
        "Did you mean 'optimizers.Adam'?",
        line="update.Update.optimizer",
    ),
    gin(
        "class without its module",
        ADAM,
        "Adam.learning_rate = 0.01",
        "'Adam' is not imported",
        "Did you mean 'optimizers.Adam'?",
    ),
    gin(
        "module",
        "from mtl import heads",
        "from mtl import haeds",
        "no module 'mtl.haeds'",
        "Did you mean 'heads'?",
    ),
    gin(
        "class imported",
        "from mtl import heads",
        "from mtl.heads import Binary",
        "is a class",
        "from mtl import heads",
    ),
    gin(
        "module that is not imported",
        "from mtl import heads\n",
        "from mtl import networks\n",
        "'heads",
        line="model.MultiTaskModel.heads",
    ),
    gin(
        "no dynamic registration",
        "from __gin__ import dynamic_registration",
        "",
        "must start with 'from __gin__ import",
        line="csv.Csv.files",
    ),
    gin(
        "macro",
        "%data_dir",
        "%data_dri",
        "%data_dri is not defined",
        "Did you mean 'data_dir'?",
        line="csv.Csv.data_dir",
    ),
    append(
        "unused macro",
        "data_dri = 3\n",
        "no binding uses the macro 'data_dri'",
        "Did you mean 'data_dir'?",
    ),
    gin(
        "scope",
        CLASSES,
        "levle/heads.MultiClass.classes = 3",
        "levle/heads.MultiClass.classes is not used",
        "Did you mean 'level'?",
    ),
    append(
        "class that nothing builds",
        "optimizers.SGD.learning_rate = 1.0\n",
        "optimizers.SGD.learning_rate is not used by this run",
        "nothing builds @optimizers.SGD()",
    ),
    append(
        "binding that inner scopes override",
        'heads.Binary.name = "x"\n',
        "heads.Binary.name is not used",
        "rich",
    ),
    gin(
        "class that is not built",
        "@optimizers.Adam()",
        "@optimizers.Adam",
        "must be built, as in '@optimizers.Adam()'",
        line="update.Update.optimizer",
    ),
    gin(
        "missing setting",
        CLASSES,
        "",
        "@level/heads.MultiClass() needs a binding of level/heads.MultiClass.classes",
        line="model.MultiTaskModel.heads",
    ),
    # Settings.
    gin(
        "setting out of range",
        "batch_size = 16",
        "batch_size = 0",
        "Pipeline.batch_size must be above 0, got 0",
        line="pipeline.Pipeline.batch_size",
    ),
    *(
        Mistake(
            f"{setting} beyond all memory",
            (f"Pipeline.{setting} must fit into memory, got {value}. ", "and this process may use"),
            gin=(
                (
                    "Pipeline.batch_size = 16",
                    f"Pipeline.{setting} = {value}\npipeline.Pipeline.cache = False",
                ),
            ),
        )
        for setting, value in (("batch_size", 10**10), ("shuffle_buffer", 10**12))
    ),
    gin(
        "setting of the wrong kind",
        "train_steps = 20",
        'train_steps = "20"',
        "Run.train_steps must be a whole number, got '20'",
        line="experiment.Run.train_steps",
    ),
    gin(
        "setting in a scope",
        CLASSES,
        "level/heads.MultiClass.classes = 1",
        "MultiClass.classes of task 'level' must",
        "got 1",
    ),
    gin(
        "unknown type",
        '"job": "string"',
        '"job": "strnig"',
        "Spec field 'job'.dtype must be one of",
        "Did you mean 'string'?",
        line="spec.Spec.features",
    ),
    Mistake(
        "metric of best",
        ("Best.metric must be one of", "'rich/ac'", "Did you mean 'rich/auc'?"),
        gin=(("rich/auc", "rich/ac"),),
    ),
    # --gin_param.
    param("param without a value", "Run.train_steps", "expected ':' or '='"),
    param("param with a bad value", "Run.train_steps = five", "'five' must be a value"),
    param(
        "param of an unknown class",
        "Rnu.train_steps = 5",
        "'Rnu' is not imported",
        "Did you mean 'experiment.Run'?",
    ),
    param(
        "param with an unknown setting",
        "Run.trainsteps = 5",
        "experiment.Run has no parameter 'trainsteps'",
        "Did you mean 'train_steps'?",
    ),
    param("param that is no binding", "import mtl.heads", "must be one binding"),
    param(
        "param of an unused macro",
        "dta_dir = 'x'",
        "no binding uses the macro 'dta_dir'",
        "Did you mean 'data_dir'?",
    ),
    param(
        "param in an unknown scope",
        "levle/MultiClass.classes = 4",
        "levle/heads.MultiClass.classes is not used",
        "Did you mean 'level'?",
    ),
    param(
        "setting in a param", "Run.train_steps = -1", "Run.train_steps must be at least 1, got -1"
    ),
    # Data.
    Mistake(
        "missing file",
        ("Csv.files['train']", "data/trian.csv", "Did you mean 'train.csv'?"),
        gin=(('"train.csv"', '"trian.csv"'),),
    ),
    Mistake(
        "missing folder",
        ("Csv.files['train']", "There is no folder 'nowhere'"),
        gin=(('data_dir = "data"', 'data_dir = "nowhere"'),),
    ),
    Mistake(
        "unknown split",
        ("'tests'", "Did you mean 'test'?"),
        gin=((toy.GIN, toy.GIN + 'pipeline.Pipeline.eval_split = "tests"\n'),),
    ),
    Mistake(
        "header lacks a column",
        ("'job'", "Did you mean 'jobb'?"),
        change=lambda directory: [
            (directory / "data" / f"{split}.csv").write_text(
                "age,jobb,rich,level\n" + "40,cook,0,1\n" * 9
            )
            for split in ("train", "test")
        ],
    ),
    Mistake(
        "headers differ",
        ("data/test.csv line 1 must be the header", "got 'age,rich,job,level'"),
        change=file("data/test.csv", "age,rich,job,level\n40,1,cook,1\n"),
    ),
    row("too few columns", 30, "40,cook,1", "must have 4 columns, got 3"),
    row("too many columns", 31, "40,cook,1,2,5", "must have 4 columns, got 5"),
    row("no number", 32, "old,cook,1,2", "field 'age' must be float32, got 'old'"),
    row(
        "no number in evaluation",
        7,
        "old,cook,1,2",
        "field 'age' must be float32, got 'old'",
        split="test",
        after=["model.ckpt-10"],
    ),
    row("no integer", 33, "40,cook,1.5,2", "field 'rich' must be int64, got '1.5'"),
    row("absent value", 34, ",cook,1,2", "field 'age' must be present, as it has no default"),
    row("label out of range", 35, "40,cook,1,3", "label 'level' must be in [0, 3), got 3"),
    Mistake(
        "outcome outside of a space",
        ("data/train.csv line ", "label 'rich' must hold no outcome unless label 'level' is 0"),
        gin=(
            (
                'rich/heads.Binary.name = "rich"\n',
                'rich/heads.Binary.name = "rich"\nrich/heads.Binary.within = {"level": [0]}\n',
            ),
        ),
    ),
    row("binary label out of range", 36, "40,cook,2,1", "label 'rich' must", "got 2"),
    row(
        "label out of range in evaluation",
        9,
        "40,cook,1,7",
        "label 'level' must be in [0, 3), got 7",
        split="test",
        after=["model.ckpt-10"],
    ),
    row("open quote in data", 37, '40,"cook,1,2', "quotes"),
    Mistake(
        "empty training split",
        ("split 'train' must hold a record, got 0",),
        change=file("data/train.csv", toy.HEADER + "\n"),
    ),
    Mistake(
        "empty evaluation split",
        ("split 'test' must hold a record, got 0",),
        change=file("data/test.csv", toy.HEADER + "\n"),
    ),
    Mistake(
        "empty file",
        ("data/train.csv line 1 must name the columns",),
        change=file("data/train.csv", ""),
    ),
    Mistake(
        "column of the wrong type",
        ("'job'", "string"),
        gin=(('names = ["age"]', 'names = ["job"]'),),
    ),
    Mistake(
        "column of an unknown field",
        ("'agee'", "Did you mean 'age'?"),
        gin=(('names = ["age"]', 'names = ["agee"]'),),
    ),
    Mistake(
        "label that is not read",
        ("head 'rich': its label field must be one of rihc, level", "Did you mean 'rihc'?"),
        gin=(('"rich": "int64"', '"rihc": "int64"'),),
        change=lambda directory: [
            (directory / "data" / f"{split}.csv").write_text(
                "age,job,rihc,level\n" + "40,cook,0,1\n" * 9
            )
            for split in ("train", "test")
        ],
    ),
    *(
        flags(
            f"dry run, {name}",
            ("--gin_file", "toy.gin", "--model_dir", model_dir, "--dry_run"),
            *says,
            change=change,
        )
        for name, model_dir, says, change in (
            (
                "label out of range in evaluation",
                "run",
                ("data/test.csv line 9", "label 'level' must be in [0, 3), got 7"),
                row("", 9, "40,cook,1,7", split="test").change,
            ),
            (
                "data that is not there",
                "run",
                ("Csv.files['train'] must", "There is no folder 'data'"),
                lambda directory: (directory / "data").rename(directory / "gone"),
            ),
            (
                "model_dir within a file",
                "toy.gin/run",
                (
                    "--model_dir must be a folder that can be written, got 'toy.gin/run'",
                    "Not a directory: ",
                ),
                lambda directory: None,
            ),
        )
    ),
    *(
        flags(f"parts, {name}", args, *says, verb="parts", change=file("broken.py", "1 / 0\n"))
        for name, args, *says in (
            ("absent package", ("--package", "ouurs"), "there is no module 'ouurs'"),
            (
                "broken package",
                ("--package", "broken"),
                "importing 'broken' failed (",
                "broken.py line 1): ZeroDivisionError: division by zero.",
            ),
            ("path of a package", ("--package", "./ours"), "--package must be a name that Python"),
            ("package without parts", ("--package", "json"), "--package must hold a public datacl"),
            ("misspelt name", ("MMoEE",), "got 'MMoEE'. Did you mean 'MMoE'?"),
            ("misspelt flag", ("--pakage", "x"), "unknown flag '--pakage'. Did you mean '--packa"),
            (
                "misspelt page",
                ("--markdown", "nework"),
                "--markdown must be one of auxiliary, ",
                "got 'nework'. Did you mean 'networks'?",
            ),
            (
                "page and name",
                ("--markdown", "heads", "Binary"),
                "--markdown must come without names and --package, got 'heads'",
            ),
            (
                "package and run",
                ("--gin_file", "toy.gin", "--package", "json"),
                "--package must come without --gin_file and --model_dir, got 'json'",
            ),
            ("folder as a file", ("--gin_file", "data"), "no gin file 'data'. It is a folder."),
            (
                "param without a file",
                ("--gin_param", "Run.seed = 2"),
                "--gin_param must come with --gin_file or --model_dir",
            ),
            (
                "unknown setting of a run",
                ("--gin_file", "toy.gin", "--gin_param", "Run.sed = 2"),
                "experiment.Run has no parameter 'sed'. Did you mean 'seed'?",
            ),
            (
                "part that a run lacks",
                ("--gin_file", "toy.gin", "Addam"),
                "The name must belong to a part of this run, got 'Addam'. Did you mean 'Adam'?",
            ),
            ("folder without a run", ("--model_dir", "run"), "--model_dir must hold the config"),
        )
    ),
    *(
        flags(f"completion, {name}", args, *says, verb="completion")
        for name, args, *says in (
            ("no shell", (), "The shell must be bash or zsh, got None"),
            ("unknown shell", ("fish",), "The shell must be one of bash, zsh, got 'fish'"),
            ("flag", ("--shell", "bash"), "The shell must be bash or zsh, got '--shell bash'"),
        )
    ),
    *(
        flags(f"table, {name}", args, *says, verb="new", change=file("table.csv", text))
        for name, args, text, *says in (
            (
                "misspelt flag",
                ("--dta", "table.csv", "--task", "b"),
                "a,b\n1,0\n",
                "unknown flag '--dta'. Did you mean '--data'?",
            ),
            (
                "glob without quotes",
                ("--data", "table.csv", "data/test.csv", "--task", "b"),
                "a,b\n1,0\n",
                "unexpected argument 'data/test.csv'",
                "a glob needs quotes",
            ),
            ("folder", ("--data", "data", "--task", "b"), "", "--data must name files, got 'data'"),
            (
                "misspelt file",
                ("--data", "tabel.csv", "--task", "b"),
                "",
                "--data must name existing files, got 'tabel.csv'. Did you mean 'table.csv'?",
            ),
            ("empty", ("--data", "table.csv", "--task", "b"), "", "table.csv must hold a row, got"),
            (
                "not text",
                ("--data", "table.csv", "--task", "b"),
                "\x1f\x8b\x08",
                "table.csv must be text in UTF-8",
            ),
            (
                "share that is no number",
                ("--data", "table.csv", "--task", "b", "--holdout", "tenth"),
                "a,b\n1,0\n",
                "--holdout: invalid float value: 'tenth'",
            ),
            (
                "gin file within a file",
                ("--data", "data/train.csv", "--task", "rich", "--out", "table.csv/x.gin"),
                "",
                "--out must be a file that can be written, got 'table.csv/x.gin'. ",
            ),
            (
                "gin file that is there",
                ("--data", "data/train.csv", "--task", "rich", "--out", "toy.gin"),
                "",
                "--out must be a new file, got 'toy.gin'. Or set --force.",
            ),
        )
    ),
    flags(
        "table without the task",
        ("--data", "data/train.csv", "--task", "ritch"),
        "--task must be one of age, job, rich, level, got 'ritch'. Did you mean 'rich'?",
        verb="new",
    ),
    flags(
        "table with a ragged line",
        ("--data", "data/train.csv", "--task", "rich"),
        "data/train.csv line 3 must have 4 columns, got '2: 5,cook'",
        verb="new",
        change=row("", 3, "5,cook").change,
    ),
    flags("table left out", ("--task", "rich"), "--data. See --help.", verb="new"),
    Mistake(
        "cut-off gzip file",
        ("data/train.csv.gz must be a whole gzip file",),
        gin=(('"train.csv"', '"train.csv.gz"'),),
        change=zipped,
    ),
    Mistake(
        "corrupted TFRecord",
        ("data/train.tfrecord record ", "cannot be read"),
        gin=TFRECORD,
        change=corrupt_record,
    ),
    Mistake(
        "truncated TFRecord",
        ("data/train.tfrecord record ", "cannot be read"),
        gin=TFRECORD,
        change=truncated_records,
    ),
    Mistake(
        "no TFRecord",
        ("data/train.tfrecord record 0", "cannot be read"),
        gin=TFRECORD,
        change=lambda directory: [
            records(directory),
            file("data/train.tfrecord", "age,job\n1,cook\n")(directory),
        ],
    ),
    Mistake(
        "TFRecord of another type",
        ("data/train.tfrecord record 0", "field 'age' must be a int64_list"),
        gin=(*TFRECORD, ('"age": "float32"', '"age": "int64"')),
        change=records,
    ),
    Mistake(
        "TFRecord without a field",
        ("data/train.tfrecord record 0", "field 'wage' must be present"),
        gin=(*TFRECORD, ('"age"', '"wage"')),
        change=records,
    ),
    Mistake(
        "unknown tensorflow-datasets name",
        ("Tfds.name must name a dataset", "'mnits'", "Did you mean 'mnist'?"),
        gin=(*TFDS, ("no_such", "mnits")),
    ),
    Mistake(
        "unknown builder class",
        ("Tfds.name must name a dataset", "or a builder class", "'remote.Rem'"),
        gin=(*TFDS, ("no_such", "remote.Rem")),
        change=file("remote.py", UNREACHABLE),
    ),
    Mistake(
        "dataset that cannot be fetched",
        (
            "'remote.Remote'",
            "http://127.0.0.1:9/data.csv cannot be reached",
            "prepare it elsewhere",
        ),
        gin=(*TFDS, ("no_such", "remote.Remote")),
        change=remote,
    ),
    Mistake(
        "module that exits",
        (
            f"toy.gin line {toy.line_of('from mtl import experiment')}: importing 'bye' ended",
            "by sys.exit(0)",
        ),
        gin=(("from mtl import experiment\n", "import bye\nfrom mtl import experiment\n"),),
        change=file("bye.py", "import sys\n\nsys.exit(0)\n"),
    ),
    Mistake(
        "no label of a task",
        ("the labels of task 'rich', field 'rich' must be there in split 'train', got 'none",),
        change=unlabelled("train", 2),
    ),
    Mistake(
        "no label to evaluate",
        ("the labels of task 'rich', field 'rich' must be there in split 'test', got 'none",),
        change=unlabelled("test", 2, 3),
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
@pytest.mark.drawn(60)
def test_a_mistake_is_one_line_and_leaves_nothing(mistake, launch, tmp_path):
    toy.write(tmp_path)
    text = toy.GIN
    for old, new in mistake.gin:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "toy.gin").write_text(text)
    mistake.change(tmp_path)
    before = files(tmp_path)
    error = launch(mistake.verb, *mistake.args).error
    for part in mistake.says:
        assert part in error
    assert not re.search(r"Traceback|/site-packages/|In call to| {2}", error)
    assert files(tmp_path) == {**before, **left_behind(tmp_path, mistake.after)}


def files(directory):
    """{path: content} of all that lies in a directory."""
    paths = [path for path in directory.rglob("*") if "__pycache__" not in path.parts]
    return {path: path.is_file() and path.read_bytes() for path in paths}


def left_behind(directory, checkpoints):
    """Return the files of a run with steps; fail unless its last checkpoint can be read."""
    run = directory / "run"
    if not checkpoints:
        return {}
    assert tf.train.latest_checkpoint(run) == str(run / checkpoints[-1])
    assert tf.train.load_variable(str(run), "global_step") == int(checkpoints[-1].split("-")[1])
    return {run: False, **files(run)}


def test_the_table_is_as_wide_as_it_should_be():
    names = [mistake.name for mistake in MISTAKES]
    assert len(set(names)) == len(names) >= 45
