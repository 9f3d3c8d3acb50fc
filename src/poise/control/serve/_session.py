"""Tokens, sessions and form keys: who may act."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict

LASTS = 12 * 3600.0
"""Seconds that a session is trusted for."""

MOST = 1000
"""Sessions that are remembered."""

TRIES = 10
"""Wrong tokens a minute, from anybody, after which no token is looked at for the rest of that minute."""


class Sessions:
    """Which sessions have shown the token. Everything is in memory: a restart forgets it all."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._key = secrets.token_bytes(32)
        self._trusted: OrderedDict[str, float] = OrderedDict()
        self._wrong: list[float] = []

    def fresh(self) -> str:
        """A new session's name."""
        return secrets.token_urlsafe(24)

    def form_key(self, session: str) -> str:
        """What a form of this session must carry (CSRF)."""
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    def is_form_key(self, session: str, key: str) -> bool:
        """Whether a form came from a page that we made for this session."""
        return bool(session) and hmac.compare_digest(self.form_key(session).encode(), key.encode())

    @property
    def tired(self) -> bool:
        """Whether too many wrong tokens came in the last minute."""
        now = time.monotonic()
        self._wrong = [t for t in self._wrong if now - t < 60]
        return len(self._wrong) >= TRIES

    def is_token(self, token: str) -> bool:
        """Whether this is the token. False for everything while there are too many wrong ones."""
        if not token or self.tired:
            return False
        right = hmac.compare_digest(token.encode(), self._token)
        if not right:
            self._wrong.append(time.monotonic())
        return right

    def trust(self) -> str:
        """A new session that has shown the token."""
        session = self.fresh()
        self._trusted[session] = time.monotonic()
        while len(self._trusted) > MOST:
            self._trusted.popitem(last=False)
        return session

    def trusted(self, session: str) -> bool:
        """Whether this session has shown the token, not too long ago."""
        since = self._trusted.get(session)
        return since is not None and time.monotonic() - since < LASTS
