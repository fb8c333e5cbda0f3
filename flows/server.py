"""Serve Prefect's API and UI with a password, and under this machine's own names alone.

Whoever may change a deployment may run any command, so the API is a shell of the user who serves it.
"""

from fastapi import FastAPI
from prefect.server.api import server
from prefect.settings import get_current_settings
from starlette.middleware.trustedhost import TrustedHostMiddleware

from flows.up import NAMES, SETTINGS_FILE

# Under which the server's own automations ask it, without a network.
IN_MEMORY = "prefect-in-memory"


def create_app() -> FastAPI:
    """Create the server's app. Called by uvicorn; exits where there is no password."""
    if get_current_settings().server.api.auth_string is None:
        raise SystemExit(
            f"{SETTINGS_FILE}: server.api.auth_string is missing; add it, or remove the file for a new one"
        )
    app = server.create_app(final=True)
    # A page may point its own name at this machine; the browser then takes this server for the page's.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*NAMES, IN_MEMORY])
    return app
