"""What the OpenAI-compatible server adds: `--middleware hf_selfjudge.vllm.server.SelfJudgeMiddleware`.

Optional. A request's bad threshold is answered with status 400 (without it a worker decodes that request exactly and
logs an error), and /metrics shows the judge's counters. Knows vLLM only by `app.state`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from .metrics import SelfJudgeCollector, register
from .settings import KEY, Settings, check_threshold

logger = logging.getLogger("vllm.hf_selfjudge")

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class SelfJudgeMiddleware:
    """Pure ASGI, so that streamed answers pass through untouched.

    Args:
        app: the next ASGI application.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._collector: SelfJudgeCollector | None = None
        self._names: dict[str, float] | None = None
        self._names_known = False

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] == "http" and self._is_judged(scope):
            if scope["path"].rstrip("/") == "/metrics":
                await self._refresh(scope)
            elif scope["method"] == "POST" and _is_json(scope):
                body = await _read(receive)
                error = await self._error(scope, body)
                if error is not None:
                    await _refuse(send, error)
                    return
                receive = _replay(body, receive)
        await self._app(scope, receive, send)

    @staticmethod
    def _is_judged(scope: dict[str, Any]) -> bool:
        config = getattr(scope["app"].state, "vllm_config", None)
        return config is not None and Settings.from_config(config.additional_config) is not None

    async def _rpc(self, scope: dict[str, Any], method: str) -> Any:
        return (await scope["app"].state.engine_client.collective_rpc(method))[0]

    async def _refresh(self, scope: dict[str, Any]) -> None:
        """Read the workers' counters; without them the metrics are still vLLM's."""
        try:
            if self._collector is None:
                name = scope["app"].state.vllm_config.model_config.served_model_name
                self._collector = SelfJudgeCollector(name if isinstance(name, str) else name[0])
                register(self._collector)
            self._collector.statistics = await self._rpc(scope, "selfjudge_statistics")
        except Exception:  # an engine that is going down must not take /metrics with it
            logger.exception("selfjudge's counters could not be read")

    async def _error(self, scope: dict[str, Any], body: bytes) -> str | None:
        """What is wrong with a request's own threshold, if anything."""
        if KEY.encode() not in body:
            return None
        try:
            asked = json.loads(body)
        except ValueError:
            return None  # the server will say so
        extra = asked.get("vllm_xargs") if isinstance(asked, dict) else None
        if not isinstance(extra, dict) or KEY not in extra:
            return None
        if not self._names_known:
            try:
                self._names = await self._rpc(scope, "selfjudge_thresholds")
            except Exception:  # the server itself knows best how to answer without an engine
                logger.exception("selfjudge's thresholds could not be read")
                return None
            self._names_known = True
        try:
            check_threshold(extra[KEY], self._names)
        except ValueError as error:
            return str(error)
        return None


def _is_json(scope: dict[str, Any]) -> bool:
    """Whether the body can hold a threshold; uploads of audio and the like are not kept in memory."""
    return any(name.lower() == b"content-type" and b"json" in value.lower() for name, value in scope["headers"])


async def _read(receive: Receive) -> bytes:
    """A request's whole body."""
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once more, then what comes after it (a disconnect)."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replaying() -> dict[str, Any]:
        return waiting.pop() if waiting else await receive()

    return replaying


async def _refuse(send: Send, message: str) -> None:
    """Status 400 in the form of the OpenAI API."""
    error = {"message": message, "type": "BadRequestError", "param": f"vllm_xargs.{KEY}", "code": 400}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
