"""How a server is reached: over TLS or not, whose certificates are trusted, and with which token.

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
    """What a client needs to know besides the address.

    Attributes:
      tls: whether gRPC goes over TLS; with REST the address says it, https://.
      ca_file: a PEM file of the authorities that sign the server's certificate, in place of those
        of the system.
      token_file: a file with a bearer token. It is read for every request, as tokens are replaced
        in place.
      token_env: or the environment variable that holds one.
    """

    tls: bool = False
    ca_file: str | None = None
    token_file: str | None = None
    token_env: str | None = None

    def check(self, scheme: str, address: str) -> None:
        """Fail if the settings contradict the address, or a file cannot be read.

        Raises:
          UserError: by the setting; never with the token.
        """
        rule = "come with HOST:PORT, as REST over TLS is https://HOST:PORT"
        checks.require(not self.tls or scheme == "grpc", "--tls", rule, f"{scheme}://{address}")
        is_secure = self.tls or scheme == "https"
        for flag in ("ca_file", "token_file", "token_env"):
            rule = "come with TLS: --tls for gRPC, https:// for REST"
            checks.require(is_secure or not getattr(self, flag), f"--{flag}", rule, address)
        rule = "come without --token_file"
        checks.require(not (self.token_file and self.token_env), "--token_env", rule, "both")
        self.headers()
        if is_secure:
            self.context()

    def context(self) -> ssl.SSLContext:
        """Return what checks the certificate of an HTTPS server."""
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as error:  # SSLError is an OSError.
            reason = f"{error.strerror or error}".strip(". ") if isinstance(error, OSError) else ""
            checks.fail("--ca_file", "be a PEM file of certificates", self.ca_file, f"{reason}.")

    def roots(self) -> bytes | None:
        """Return the authorities as gRPC takes them; None for its own."""
        if not self.ca_file:
            return None
        with open(self.ca_file, "rb") as file:
            return file.read()

    def headers(self) -> dict[str, str]:
        """Return what goes with every request."""
        if not (self.token_file or self.token_env):
            return {}
        where = "--token_file" if self.token_file else "--token_env"
        token = self._token().strip()
        # Its value appears in no message.
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            named = self.token_file or self.token_env
            checks.fail(where, "hold a token, one line of ASCII without blanks", named)
        return {"authorization": f"Bearer {token}"}

    def _token(self) -> str:
        if self.token_env:
            return os.environ.get(self.token_env, "")
        try:
            # `headers` asks only where there is one or the other.
            with open(
                cast(str, self.token_file), encoding="ascii", errors="surrogateescape"
            ) as file:
                return file.read()
        except OSError as error:
            rule = "be a file that can be read"
            checks.fail("--token_file", rule, self.token_file, f"{error.strerror}.")


ANYONE = Access()
