"""Forged requests: what another site lets a signed-in browser send is refused.

Airflow's session is a cookie with ``SameSite=Lax``, and its API takes JSON alone; it has no CSRF token and does not look at where a request comes
from. That leaves pages of the same site (another port, a sister domain). So a request that changes something must come from a page of this server,
or from an origin that ``[api] access_control_allow_origins`` names, or from a client that is no browser and sends its token itself.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow.configuration import conf
from fastapi import HTTPException, Request

FORBIDDEN, UNSUPPORTED = 403, 415
_JSON = "application/json"


def refuse_forged(request: Request) -> None:
    """Guard a route that changes something. Raises HTTPException for requests that another site may have sent, and for other bodies than JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        raise HTTPException(UNSUPPORTED, f"The body must be JSON, sent with Content-Type: {_JSON}.")
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if site == "same-origin" or (origin is not None and origin in conf.getlist("api", "access_control_allow_origins", fallback="")):
        return
    if site is not None or (origin is not None and not _is_own(request, origin)):
        where = origin or site
        raise HTTPException(
            FORBIDDEN,
            f"The request comes from {where!r}, not from a page of this server. To allow that site, name it in [api] access_control_allow_origins.",
        )
    if origin is None and "authorization" not in request.headers:
        raise HTTPException(FORBIDDEN, "The request does not say where it comes from. Outside of a browser, send the token as Authorization: Bearer.")


def _is_own(request: Request, origin: str) -> bool:
    """Whether an origin is this server's. Where a proxy ends TLS, the server sees another scheme than the browser, so that does not count."""
    own = {request.headers.get("host", ""), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc}
    return urlsplit(origin).netloc in own - {""}
