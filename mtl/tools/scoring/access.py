"""Settings for the access to a server: TLS, trusted certificates and a token.

secure = access.Access(tls=True, ca_file="ca.pem", token_file="/var/run/secrets/token")
secure.check("grpc", "model.example:8500")
"""

import dataclasses
import os
import re
import ssl
from typing import cast

from mtl import checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """Settings with which a client reaches a server.

    Attributes:
      tls: True to use TLS for gRPC. REST uses TLS if the address starts with https://.
      ca_file: a PEM file of certificate authorities that the client trusts, instead of the
        authorities of the operating system.
      token_file: a file with a bearer token. Each request reads the file again, so the token may
        change.
      token_env: the name of an environment variable with the token, instead of a file.
    """

    tls: bool = False
    ca_file: str | None = None
    token_file: str | None = None
    token_env: str | None = None

    def check(self, scheme: str, address: str) -> None:
        """Fail if the settings contradict the address, or a file cannot be read.

        Args:
          scheme: "grpc", "http" or "https".
          address: HOST:PORT of the server, for error messages.

        Raises:
          UserError: a setting is wrong; the message never shows the token.
        """
        rule = "come with HOST:PORT, as REST over TLS is https://HOST:PORT"
        checks.require(not self.tls or scheme == "grpc", "--tls", rule, f"{scheme}://{address}")
        is_secure = self.tls or scheme == "https"
        for flag in ("ca_file", "token_file", "token_env"):
            rule = "come with TLS: --tls for gRPC, https:// for REST"
            checks.require(is_secure or not getattr(self, flag), f"--{flag}", rule, address)
        rule = "come without --token_file"
        checks.require(not (self.token_file and self.token_env), "--token_env", rule, "both")
        # Read the token now, so that a command with a missing token fails before its first row.
        self.headers()
        if is_secure:
            self.context()

    def context(self) -> ssl.SSLContext:
        """Return the SSL context that checks the certificate of an HTTPS server.

        Raises:
          UserError: `ca_file` cannot be read, or has no certificates.
        """
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as error:  # SSLError is a subclass of OSError.
            reason = f"{error.strerror or error}".strip(". ") if isinstance(error, OSError) else ""
            checks.fail("--ca_file", "be a PEM file of certificates", self.ca_file, f"{reason}.")

    def roots(self) -> bytes | None:
        """Return the content of `ca_file`; None if gRPC should trust its default authorities."""
        if not self.ca_file:
            return None
        with open(self.ca_file, "rb") as file:
            return file.read()

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers for a request: the bearer token, or no headers without a token.

        Raises:
          UserError: the token cannot be read, or is malformed.
        """
        if not (self.token_file or self.token_env):
            return {}
        where = "--token_file" if self.token_file else "--token_env"
        token = self._read_token().strip()
        # The message names the file or variable, but never shows the token.
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            source = self.token_file or self.token_env
            checks.fail(where, "hold a token, one line of ASCII without blanks", source)
        return {"authorization": f"Bearer {token}"}

    def _read_token(self) -> str:
        if self.token_env:
            return os.environ.get(self.token_env, "")
        try:
            # `headers` calls `_read_token` only if a file or a variable is set.
            with open(
                cast(str, self.token_file), encoding="ascii", errors="surrogateescape"
            ) as file:
                return file.read()
        except OSError as error:
            rule = "be a file that can be read"
            checks.fail("--token_file", rule, self.token_file, f"{error.strerror}.")


ANYONE = Access()
