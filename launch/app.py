"""Shared code of all launchers: flags, help, quiet logs, mistakes as one line with exit code 2."""

from __future__ import annotations

import contextlib
import functools
import logging
import resource
import sys
import textwrap
from collections.abc import Callable
from typing import cast

import tqdm
from absl import app, flags
from absl import logging as absl_logging

from launch.processes import endings, here, json_log, unknown_flags
from mtl import checks, deferred
from mtl.configs import config, trust
from mtl.files import storage

with deferred.imports():
    from mtl import experiment

GIN_FILE = flags.DEFINE_multi_string(
    "gin_file", [], "A gin file that describes the run. Repeatable; later files win."
)
GIN_PARAM = flags.DEFINE_multi_string(
    "gin_param", [], "A gin binding, such as 'Run.seed = 2', applied after all files. Repeatable."
)
MODEL_DIR = flags.DEFINE_string(
    "model_dir",
    None,
    "The folder of checkpoints, events, exports and the run's config.gin. With a config.gin there, "
    "you may leave out --gin_file. (default: runs/<name of the last gin file>)",
)

TRUSTED = flags.DEFINE_list(
    "trusted_packages",
    None,
    "Packages, with commas between them. With this flag, gin files, their includes and the "
    "config.gin of a run may only build parts of mtl and of these packages. Without it they may "
    "run any code: see docs/security.md.",
)

TRUSTED_SETTINGS = flags.DEFINE_list(
    "trusted_settings",
    [],
    "Settings, with commas between them, such as Distillation.teacher, that --trusted_packages "
    "would refuse as they may run code, write or connect. docs/security.md lists them.",
)

JSON_LOG = flags.DEFINE_string(
    "json_log",
    None,
    "A file to which every line is also appended as JSON: time, level, message and the numbers "
    "in it, such as the losses of a step.",
)

# The smallest limit in bytes: a small training on two cores peaks at 3.08e9 (VmPeak), and a limit
# of 2.56e9 aborts it.
_ADDRESSES = 3 * 10**9
_INDENT = " " * 6
_OF_ONE_RUN = (GIN_FILE, GIN_PARAM, MODEL_DIR)


def run(main: Callable[[], None]) -> None:
    """Run a launcher's `main` once its flags are parsed."""
    _be_quiet()
    # `endings.run` lies inside: absl would show an error of `main` as a traceback.
    app.run(lambda _: endings.run(lambda: _run_logged(main)), flags_parser=_parse_flags)


def run_on_folders(main: Callable[[list[str]], None]) -> None:
    """Run a launcher whose `main` gets the positional arguments: the folders of runs.

    It has the shared flags, without --gin_file, --gin_param and --model_dir.
    """
    _be_quiet()
    flags.FLAGS.set_gnu_getopt(True)  # Flags may stand behind folders.
    parse = functools.partial(_parse_flags, takes_folders=True)
    app.run(
        lambda argv: endings.run(lambda: _run_logged(lambda: main(argv[1:]))), flags_parser=parse
    )


def run_on_files(main: Callable[[list[str]], None]) -> None:
    """Run a launcher whose `main` gets the positional arguments, which may be files without a run.

    It has all shared flags.
    """
    _be_quiet()
    flags.FLAGS.set_gnu_getopt(True)  # Flags may stand behind files.
    parse = functools.partial(_parse_flags, takes_files=True)
    app.run(
        lambda argv: endings.run(lambda: _run_logged(lambda: main(argv[1:]))), flags_parser=parse
    )


def load() -> tuple[experiment.Experiment, str]:
    """Return the experiment and the model_dir that the flags describe."""
    # Before the first import of TensorFlow.
    _require_addresses()
    files, model_dir = GIN_FILE.value, MODEL_DIR.value
    if not files and not model_dir:
        raise checks.UserError("--gin_file or --model_dir must be given. See --help.")
    model_dir = model_dir or config.name_model_dir(files)
    storage.require_plain("--model_dir", model_dir)
    # A gin file on the command line takes the place of the saved configuration.
    files = files or [config.saved_in(model_dir)]
    return config.load(files, GIN_PARAM.value, trusted(), model_dir), model_dir


def _require_addresses() -> None:
    """Fail if `ulimit -v` is too small for TensorFlow, which would abort in C++."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    fits = most == resource.RLIM_INFINITY or most >= _ADDRESSES
    fix = "It bounds addresses, not memory: bound memory by a control group, or raise it."
    rule = f"be unlimited, or at least {_ADDRESSES // 1024}, which TensorFlow reserves at its start"
    checks.require(fits, "ulimit -v", rule, most // 1024, fix)


def trusted() -> trust.Trusted:
    """Return the packages and settings that --trusted_packages and --trusted_settings allow."""
    return trust.Trusted(TRUSTED.value, TRUSTED_SETTINGS.value)


def define_checkpoint() -> flags.FlagHolder[str]:
    """Define --checkpoint, for the verbs that read a checkpoint."""
    return flags.DEFINE_string(
        "checkpoint", "latest", "latest, best, or a path such as DIR/model.ckpt-500."
    )


def _run_logged(main: Callable[[], None]) -> None:
    path = JSON_LOG.value
    with json_log.append_to(path) if path else contextlib.nullcontext():
        main()


def _parse_flags(
    argv: list[str], takes_folders: bool = False, takes_files: bool = False
) -> list[str]:
    if {"--help", "-h", "-help", "--helpshort", "--helpfull"} & set(argv):
        endings.run(lambda: print(_write_help(takes_folders)))
        sys.exit(0)
    try:
        rest = flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        known = [flag.name for flag in _list_flags(takes_folders)]
        hint = unknown_flags.explain(error.flagname, known)
        endings.fail(f"unknown flag '--{error.flagname}'. {hint}")
    except flags.Error as error:
        # A message of absl may have several lines.
        endings.fail(" ".join(str(error).split()))
    # The flag decides which modules of the current folder Python may find.
    here.open_to(TRUSTED.value)
    if takes_folders:
        _refuse_flags_of_one_run()
    elif rest[1:] and not takes_files:
        endings.fail(f"unexpected argument {rest[1]!r}: every argument is a flag. See --help.")
    return rest


def _refuse_flags_of_one_run() -> None:
    for flag in _OF_ONE_RUN:
        if flag.present:
            endings.fail(f"this launcher has no flag --{flag.name}. See --help.")


def _write_help(takes_folders: bool) -> str:
    """Return the launcher's docstring, then its flags."""
    docstring = cast(str, sys.modules["__main__"].__doc__)  # Every launcher has one.
    lines = [docstring.strip(), "", "Flags:"]
    for flag in _list_flags(takes_folders):
        lines.append(f"  --{flag.name}")
        lines.extend(
            textwrap.wrap(
                _explain_flag(flag), 92, initial_indent=_INDENT, subsequent_indent=_INDENT
            )
        )
    return "\n".join(lines)


def _list_flags(takes_folders: bool) -> list[flags.Flag]:
    left_out = [flag.name for flag in _OF_ONE_RUN] if takes_folders else []
    # absl files the flags of the main module under the name of the script.
    own = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
    shared = flags.FLAGS.get_key_flags_for_module(sys.modules[__name__])
    return [flag for flag in [*shared, *own] if flag.name not in left_out]


def _explain_flag(flag: flags.Flag) -> str:
    # absl adds a second line to the help of a repeatable flag.
    default = f" (default: {flag.default})" if flag.default else ""
    return flag.help.split(";\n")[0] + default


def _be_quiet() -> None:
    """Write our own log lines to standard error as they are, and only errors of libraries."""
    # Users of `mtl` cannot change anything that libraries warn about.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    absl_logging.set_verbosity(absl_logging.ERROR)
    logger = logging.getLogger("mtl")
    logger.setLevel(logging.INFO)
    # Otherwise the handler of absl, on the root logger, would print each line once more.
    logger.propagate = False
    lines = Lines()
    # --json_log lowers the level of the logger; the terminal stays as it is.
    lines.setLevel(logging.INFO)
    logger.addHandler(lines)


class Lines(logging.Handler):
    """Writes lines to standard error, above a progress bar if one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        # `mask` hides passwords in paths and addresses.
        tqdm.tqdm.write(checks.mask(self.format(record)), file=sys.stderr)
