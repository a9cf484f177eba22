"""Restricts access to a server by a bearer token and by TLS.

guard = access.Guard("token.txt")
guard.require("Bearer ...")                 # raises RequestError for another token
"""

from __future__ import annotations

import hmac
import os
import re
import ssl
from typing import NamedTuple, NoReturn

from mtl import checks
from mtl.tools.serve import failures, settings


class Guard:
    """Compares each request's token with a token file, which may change while the server runs."""

    def __init__(self, token_file: str | None):
        """Read the token.

        Args:
          token_file: the path of the file with the token; None to admit all clients.

        Raises:
          UserError: the file cannot be read, or has no token.
        """
        self._path, self._token = token_file, b""
        self._stamp: object = None
        if token_file:
            self._stamp, self._token = _stamp(token_file), _read_token(token_file)

    def require(self, header: str | None) -> None:
        """Fail unless a request has the token of the server.

        Args:
          header: the value of the header `Authorization`; None without the header.

        Raises:
          RequestError: the token is missing or wrong.
        """
        if not self._path:
            return
        self._refresh_token(self._path)
        scheme, _, token = (header or "").partition(" ")
        client_token = token.strip().encode("utf-8", "surrogateescape")
        # The time of `compare_digest` does not depend on the position of the first wrong byte, so
        # attackers cannot guess the token byte by byte.
        if scheme.lower() != "bearer" or not hmac.compare_digest(client_token, self._token):
            problem = "the header 'Authorization: Bearer TOKEN' must hold the token of this server"
            raise failures.RequestError(failures.UNAUTHENTICATED, problem)

    def _refresh_token(self, path: str) -> None:
        """Read the token again if its file has changed; keep the earlier token if reading fails."""
        try:
            stamp = _stamp(path)
            if stamp != self._stamp:
                self._token, self._stamp = _read_token(path), stamp
        except (OSError, checks.UserError):
            return


def _stamp(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError as error:
        _refuse_file("token_file", path, error)
    # The inode is necessary, because a new file may have the same date and size as the earlier
    # file.
    return status.st_mtime_ns, status.st_ino, status.st_size


def _read_token(path: str) -> bytes:
    token = _read_file("token_file", path).strip()
    rule = "hold a token, one line of ASCII without blanks"
    checks.require(re.fullmatch(rb"[\x21-\x7e]+", token) is not None, "--token_file", rule, path)
    return token


class Tls(NamedTuple):
    """A certificate and its key, for TLS.

    Attributes:
      certificate: the content of the certificate's PEM file.
      key: the content of the key's PEM file.
      context: the TLS context with which a server presents the certificate.
    """

    certificate: bytes
    key: bytes
    context: ssl.SSLContext


def check_files(config: settings.Settings) -> None:
    """Fail if the file of the token, the certificate or the key cannot be used.

    A command calls this function first, so that it reports a wrong file before it loads a model,
    which takes seconds.

    Raises:
      UserError: a file cannot be used; the message never shows the token.
    """
    Guard(config.token_file)
    if config.tls_cert and config.tls_key:
        read_tls(config.tls_cert, config.tls_key)


def read_tls(certificate: str, key: str) -> Tls:
    """Read a certificate and its key.

    Args:
      certificate: the path of the PEM file with the certificate.
      key: the path of the PEM file with the key, which has no password.

    Raises:
      UserError: a file cannot be read, or certificate and key do not match.
    """
    tls = Tls(_read_file("tls_cert", certificate), _read_file("tls_key", key), _make_context())
    try:
        # Without the argument `password`, OpenSSL would ask for the password of a key on the
        # terminal.
        tls.context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error)
        rule = "be a PEM certificate that fits --tls_key, a key without password"
        checks.fail("--tls_cert", rule, certificate, f"{reason}.")
    return tls


def _make_context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def _read_file(flag: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        _refuse_file(flag, path, error)


def _refuse_file(flag: str, path: str, error: OSError) -> NoReturn:
    checks.fail(f"--{flag}", "be a file that can be read", path, f"{error.strerror}.")
