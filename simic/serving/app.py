"""The HTTP server: POST /predict, GET /health, /metrics and /model."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import torch
import uvicorn
from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI, Request, Response
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from simic.errors import SimicError
from simic.serving.bodies import JSON
from simic.serving.refusals import Refusal
from simic.serving.request_log import RequestLog
from simic.serving.service import Service

# Of a body: thousands of rows of a hundred columns.
MOST_BYTES = 2**24
BODY_SECONDS = 30.0
# Between looks for journals that are full or old, and for a newer version.
LOG_SECONDS = 5.0
POLL_SECONDS = 10.0
# Connections at a time; more are answered with 503.
MOST_CONNECTIONS = 512
# For requests that are being answered when the server is to end.
GRACE_SECONDS = 30
LOOPBACK = ("127.0.0.1", "localhost")

LOG = logging.getLogger(__name__)


def create_app(service: Service, token: str, poll_seconds: float = POLL_SECONDS) -> FastAPI:
    """Make the application.

    Args:
        service: What answers.
        token: That requests must bear; empty: none.
        poll_seconds: Between looks for a newer version.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        refreshing = asyncio.create_task(_repeat(service.refresh, poll_seconds))
        stop = threading.Event()
        if service.log is not None:
            # In one thread: each of several would keep the memory that making a file takes.
            threading.Thread(target=_tidy, args=(service.log, stop), daemon=True).start()
        yield
        # After the last request, so that the log has all of them.
        stop.set()
        refreshing.cancel()
        await to_thread.run_sync(service.close)

    # Pages of documentation would load scripts from elsewhere.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    # Work of a core each: more threads would only wait, and hold bodies in memory.
    limiter = CapacityLimiter(os.cpu_count() or 1)
    # Without a token a page of elsewhere, whose name leads to this machine, could read what is served.
    if not token:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK])
    _handle_errors(app, service)

    async def authorise(request: Request) -> None:
        header = request.headers.get("authorization", "")
        expected = f"Bearer {token}"
        # In constant time: how long it takes says nothing of the token. Headers are read as Latin-1.
        sent = header.encode("latin-1")
        if token and not secrets.compare_digest(sent, expected.encode()):
            raise Refusal(401, "the token is missing or wrong: must be sent as a bearer token")

    @app.post("/predict", dependencies=[Depends(authorise)])
    async def predict(request: Request) -> Response:
        start = time.perf_counter()
        content = await _body(request)
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        with_all = request.query_params.get("probabilities", "").lower() in ("true", "1")
        # In a thread: health and other requests are answered meanwhile.
        answer = await to_thread.run_sync(
            service.predict,
            content,
            media,
            with_all,
            limiter=limiter,
        )
        service.metrics.requests.labels(200).inc()
        service.metrics.seconds.observe(time.perf_counter() - start)
        return Response(answer, media_type=JSON)

    _add_pages(app, service, authorise)
    return app


def _add_pages(app: FastAPI, service: Service, authorise: Callable[..., Any]) -> None:
    """Add what tells of the service."""

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "model": service.model.version}

    @app.get("/metrics", dependencies=[Depends(authorise)])
    def metrics() -> Response:
        return Response(service.metrics.page(service.model), media_type=CONTENT_TYPE_LATEST)

    @app.get("/model", dependencies=[Depends(authorise)])
    def model() -> dict[str, Any]:
        return service.describe()


def _handle_errors(app: FastAPI, service: Service) -> None:
    """Answer what cannot be answered by one sentence."""

    @app.exception_handler(Refusal)
    async def refuse(request: Request, refusal: Refusal) -> JSONResponse:
        if request.url.path == "/predict":
            service.metrics.requests.labels(refusal.status).inc()
        headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None
        return JSONResponse({"detail": str(refusal)}, refusal.status, headers)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> JSONResponse:
        service.metrics.requests.labels(500).inc()
        return JSONResponse({"detail": "an error of the server, which its log has"}, 500)


def _tidy(log: RequestLog, stop: threading.Event) -> None:
    while not stop.wait(LOG_SECONDS):
        # Whatever happens to one journal, later ones become files.
        try:
            log.tidy()
        except Exception:
            LOG.exception("the request log could not be tidied")


async def _repeat(call: Callable[[], None], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await to_thread.run_sync(call)


async def _body(request: Request) -> bytes:
    """Read the body as long as it is small and comes in time."""
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > MOST_BYTES:
                    raise Refusal(413, f"the body has more than {MOST_BYTES} bytes")
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {BODY_SECONDS:.0f} s") from None
    return bytes(content)


def listen(host: str, port: int) -> socket.socket:
    """Open a socket for the server; SimicError where the address cannot be used."""
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise SimicError(f"{host}:{port}: {error.strerror}") from None
    # The body of an answer does not wait until its head has arrived, which would take 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(
    service: Service,
    host: str,
    port: int,
    token: str,
    say: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C; what is being answered then is answered.

    Args:
        service: What answers.
        host: Address to listen on.
        port: 0 takes a free one.
        token: That requests must bear; empty: none, on the loopback alone.
        say: Is told the address.

    Raises:
        SimicError: The address cannot be used, or needs a token.
    """
    if not token and host not in LOOPBACK:
        raise SimicError(
            f"--host {host}: others can reach it: set SIMIC_TOKEN to a secret that requests must bear"
        )
    # Requests are many and small: more threads would only get into each other's way.
    torch.set_num_threads(1)
    config = uvicorn.Config(
        create_app(service, token),
        log_level="warning",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with listen(host, port) as listener, contextlib.suppress(KeyboardInterrupt):
        address, port = listener.getsockname()
        say(f"serves {service.model.version} on http://{address}:{port}")
        uvicorn.Server(config).run(sockets=[listener])
