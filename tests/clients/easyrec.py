"""EasyRec's multi-task models on new TensorFlow: its own commands train and evaluate them.

    git clone https://github.com/alibaba/EasyRec .clients/sources/EasyRec
    python -m tests.clients.easyrec --source .clients/sources/EasyRec

The program builds an environment if there is none, and copies the clone. In the copy a current
protoc compiles EasyRec's protos; its `scripts/gen_proto.sh` uses a protoc of 2017. Nothing else is
changed. The sample configs for Taobao, with smaller tables and fewer steps, are then trained and
evaluated on made-up rows in the layout of that data. The program fails if a command fails, or if a
model does not learn the clicks. A model takes one to two minutes of a core.
"""

import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

from tests.clients import environments

MODELS = ("mmoe", "ple", "esmm", "aitm", "dbmtl", "simple_multi_task")
# The packages that EasyRec imports; its requirements pin NumPy below 1.24 and name far more.
_PACKAGES = (
    "future",
    "grpcio-tools>=1.72,<1.77",
    "pandas",
    "psutil",
    "scikit-learn",
    "six",
    "tensorflow-probability",
)
_SETTINGS = {
    "feature_config.features[hash_bucket_size>1000].hash_bucket_size": 1000,
    "train_config.num_steps": 100,
    "train_config.save_checkpoints_steps": 100,
    "train_config.sync_replicas": False,
    "data_config.batch_size": 256,
}
_ROWS = {"train": 4096, "test": 1024}
# As its modules are run by `python -m`, with the layer imported before.
_RUN = """
import runpy, sys, mtl.compat
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def copy(source: str, folder: pathlib.Path, python: str) -> None:
    """Copy what is run of a clone, and write its protos."""
    libraries = shutil.ignore_patterns("*.so", "*.so.*", ".git")
    for name in ("easy_rec", "samples"):
        shutil.copytree(pathlib.Path(source) / name, folder / name, ignore=libraries)
    protos = sorted(path.relative_to(folder) for path in folder.glob("easy_rec/**/*.proto"))
    command = [python, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", *protos]
    subprocess.run(command, cwd=folder, check=True)


def write_rows(folder: pathlib.Path) -> None:
    """Write rows without a header where the sample configs look for them.

    Clicks depend on the age, and purchases on clicks and the price.
    """
    data = folder / "data" / "test" / "tb_data"
    data.mkdir(parents=True)
    for split, rows in _ROWS.items():
        draw = random.Random(split)
        with open(data / f"taobao_{split}_data", "w") as file:
            for _ in range(rows):
                ids = [draw.randrange(100) for _ in range(8)]
                codes = [draw.randrange(6) for _ in range(7)]
                tags = ["|".join(str(draw.randrange(50)) for _ in range(3)) for _ in range(2)]
                price = draw.randrange(50)
                click = int(codes[2] > 2) ^ (draw.random() < 0.1)
                buy = int(click and price < 20)
                file.write(",".join(map(str, [click, buy, *ids, *codes, *tags, price])) + "\n")


def run(python: str, folder: pathlib.Path, module: str, *arguments: str) -> None:
    """Run a module of EasyRec as a command; if it fails, exit with its error output."""
    command = [python, "-c", _RUN, module, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environments.environ(), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{command[3:]} ended with {done.returncode}:\n{done.stderr[-5000:]}")


def try_model(python: str, folder: pathlib.Path, name: str) -> dict[str, float]:
    """Train and evaluate a sample config, and return its metrics."""
    model_dir = f"experiments/{name}"
    config = f"samples/model_config/{name}_on_taobao.config"
    settings = {"model_dir": model_dir, **_SETTINGS}
    training = ("--pipeline_config_path", config, "--edit_config_json", json.dumps(settings))
    run(python, folder, "easy_rec.python.train_eval", *training)
    saved = ("--pipeline_config_path", f"{model_dir}/pipeline.config")
    run(python, folder, "easy_rec.python.eval", *saved)
    return json.loads((folder / model_dir / "eval_result.txt").read_text())


def main() -> None:
    """Try the models one by one."""
    parser = environments.make_parser(__doc__, "easyrec")
    parser.add_argument("--source", required=True, help="the clone")
    parser.add_argument("models", nargs="*", default=MODELS, help=f"some of {', '.join(MODELS)}")
    options = parser.parse_args()
    python = environments.build(options.env, "heads", _PACKAGES)
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        copy(options.source, folder, python)
        write_rows(folder)
        for name in options.models:
            metrics = try_model(python, folder, name)
            told = ", ".join(f"{key} {metrics[key]:.3f}" for key in sorted(metrics))
            print(f"{name}: {told}", flush=True)
            assert metrics["auc_ctr"] > 0.6, metrics


if __name__ == "__main__":
    sys.exit(main())
