"""The two pluggy markers. A plugin needs only `hookimpl`."""

from __future__ import annotations

import pluggy

PROJECT = "headwater"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
