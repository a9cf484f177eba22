"""Says what is installed, what works here, and how to fix problems.

python -m launch.doctor
# Exit code 0: ready. Exit code 2: something must be fixed; the line below it says how.
"""

import argparse
import dataclasses
import importlib
import importlib.metadata
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator

from mtl import versions

OK, NOTE, WRONG = "ok", "note", "wrong"
_CHECKED_PACKAGES = (
    "tensorflow",
    "tf-keras",
    "tensorflow-datasets",
    "tensorflow-metadata",
    versions.DISTRIBUTION,
)


@dataclasses.dataclass(frozen=True)  # runs on Pythons too old for kw_only, to say so
class Finding:
    """One line of the report.

    Attributes:
        name: the package or device that was checked.
        found: the version or the devices, or the problem.
        state: ok, note (works in part), or wrong (does not work).
        fix: a command or advice, if the state is not ok.
    """

    name: str
    found: str
    state: str = OK
    fix: str = ""

    def __str__(self) -> str:
        line = f"  {self.name:<12} {self.state:<6} {self.found}"
        return f"{line}\n{'':<22}-> {self.fix}" if self.fix else line


def python() -> Finding:
    """Check that this project and the installed TensorFlow support this Python."""
    version = "{}.{}".format(*sys.version_info)
    found = f"{sys.version.split()[0]} at {sys.executable}"
    # Without TensorFlow, the Pythons of the newest known version are the answer.
    supported = versions.pythons(_version("tensorflow")) or versions.PYTHONS["2.21"]
    if version in supported:
        return Finding(name="Python", found=found)
    fix = f"Use Python {', '.join(supported)}."
    return Finding(name="Python", found=found, state=WRONG, fix=fix)


def tensorflow() -> Finding:
    """Return TensorFlow's version, and check that it can be imported."""
    version = _version("tensorflow")
    if not version:
        fix = f"pip install '{versions.REQUIREMENT}'"
        return Finding(name="TensorFlow", found="not installed", state=WRONG, fix=fix)
    if error := _import_error("tensorflow"):
        fix = "See 'Packages' below, or install TensorFlow again into a new environment."
        return Finding(name="TensorFlow", found=f"{version}: {error}", state=WRONG, fix=fix)
    if not versions.is_supported(version):
        fix = f"Known to work: {versions.described()}. pip install '{versions.REQUIREMENT}'"
        return Finding(name="TensorFlow", found=version, state=NOTE, fix=fix)
    return Finding(name="TensorFlow", found=version)


def estimator() -> Finding:
    """Check for tf.estimator, and say which package provides it."""
    version = _version("tensorflow-estimator")
    if not version:
        fix = f"pip install {versions.ESTIMATOR_REQUIREMENT}"
        return Finding(name="Estimator", found="not installed", state=WRONG, fix=fix)
    if error := _import_error("mtl.compat"):
        fix = "Once the lines above are ok, report this with the TensorFlow version."
        return Finding(name="Estimator", found=error, state=WRONG, fix=fix)
    own = versions.minor(_version("tensorflow")) == "2.15"
    source = "TensorFlow's own" if own else "brought back by mtl.compat"
    return Finding(name="Estimator", found=f"tensorflow-estimator {version}, {source}")


def keras() -> Finding:
    """Check the version of Keras behind tf.keras: heads and canned estimators need Keras 2."""
    from mtl.compat import keras

    version = keras.in_use()
    if version.startswith("2."):
        return Finding(name="Keras", found=f"{version} behind tf.keras")
    fix = f"Only tf.estimator's own heads and canned estimators need Keras 2. {keras.how_to_get()}"
    return Finding(name="Keras", found=f"{version} behind tf.keras", state=NOTE, fix=fix)


def datasets() -> Finding:
    """Check that tensorflow-datasets can be imported."""
    version = _version("tensorflow-datasets")
    if error := _import_error("tensorflow_datasets"):
        # Newer versions declare that an old protobuf is enough, but need 6.31 when imported.
        fix = "pip install tensorflow-datasets 'tensorflow-metadata>=1.17.3,<1.18'"
        return Finding(name="Datasets", found=error, state=WRONG, fix=fix)
    return Finding(name="Datasets", found=f"tensorflow-datasets {version}")


def launchers() -> Finding:
    """Check that every package that a launcher imports is installed."""
    if error := _import_error("launch.app") or _import_error("mtl.verbs"):
        fix = "Install the package that it names again: pip install --force-reinstall <name>"
        return Finding(name="Launchers", found=error, state=WRONG, fix=fix)
    return Finding(name="Launchers", found="what they import is there")


def packages() -> Finding:
    """Check that the packages have the versions that they require of each other."""
    conflicts = list(_find_conflicts())
    if not conflicts:
        return Finding(name="Packages", found="their requirements of each other are met")
    fix = "pip install " + " ".join(f"'{wanted}'" for _, wanted in conflicts)
    found = "; ".join(reason for reason, _ in conflicts)
    return Finding(name="Packages", found=found, state=WRONG, fix=fix)


def cuda() -> Finding:
    """Return TensorFlow's CUDA build and the driver, and check that they find a GPU together."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    # The kernel's module writes this file, so it shows a driver even if no library finds it.
    driver = pathlib.Path("/proc/driver/nvidia/version").exists()
    if not build.get("is_cuda_build"):
        state, fix = (NOTE, "pip install 'tensorflow[and-cuda]'") if driver else (OK, "")
        return Finding(name="CUDA", found="TensorFlow was built without", state=state, fix=fix)
    found = f"TensorFlow was built for CUDA {build['cuda_version']}, cuDNN {build['cudnn_version']}"
    if not driver:
        return Finding(name="CUDA", found=f"{found}; no NVIDIA driver here")
    if not tf.config.list_physical_devices("GPU"):
        fix = (
            "The driver is there, but TensorFlow finds no GPU: "
            f"pip install 'tensorflow[and-cuda]=={tf.__version__}' (the extra 'gpu'), and check "
            "CUDA_VISIBLE_DEVICES."
        )
        return Finding(name="CUDA", found=found, state=NOTE, fix=fix)
    return Finding(name="CUDA", found=found)


def devices() -> Finding:
    """Return the devices that TensorFlow finds."""
    import tensorflow as tf

    # Those that this process may use, not all of the machine.
    names = [f"{len(os.sched_getaffinity(0))} CPU cores"]
    for device in tf.config.list_physical_devices():
        if device.device_type != "CPU":
            details = tf.config.experimental.get_device_details(device)
            names.append(f"{device.name.removeprefix('/physical_device:')} {details}")
    return Finding(name="Devices", found=", ".join(names))


def main() -> int:
    """Print the report, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m launch.doctor", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.parse_args()
    # Before the import of TensorFlow, whose notices would stand between the lines.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print("mtl: what is installed here\n")
    findings = _print_findings([python(), tensorflow()])
    if _version("tensorflow"):
        findings += _print_findings([packages()])
    # Without TensorFlow nothing else can be checked.
    if findings[1].state != WRONG:
        findings += _print_findings([estimator()])
        if findings[-1].state != WRONG:
            checks = (launchers, keras, datasets, cuda, devices)
            findings += _print_findings(check() for check in checks)
            _print_supported(findings)
    wrong = [finding.name for finding in findings if finding.state == WRONG]
    print(f"\nTo fix: {', '.join(wrong)}." if wrong else "\nReady.")
    return 2 if wrong else 0


def _print_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Print each finding as soon as it is known, and return all of them."""
    printed = []
    for finding in findings:
        print(finding, flush=True)
        printed.append(finding)
    return printed


def _print_supported(findings: list[Finding]) -> None:
    """Print the features of this project that work with the packages found."""
    import tensorflow as tf

    from mtl.compat import keras

    gpus = len(tf.config.list_physical_devices("GPU"))
    datasets_work = all(f.state != WRONG for f in findings if f.name == "Datasets")
    rows = {
        "train, evaluate, predict, export": "yes",
        "tensorflow-datasets sources": "yes" if datasets_work else "no",
        "tf.estimator heads, canned estimators": (
            "yes" if keras.in_use().startswith("2.") else "no (see Keras)"
        ),
        "GPUs": f"{gpus} found" + (", MirroredStrategy uses all" if gpus > 1 else ""),
        "several processes, parameter servers": "yes",
    }
    print("\nWhat works here\n")
    for name, value in rows.items():
        print(f"  {name:<40} {value}")


def _version(package: str) -> str:
    """Return the installed version, or ''."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _import_error(module: str) -> str:
    """Return one line that says why `module` cannot be imported, or ''."""
    try:
        importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a broken installation raises is what we report
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _find_conflicts() -> Iterator[tuple[str, str]]:
    """Yield (problem, package to install) for every unmet requirement of the checked packages."""
    try:
        from packaging import requirements
    except ImportError:
        yield "packaging is not installed", "packaging"
        return
    for package in filter(_version, _CHECKED_PACKAGES):
        for line in importlib.metadata.requires(package) or []:
            wanted = requirements.Requirement(line)
            # A requirement of an extra, or of another system or Python.
            if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
                continue
            version = _version(wanted.name)
            # "0" fits hardly any requirement, so that a missing package is a conflict.
            if not wanted.specifier.contains(version or "0", prereleases=True):
                found = version or "nothing"
                yield (
                    f"{package} needs {wanted.name}{wanted.specifier}, got {found}",
                    (f"{wanted.name}{wanted.specifier}"),
                )


if __name__ == "__main__":
    sys.exit(main())
