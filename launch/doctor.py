"""Checks the installation, shows which features work, and explains how to fix problems.

python -m launch.doctor
# Exit code 0: ready. Exit code 2: a line marked "wrong" must be fixed; the next line says how.
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


@dataclasses.dataclass(frozen=True)  # Without kw_only, for older Pythons.
class Finding:
    """A line of the report.

    Attributes:
      name: the package or device that was checked.
      found: a version, devices or a problem, which is shown after the name.
      state: "ok", "note" (works in part) or "wrong" (does not work).
      fix: a command or advice, if the state is not "ok".
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
    # If TensorFlow is not installed, check Python for the newest supported version.
    supported = versions.pythons(_version("tensorflow")) or versions.PYTHONS["2.21"]
    if version in supported:
        return Finding(name="Python", found=found)
    fix = f"Use Python {', '.join(supported)}."
    return Finding(name="Python", found=found, state=WRONG, fix=fix)


def tensorflow() -> Finding:
    """Check that TensorFlow can be imported, and that its version is supported."""
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
        fix = "If the lines above are ok, report this with the version of TensorFlow."
        return Finding(name="Estimator", found=error, state=WRONG, fix=fix)
    is_in_tensorflow = versions.minor(_version("tensorflow")) == "2.15"
    source = "part of TensorFlow" if is_in_tensorflow else "restored by mtl.compat"
    return Finding(name="Estimator", found=f"tensorflow-estimator {version}, {source}")


def keras() -> Finding:
    """Check that tf.keras is Keras 2, which heads and canned estimators of tf.estimator need."""
    from mtl.compat import keras

    version = keras.in_use()
    if version.startswith("2."):
        return Finding(name="Keras", found=f"{version} as tf.keras")
    fix = f"Only heads and canned estimators of tf.estimator need Keras 2. {keras.how_to_get()}"
    return Finding(name="Keras", found=f"{version} as tf.keras", state=NOTE, fix=fix)


def datasets() -> Finding:
    """Check that tensorflow-datasets can be imported."""
    version = _version("tensorflow-datasets")
    if error := _import_error("tensorflow_datasets"):
        # Advise an older tensorflow-metadata: newer versions need protobuf 6.31, but pip installs
        # them beside an older protobuf.
        fix = "pip install tensorflow-datasets 'tensorflow-metadata>=1.17.3,<1.18'"
        return Finding(name="Datasets", found=error, state=WRONG, fix=fix)
    return Finding(name="Datasets", found=f"tensorflow-datasets {version}")


def launchers() -> Finding:
    """Check that all packages that commands import are installed."""
    if error := _import_error("launch.app") or _import_error("mtl.verbs"):
        fix = "Install the package in this error again: pip install --force-reinstall <name>"
        return Finding(name="Launchers", found=error, state=WRONG, fix=fix)
    return Finding(name="Launchers", found="all packages that they import are installed")


def packages() -> Finding:
    """Check that packages have the versions that other packages require."""
    conflicts = list(_find_conflicts())
    if not conflicts:
        return Finding(name="Packages", found="all have the versions that others require")
    fix = "pip install " + " ".join(f"'{requirement}'" for _, requirement in conflicts)
    found = "; ".join(reason for reason, _ in conflicts)
    return Finding(name="Packages", found=found, state=WRONG, fix=fix)


def cuda() -> Finding:
    """Check that TensorFlow finds a GPU if it was built for CUDA and there is a driver."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    # The kernel module of the driver provides this file, even if TensorFlow finds no GPU.
    driver = pathlib.Path("/proc/driver/nvidia/version").exists()
    if not build.get("is_cuda_build"):
        state, fix = (NOTE, "pip install 'tensorflow[and-cuda]'") if driver else (OK, "")
        found = "TensorFlow was built without CUDA"
        return Finding(name="CUDA", found=found, state=state, fix=fix)
    found = f"TensorFlow was built for CUDA {build['cuda_version']}, cuDNN {build['cudnn_version']}"
    if not driver:
        return Finding(name="CUDA", found=f"{found}; no NVIDIA driver here")
    if not tf.config.list_physical_devices("GPU"):
        fix = (
            "There is a driver, but TensorFlow finds no GPU: "
            f"pip install 'tensorflow[and-cuda]=={tf.__version__}' (the extra 'gpu'), and check "
            "CUDA_VISIBLE_DEVICES."
        )
        return Finding(name="CUDA", found=found, state=NOTE, fix=fix)
    return Finding(name="CUDA", found=found)


def devices() -> Finding:
    """Return the devices that TensorFlow finds."""
    import tensorflow as tf

    # Count the cores that this process may use, which may be fewer than the machine has.
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
    # Set the log level before the import of TensorFlow, which would print notices between the
    # lines.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print("mtl: the installation\n")
    findings = _print_findings([python(), tensorflow()])
    if _version("tensorflow"):
        findings += _print_findings([packages()])
    # All further checks need TensorFlow.
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
    """Print each finding as soon as it is known, and return all findings."""
    printed = []
    for finding in findings:
        print(finding, flush=True)
        printed.append(finding)
    return printed


def _print_supported(findings: list[Finding]) -> None:
    """Print which features of this project work with the installed packages."""
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
    print("\nFeatures\n")
    for name, value in rows.items():
        print(f"  {name:<40} {value}")


def _version(package: str) -> str:
    """Return the version of a package; '' if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _import_error(module: str) -> str:
    """Return a line with the error of a module's import; '' if the import succeeds."""
    try:
        importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # A broken installation may raise any error.
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _find_conflicts() -> Iterator[tuple[str, str]]:
    """Yield (problem, requirement) for each requirement of installed packages that is not met."""
    try:
        from packaging import requirements
    except ImportError:
        yield "packaging is not installed", "packaging"
        return
    for package in filter(_version, _CHECKED_PACKAGES):
        for line in importlib.metadata.requires(package) or []:
            requirement = requirements.Requirement(line)
            # Skip requirements of extras, of other systems and of other Pythons.
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            version = _version(requirement.name)
            # A missing package counts as version 0, which meets almost no requirement.
            if not requirement.specifier.contains(version or "0", prereleases=True):
                text = f"{requirement.name}{requirement.specifier}"
                yield f"{package} needs {text}, got {version or 'nothing'}", text


if __name__ == "__main__":
    sys.exit(main())
