"""Notes on which TensorFlow all of upstream's tests passed, with `mtl/compat` as it was.

python -m tests.compat.upstream_passed     # after they passed; `make test-all` does it

If the note holds, `make test` runs a part of them; else it runs all.
"""

import hashlib
import json
import pathlib

import tensorflow as tf

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NOTE = pathlib.Path(__file__).with_suffix(".json")


def main() -> None:
    """Note what passed."""
    _NOTE.write_text(json.dumps(_describe(), indent=2) + "\n")


def holds() -> bool:
    """Return whether neither TensorFlow nor `mtl/compat` differs from what passed."""
    return json.loads(_NOTE.read_text()) == _describe()


def _describe() -> dict[str, str]:
    sources = sorted((_ROOT / "mtl" / "compat").glob("*.py"))
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    return {"tensorflow": tf.__version__, "mtl/compat": digest}


if __name__ == "__main__":
    main()
