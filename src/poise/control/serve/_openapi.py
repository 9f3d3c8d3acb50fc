"""The JSON interface, described in OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from ... import __version__
from .._respond import ASKS
from .._verdict import WORDS

NUMBER = {"type": "number"}
INT = {"type": "integer"}
TEXT = {"type": "string"}
MAYBE = {"type": ["number", "null"]}


def _object(required: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **more}}


def _map(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": of}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


SCHEMAS: dict[str, Any] = {
    "Error": _object({"error": TEXT}),
    "Verdict": _object({"word": {"enum": list(WORDS)}, "sentence": TEXT, "good": {"type": "boolean"}}),
    "Incident": _object(
        {
            "id": INT, "last": INT, "step": INT, "kind": TEXT, "where": TEXT, "slots": _list(INT),
            "devices": _list(INT), "opened": NUMBER, "closed": MAYBE, "action": TEXT, "reason": TEXT,
            "blocks": _map(INT), "swaps": _list({"type": "object"}), "outcome": {"type": ["string", "null"]},
            "seconds": MAYBE, "compiles": MAYBE, "replayed": MAYBE, "phases": _map(NUMBER),
            "verdict": {"enum": ["open", "transient", "device", "data/model", "asked", "unknown"]}, "evidence": TEXT,
        }
    ),
    "Event": _object({"id": INT, "at": NUMBER, "kind": TEXT, "fields": {"type": "object"}}),
    "Status": _object(
        {
            "run": INT, "job": TEXT, "status": TEXT, "verdict": {"$ref": "#/components/schemas/Verdict"}, "step": INT,
            "progress_age_seconds": MAYBE, "steps_per_second": NUMBER, "goodput_ratio": MAYBE,
            "elapsed_seconds": NUMBER, "lost_seconds": _map(NUMBER),
            "registry": _object(
                {
                    "devices": _map(TEXT), "slots": _list(INT), "spares": _list(INT), "routes": _map(INT),
                    "memory_faults": _map(INT), "orders": _list(TEXT),
                }
            ),
            "noticed": INT, "mended": INT, "dropped": INT, "skip_streak": INT,
            "next_failure_survivable": {"type": "boolean"}, "why": TEXT, "blocks": _map(INT),
            "gates": _map({"type": "object"}),
            "channels": _map({"type": "object"}), "hardware": _map({"type": "object"}), "verdicts": _map(INT),
            "swaps": INT, "pages": _map(TEXT), "open": _list({"$ref": "#/components/schemas/Incident"}),
            "governed": {"type": "boolean"},
        }
    ),
    "Action": {
        **_object(
            {"what": {"enum": list(ASKS)}, "who": {**TEXT, "minLength": 1, "maxLength": 200, "pattern": r"\S"},
             "why": {**TEXT, "minLength": 1, "maxLength": 2000, "pattern": r"\S"}},
            device={**INT, "minimum": -1, "maximum": 2**31 - 1, "description": "which device; drain needs it"},
            page={**TEXT, "maxLength": 200, "description": "which open page; acknowledge needs it"},
        ),
        "additionalProperties": False,
    },
}  # fmt: skip


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _plain(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/plain": {"schema": TEXT}}}


def _get(
    summary: str, schema: dict[str, Any], *parameters: dict[str, Any], more: tuple[int, ...] = ()
) -> dict[str, Any]:
    words = {404: "not in this run", 422: "a parameter is wrong"}
    bad = {str(code): _json(words[code], _ref("Error")) for code in more}
    return {
        "get": {
            "summary": summary,
            "parameters": list(parameters),
            "responses": {"200": _json("so it is", schema), **bad, "401": _json("needs the token", _ref("Error"))},
        }
    }


def _query(name: str, low: int, high: int, description: str) -> dict[str, Any]:
    return {
        "name": name, "in": "query", "required": False, "description": description,
        "schema": {**INT, "minimum": low, "maximum": high},
    }  # fmt: skip


LIMIT = _query("limit", 1, 500, "at most so many; 50 if left out")
BEFORE = _query("before", 0, 2**53, "only those with a smaller number")
AFTER = _query("after", 0, 2**53, "only those with a larger number, oldest first")
NUMBERED = {"name": "number", "in": "path", "required": True, "schema": {**INT, "minimum": 0, "maximum": 2**53}}

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "poise",
        "version": __version__,
        "description": "What happened in a kept run, and what its governor may be asked for.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "paths": {
        "/api/v1/status": _get("Everything about the run", _ref("Status")),
        "/api/v1/incidents": _get(
            "Incidents, newest first", _object({"incidents": _list(_ref("Incident"))}), LIMIT, BEFORE, more=(422,)
        ),
        "/api/v1/incidents/{number}": _get("One incident", _ref("Incident"), NUMBERED, more=(404,)),
        "/api/v1/events": _get(
            "Events as they were written, progress apart; newest first, or oldest first behind `after`",
            _object({"events": _list(_ref("Event"))}), LIMIT, BEFORE, AFTER, more=(422,),
        ),
        "/api/v1/runs": _get(
            "The runs of this journal, newest first",
            _object({"runs": _list(_object({"run": INT, "started": NUMBER}))}),
        ),
        "/api/v1/actions": {
            "post": {
                "summary": "Ask the governor for something; it is journaled with who and why",
                "security": [{"token": []}],
                "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("Action")}}},
                "responses": {
                    "202": _json("accepted, and in the journal", _object({"outcome": {"const": "accepted"}})),
                    **{
                        str(code): _json(words, _ref("Error"))
                        for code, words in (
                            (400, "no JSON"), (401, "no token, or a wrong one"), (403, "from another site"),
                            (409, "the governor refused, or nobody governs the run"), (413, "too large"),
                            (415, "not application/json"), (422, "not as described here"),
                            (429, "too many wrong tokens; wait a minute"),
                        )
                    },
                },
            }
        },
        "/healthz": {"get": {"summary": "The server answers", "responses": {"200": _plain("it does")}}},
        "/readyz": {
            "get": {
                "summary": "The journal can be read",
                "responses": {"200": _plain("it can"), "503": _plain("it cannot, and why")},
            }
        },
        "/metrics": {
            "get": {
                "summary": "OpenMetrics",
                "responses": {
                    "200": {"description": "the metrics", "content": {"application/openmetrics-text": {"schema": TEXT}}}
                },
            }
        },
    },
    "components": {
        "schemas": SCHEMAS,
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    },
}  # fmt: skip
