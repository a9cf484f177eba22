"""Runs commands: defines shared flags, writes help and logs, exits with 2 after a mistake."""

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

from launch.processes import endings, here, unknown_flags
from mtl import checks, deferred
from mtl.configs import config, trust
from mtl.files import storage

with deferred.imports():
    from launch.processes import json_log
    from mtl import experiment

GIN_FILE = flags.DEFINE_multi_string(
    "gin_file", [], "A gin file that describes the run. Repeatable; later files override earlier."
)
GIN_PARAM = flags.DEFINE_multi_string(
    "gin_param", [], "A gin binding, such as 'Run.seed = 2', applied after all files. Repeatable."
)
MODEL_DIR = flags.DEFINE_string(
    "model_dir",
    None,
    "The folder of checkpoints, events, exports and the run's config.gin. If the folder has a "
    "config.gin, you may leave out --gin_file. (default: runs/<name of the last gin file>)",
)

TRUSTED = flags.DEFINE_list(
    "trusted_packages",
    None,
    "Packages, with commas between them. With this flag, gin files, their includes and the "
    "config.gin of a run may only build parts of mtl and of these packages. Without "
    "--trusted_packages, gin files may run any code: see docs/security.md.",
)

TRUSTED_SETTINGS = flags.DEFINE_list(
    "trusted_settings",
    [],
    "Settings, with commas between them, such as Distillation.teacher, that are allowed although "
    "they may run code, write or connect. docs/security.md lists them.",
)

JSON_LOG = flags.DEFINE_string(
    "json_log",
    None,
    "A file to which every log line is also appended as JSON: time, level, message, and numbers "
    "such as the losses of a step.",
)

# The smallest allowed limit of the address space (`ulimit -v`), in bytes. A small training on two
# cores needs 3.08e9 at its peak (VmPeak), and a limit of 2.56e9 aborts the training.
_ADDRESSES = 3 * 10**9
_INDENT = " " * 6
_OF_ONE_RUN = (GIN_FILE, GIN_PARAM, MODEL_DIR)


def run(main: Callable[[], None]) -> None:
    """Parse the flags of a command, and run its `main`.

    Args:
      main: called after the flags are parsed.

    Raises:
      SystemExit: the command has ended; the exit code is 2 after a mistake of the user.
    """
    _be_quiet()
    # Call `endings.run` inside of `app.run`, because absl would show errors as tracebacks.
    app.run(lambda _: endings.run(lambda: _run_logged(main)), flags_parser=_parse_flags)


def run_on_folders(main: Callable[[list[str]], None]) -> None:
    """Run a command whose positional arguments are folders of runs.

    The command has all shared flags except --gin_file, --gin_param and --model_dir.

    Args:
      main: called with the folders, after the flags are parsed.
    """
    _be_quiet()
    flags.FLAGS.set_gnu_getopt(True)  # Flags may come after folders.
    parse = functools.partial(_parse_flags, takes_folders=True)
    app.run(
        lambda argv: endings.run(lambda: _run_logged(lambda: main(argv[1:]))), flags_parser=parse
    )


def run_on_files(main: Callable[[list[str]], None]) -> None:
    """Run a command whose positional arguments are files.

    The command has all shared flags.

    Args:
      main: called with the files, after the flags are parsed.
    """
    _be_quiet()
    flags.FLAGS.set_gnu_getopt(True)  # Flags may come after files.
    parse = functools.partial(_parse_flags, takes_files=True)
    app.run(
        lambda argv: endings.run(lambda: _run_logged(lambda: main(argv[1:]))), flags_parser=parse
    )


def load() -> tuple[experiment.Experiment, str]:
    """Return the experiment and the folder of the run that the shared flags describe.

    Raises:
      UserError: a flag is missing, or a gin file has a mistake.
    """
    # Check the limit of the address space before the first import of TensorFlow.
    _require_addresses()
    files, model_dir = GIN_FILE.value, MODEL_DIR.value
    if not files and not model_dir:
        raise checks.UserError("--gin_file or --model_dir must be set. See --help.")
    model_dir = model_dir or config.name_model_dir(files)
    storage.require_plain("--model_dir", model_dir)
    # Gin files on the command line replace the config.gin of the run.
    files = files or [config.saved_in(model_dir)]
    return config.load(files, GIN_PARAM.value, trusted(), model_dir), model_dir


def _require_addresses() -> None:
    """Fail if `ulimit -v` is so small that TensorFlow would abort in C++."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    fits = most == resource.RLIM_INFINITY or most >= _ADDRESSES
    fix = "ulimit -v limits addresses, not memory: raise it, or limit memory by a control group."
    rule = f"be unlimited, or at least {_ADDRESSES // 1024}, which TensorFlow reserves at its start"
    checks.require(fits, "ulimit -v", rule, most // 1024, fix)


def trusted() -> trust.Trusted:
    """Return the packages and settings that --trusted_packages and --trusted_settings allow."""
    return trust.Trusted(TRUSTED.value, TRUSTED_SETTINGS.value)


def define_checkpoint() -> flags.FlagHolder[str]:
    """Define --checkpoint, for commands that read a checkpoint."""
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
        names = [flag.name for flag in _list_flags(takes_folders)]
        hint = unknown_flags.explain(error.flagname, names)
        endings.fail(f"unknown flag '--{error.flagname}'. {hint}")
    except flags.Error as error:
        # A message of absl may have several lines.
        endings.fail(" ".join(str(error).split()))
    # --trusted_packages decides which modules of the current folder Python may import.
    here.open_to(TRUSTED.value)
    if takes_folders:
        _refuse_flags_of_one_run()
    elif rest[1:] and not takes_files:
        endings.fail(f"unexpected argument {rest[1]!r}: every argument is a flag. See --help.")
    return rest


def _refuse_flags_of_one_run() -> None:
    for flag in _OF_ONE_RUN:
        if flag.present:
            endings.fail(f"this command has no flag --{flag.name}. See --help.")


def _write_help(takes_folders: bool) -> str:
    """Return the help of a command: the docstring of its module, and its flags."""
    docstring = cast(str, sys.modules["__main__"].__doc__)
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
    hidden = [flag.name for flag in _OF_ONE_RUN] if takes_folders else []
    # In absl, the flags of the main module belong to the name of the script.
    of_command = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
    shared = flags.FLAGS.get_key_flags_for_module(sys.modules[__name__])
    return [flag for flag in [*shared, *of_command] if flag.name not in hidden]


def _explain_flag(flag: flags.Flag) -> str:
    # Remove the second line that absl adds to the help of a repeatable flag.
    default = f" (default: {flag.default})" if flag.default else ""
    return flag.help.split(";\n")[0] + default


def _be_quiet() -> None:
    """Print the log lines of mtl to standard error, and only errors of libraries."""
    # Hide warnings of libraries about code that users of `mtl` cannot change.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    absl_logging.set_verbosity(absl_logging.ERROR)
    logger = logging.getLogger("mtl")
    logger.setLevel(logging.INFO)
    # Do not pass records on to the root logger, whose absl handler would print each line again.
    logger.propagate = False
    lines = Lines()
    # Set the level of the handler, too, because --json_log lowers the level of the logger.
    lines.setLevel(logging.INFO)
    logger.addHandler(lines)


class Lines(logging.Handler):
    """Writes log lines to standard error, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        # `mask` hides passwords in paths and URLs.
        tqdm.tqdm.write(checks.mask(self.format(record)), file=sys.stderr)
