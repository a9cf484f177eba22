"""Enforces --trusted_packages: gin files may only use code of mtl and of trusted packages.

trusted = trust.Trusted(["ours"], settings=["Distillation.teacher"])
trusted.check_module("ours.heads")            # and "mtl.heads"; "oursish" is refused
trusted.check_target("heads.os.system", os.system)
trusted.check_built(experiment)               # settings that name modules, SavedModels, servers
"""

import dataclasses
import types
from collections.abc import Sequence
from typing import Any

from mtl import checks, deferred
from mtl.configs import places

with deferred.imports():
    from mtl import types as part_types

_OWN = "mtl"
FLAG = "--trusted_packages"
SETTINGS_FLAG = "--trusted_settings"


class Trusted:
    """The packages and settings that a user trusts.

    Args:
      packages: the packages, besides mtl, that gin files may import; None allows all packages.
      settings: settings of `places.REFUSED` that are allowed although they may run code, write
        files or connect to servers.

    Raises:
      UserError: `settings` names a setting that is not in `places.REFUSED`, or `packages` is None
        although `settings` is not empty.
    """

    def __init__(self, packages: Sequence[str] | None = None, settings: Sequence[str] = ()):
        self._packages = None if packages is None else [_OWN, *filter(None, packages)]
        self._settings = [*filter(None, settings)]
        rule = f"come with {FLAG}"
        checks.require(not self._settings or packages is not None, SETTINGS_FLAG, rule, settings)
        for setting in self._settings:
            fix = checks.nearest(setting, places.REFUSED) or "docs/security.md lists them."
            rule = f"name settings that {FLAG} refuses"
            checks.require(setting in places.REFUSED, SETTINGS_FLAG, rule, setting, fix)

    def check_module(self, module: str) -> None:
        """Fail unless a module may be imported, without importing it.

        Raises:
          UserError: the module belongs neither to mtl nor to a trusted package.
        """
        if not self._covers_module(module):
            packages = ", ".join(self._packages or ())
            fix = f"Name its package in {FLAG} if you trust its code."
            raise checks.UserError(f"module {module!r} is not in {FLAG} ({packages}). {fix}")

    def check_target(self, selector: str, target: Any) -> None:
        """Fail unless a gin file may build or name a class or function.

        In mtl, only the classes of parts are allowed, because functions of mtl may write or remove
        files.

        Args:
          selector: the name of the class or function in the file, for the error.
          target: the class or function that the gin file names.

        Raises:
          UserError: the module is not trusted, or the target belongs to mtl and is not a part,
              which is a frozen dataclass with keyword-only settings.
        """
        if self._packages is None:
            return
        module = getattr(target, "__module__", None)
        # A built-in function has no module: check a text instead that matches no package, so that
        # the function is refused.
        self.check_module(str(module) if module else f"{selector} (built in)")
        if self._is_in(str(module), _OWN) and not _is_part(target):
            raise checks.UserError(f"{selector!r} is not a part of mtl: {FLAG} allows only parts.")

    def check_step(self, selector: str, found: Any) -> None:
        """Fail if a selector names a module outside of the trusted packages, such as `heads.os`.

        Args:
          selector: the whole selector in the gin file, such as "heads.os.system".
          found: the object that the first names of the selector lead to; only modules are checked.

        Raises:
          UserError: `found` is a module that is not trusted.
        """
        if self._packages is not None and isinstance(found, types.ModuleType):
            self.check_module(found.__name__)

    def check_built(self, part: Any) -> None:
        """Fail if a setting may run code, write or connect, or names a module without trust.

        Parts run code, write or connect only when a graph is built, so a check of built parts
        before the graph is early enough.

        Args:
          part: a built part, such as an experiment; the parts inside it are checked, too.

        Raises:
          UserError: a setting may run code, write or connect, and is not in `settings`; or it names
            a module that is not in `packages`.
        """
        if self._packages is None:
            return
        for setting, value, effects in places.find(part):
            if setting not in self._settings:
                acts = " and ".join(filter(None, [", ".join(effects[:-1]), effects[-1]]))
                rule = f"be left out with {FLAG}, as it may {acts}"
                fix = f"If you trust its value, add {SETTINGS_FLAG}={setting}."
                checks.fail(setting, rule, value, fix)
        # Check modules that only a setting names: a part imports these modules without an import
        # statement in the gin file.
        for inner in part_types.walk_parts(part):
            for setting, module in getattr(inner, "modules", {}).items():
                if not self._covers_module(module):
                    where = f"{type(inner).__name__}.{setting}"
                    packages = ", ".join(self._packages or ())
                    rule = f"name a module of {FLAG} ({packages})"
                    value = getattr(inner, setting)
                    fix = "" if module == value else f"It is code of {module!r}."
                    checks.fail(where, rule, value, fix)

    def _covers_module(self, module: str) -> bool:
        packages = self._packages
        return packages is None or any(self._is_in(module, package) for package in packages)

    def _is_in(self, module: str, package: str) -> bool:
        return f"{module}.".startswith(f"{package}.")


def _is_part(target: Any) -> bool:
    """Return True for the class of a part; other classes of mtl may open files or sessions."""
    if not (isinstance(target, type) and dataclasses.is_dataclass(target)):
        return False
    is_frozen = vars(target)["__dataclass_params__"].frozen
    is_public = not target.__name__.startswith("_")
    return is_public and is_frozen and all(field.kw_only for field in dataclasses.fields(target))


EVERYTHING = Trusted()
