"""A small HTTP client that a server can neither lead elsewhere, nor fill, nor hold up.

Only the host and port that were given are spoken to: a redirect is an error, no proxy is read from the environment, the
name is resolved once. Every exchange has a number of bytes and a number of seconds that it may take in all, counted
where bytes leave the socket, so that endless bodies, slow drips and lying lengths all end there.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import ssl
import time
from urllib.parse import urlsplit

from headcount.errors import HeadcountError, UsageError
from headcount.record import Record
from headcount.units import KIB, MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

JSON_BYTES = MIB
METRICS_BYTES = 8 * MIB
# Status line, headers, chunk sizes: http.client takes up to 100 headers of 64 KiB, no honest server sends a hundredth.
_HEAD_BYTES = 256 * KIB
_LINE_BYTES = 64 * KIB
_READ_BYTES = 64 * KIB


class ServerError(HeadcountError):
    """The server cannot be reached, broke the protocol or its limits, or said something impossible."""


class BrokenOffError(ServerError):
    """The answer began and was never finished: the server, or something between, ended it."""


class Patience(Record):
    """Seconds: ``connect`` for one connection, ``read`` for the next byte, ``total`` for one whole exchange."""

    connect: float = 5.0
    read: float = 10.0
    total: float = 20.0


class Address(Record):
    """Where a server listens; ``prefix`` is a path before every endpoint, without a last slash."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    def words(self) -> str:
        """The address as it would be typed."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


class Answer(Record):
    """One whole response; header names are lower case."""

    path: str
    status: int
    headers: dict[str, str]
    body: bytes


def read_address(url: str) -> Address:
    """Read ``http://host:port``, with ``/v1`` or another path before the endpoints if need be.

    Raises UsageError for another scheme, a missing host, a bad port, a user name, a query or a fragment.
    """
    try:
        # urlsplit drops control signs without a word.
        parts = urlsplit(url.strip() if url.strip().isprintable() else "")
        port = parts.port
    except ValueError:
        raise UsageError(f"--url {url[:80]!r} is not an address like http://127.0.0.1:8000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {url[:80]!r} is not an address like http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise UsageError("--url holds a user name or password; name a variable with --api-key-env instead")
    if parts.query or parts.fragment or port == 0 or not (parts.hostname + parts.path).isprintable():
        raise UsageError(f"--url {url[:80]!r}: only scheme, host, port and a path are read")
    if " " in parts.hostname + parts.path or not parts.path.isascii():
        raise UsageError(f"--url {url[:80]!r}: the path has signs that no request line can hold")
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    default = 443 if parts.scheme == "https" else 80
    return Address(scheme=parts.scheme, host=parts.hostname, port=port or default, prefix=prefix)


class Client:
    """Talks to one address. Safe to use from several threads: every exchange has its own connection."""

    def __init__(self, address: Address, *, key: str | None = None, patience: Patience | None = None) -> None:
        if key is not None and (not key.isascii() or not key.isprintable() or " " in key or not key):
            raise UsageError("the API key is empty or holds signs that no HTTP header can (it is not shown)")
        self.address = address
        self.patience = patience or Patience()
        self._key = key
        self._places = _resolve(address)
        self._tls = ssl.create_default_context() if address.scheme == "https" else None

    @property
    def loopback(self) -> bool:
        """Every address that the name stands for is this machine's own."""
        from ipaddress import ip_address

        return all(ip_address(str(place[4][0]).partition("%")[0]).is_loopback for place in self._places)

    def get(self, path: str, *, limit: int = JSON_BYTES) -> Answer:
        """Fetch ``path`` whole, whatever its status but a redirect.

        Raises ServerError when it cannot be reached, breaks the protocol, or takes more than ``limit`` bytes or the
        patience allows.
        """
        return self._whole("GET", path, None, limit)

    def post(self, path: str, body: dict[str, Any], *, limit: int = JSON_BYTES) -> Answer:
        """The same as ``get`` with a JSON body."""
        return self._whole("POST", path, body, limit)

    def open(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        limit: int,
        total: float | None = None,
    ) -> Exchange:
        """Send a request and read the head of its answer; the caller reads and closes the exchange."""
        exchange = Exchange(self, path, limit=limit, total=total or self.patience.total)
        try:
            exchange.start(method, body)
        except BaseException:
            exchange.close()
            raise
        return exchange

    def _whole(self, method: str, path: str, body: dict[str, Any] | None, limit: int) -> Answer:
        exchange = self.open(method, path, body, limit=limit)
        try:
            return Answer(
                path=path, status=exchange.status, headers=exchange.headers, body=b"".join(exchange.pieces())
            )
        finally:
            exchange.close()

    def connect(self, timeout: float) -> socket.socket:
        """A connected socket, the handshake done.

        Raises OSError, and ssl.SSLError where the certificate is not valid for the host.
        """
        failure: OSError = OSError("no address")
        for family, kind, protocol, _, place in self._places:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(timeout)
                sock.connect(place)
                if self._tls is None:
                    return sock
                return self._tls.wrap_socket(sock, server_hostname=self.address.host)
            except OSError as error:
                sock.close()
                failure = error
        raise failure

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        own = {"Accept": "*/*", "User-Agent": "headcount", "Connection": "close"}
        if self._key is not None:
            own["Authorization"] = f"Bearer {self._key}"
        return own


class Exchange:
    """One request and its answer. ``close`` may be called from another thread: the reader then ends at once."""

    def __init__(
        self, client: Client, path: str, *, limit: int, total: float, read: float | None = None
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._client = client
        self._path = path
        self._limit = limit
        self._deadline = time.monotonic() + total
        self._total = total
        self._read = read or client.patience.read
        self._wire: _Wire | None = None
        self._response: http.client.HTTPResponse | None = None
        self._closed = False

    def start(self, method: str, body: dict[str, Any] | None) -> None:
        """Connect, send, read status and headers.

        Raises ServerError for a redirect, an encoded body, a stated length beyond the limit, a broken head.
        """
        address, patience = self._client.address, self._client.patience
        connection = http.client.HTTPConnection(address.host, address.port)
        try:
            sock = self._client.connect(max(min(patience.connect, self._left()), 0.001))
            self._wire = _Wire(sock, self._deadline, self._read, self._limit + _HEAD_BYTES)
            if self._closed:
                raise OSError("closed")
            # The same four calls that it makes of a socket; bytes and time are counted there.
            connection.sock = self._wire
            data = None if body is None else json.dumps(body).encode()
            headers = self._client.headers()
            if data is not None:
                headers["Content-Type"] = "application/json"
            connection.request(method, address.prefix + self._path, body=data, headers=headers)
            self._response = response = connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError, _SpentError) as error:
            raise self._said(error) from None
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        if 300 <= self.status < 400:
            where = self.headers.get("location", "nowhere")[:120]
            raise ServerError(
                f"{self._name()} answers {self.status} and points to {where!r}: redirects are not followed"
            )
        if self.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise ServerError(f"{self._name()}: an encoded body, which was not asked for")
        if response.length is not None and response.length > self._limit:
            raise ServerError(
                f"{self._name()}: a body of {response.length:,} bytes; at most {self._limit:,} are read"
            )

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives.

        Raises ServerError past the limit or the deadline, or when the body ends before its stated end.
        """
        response, count = self._response, 0
        if response is None:
            return
        while True:
            try:
                piece = response.read1(_READ_BYTES)
            except (OSError, http.client.HTTPException, ValueError, AttributeError, _SpentError) as error:
                raise self._said(error) from None
            if not piece:
                break
            count += len(piece)
            if count > self._limit:
                raise ServerError(f"{self._name()}: more than {self._limit:,} bytes")
            yield piece
        if response.length:
            raise BrokenOffError(
                f"{self._name()}: the body ends {response.length:,} bytes before its stated end"
            )

    def lines(self) -> Iterator[bytes]:
        """The body's lines, without their ends. Raises ServerError also for a line longer than 64 KiB."""
        rest = b""
        for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > _LINE_BYTES or any(len(line) > _LINE_BYTES for line in whole):
                raise ServerError(f"{self._name()}: a line of more than {_LINE_BYTES:,} bytes")
            yield from whole
        if rest:
            yield rest

    def close(self) -> None:
        """End the exchange; a reader in another thread gets a ServerError."""
        self._closed = True
        if self._wire is not None:
            self._wire.cut()

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _name(self) -> str:
        return self._client.address.words() + self._path

    def _said(self, error: Exception) -> ServerError:
        """One line for whatever the socket or the protocol raised."""
        if self._closed:
            return ServerError(f"{self._name()}: closed here")
        if isinstance(error, _SpentError):
            return ServerError(f"{self._name()}: more than {self._limit:,} bytes")
        if isinstance(error, TimeoutError):
            after = f"{self._total:g} s" if self._left() <= 0 else f"{self._read:g} s of silence"
            return ServerError(f"{self._name()}: no whole answer after {after}")
        if isinstance(error, ssl.SSLCertVerificationError):
            return ServerError(f"{self._name()}: its certificate is not valid here: {error.verify_message}")
        if self.status and isinstance(error, http.client.IncompleteRead | ConnectionError):
            return BrokenOffError(f"{self._name()}: the answer was broken off, or its chunks are malformed")
        if isinstance(error, http.client.RemoteDisconnected):
            return ServerError(f"{self._name()}: the connection was closed without an answer")
        if isinstance(error, OSError):
            return ServerError(f"{self._name()}: {error.strerror or type(error).__name__}")
        shown = str(error)[:80]
        return ServerError(f"{self._name()}: not HTTP as it should be: {type(error).__name__} {shown!r}")


class _SpentError(Exception):
    """The byte budget of an exchange is used up; no OSError, so that no library layer takes it for a lost socket."""


class _Wire:
    """A socket that counts: bytes against a budget, seconds against a deadline. What http.client uses, no more."""

    def __init__(self, sock: socket.socket, deadline: float, read: float, budget: int) -> None:
        self._sock = sock
        self._deadline = deadline
        self._read = read
        self._budget = budget

    def wait(self) -> None:
        """Allow the next call what is left of the time."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("deadline")
        self._sock.settimeout(min(left, self._read))

    def receive(self, buffer: memoryview) -> int:
        """Read what there is; raises TimeoutError, _SpentError, OSError."""
        if self._budget <= 0:
            raise _SpentError
        self.wait()
        count = self._sock.recv_into(buffer[: max(1, min(len(buffer), self._budget))])
        self._budget -= count
        return count

    def sendall(self, data: bytes) -> None:
        """Send all of ``data`` within the time."""
        self.wait()
        self._sock.sendall(data)

    def makefile(self, *_: object) -> io.BufferedReader:
        """The reading side."""
        return io.BufferedReader(_Reader(self), _READ_BYTES)

    def close(self) -> None:
        """http.client closes its side once the head is read; the body still needs the socket (see ``cut``)."""

    def cut(self) -> None:
        """Really close, waking a thread that waits in ``receive``."""
        # An error here: not connected any more, so nothing waits.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class _Reader(io.RawIOBase):
    """The raw file over a wire."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.receive(memoryview(buffer))


def _resolve(address: Address) -> list[tuple[Any, ...]]:
    try:
        return list(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a host name"
        raise ServerError(f"{address.words()}: the host is not found: {why}") from None


def read_json(answer: Answer, *, where: str) -> Any:
    """The body as JSON; ``where`` names it in messages.

    Raises ServerError for anything that is not JSON (NaN and Infinity are not).
    """

    def refuse(text: str) -> Any:
        raise ValueError(text)

    try:
        return json.loads(answer.body.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        kind = answer.headers.get("content-type", "no content type")[:60]
        raise ServerError(f"{where}: not JSON ({kind}, {len(answer.body):,} bytes)") from None


def whole_number(value: object, *, where: str, most: int = 2**48) -> int:
    """``value`` as an exact count: 12, 12.0 or "12". Raises ServerError for anything else, and beyond 0 to ``most``."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= most
        or value != int(value)
    ):
        raise ServerError(f"{where} is {value!r:.40}, which is not possible")
    return int(value)
