"""`/metrics` in OpenMetrics: base units, `_total` for what only grows, few labels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, StateSetMetricFamily
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from .._registry import State
from .._verdict import WORDS, goodput, streak, verdict
from ._live import View

CONTENT_TYPE = CONTENT_TYPE_LATEST


def exposition(view: View, now: float | None = None) -> bytes:
    """The metrics of a run."""
    registry = CollectorRegistry()
    registry.register(_Run(view, time.time() if now is None else now))
    return generate_latest(registry)


class _Run(Collector):
    def __init__(self, view: View, now: float) -> None:
        self._view, self._now = view, now

    def collect(self) -> Iterator[Metric]:
        s, now = self._view.summary, self._now
        r, how = s.registry, verdict(s, now)
        share, elapsed = goodput(s, now)
        yield StateSetMetricFamily("poise_verdict", "How the run is.", {w: w == how.word for w in WORDS})
        yield _gauge("poise_run", "Number of the run in its journal.", s.run)
        yield _gauge("poise_governed", "Whether a governor takes orders for the run.", self._view.governed)
        yield _gauge("poise_step", "Committed steps.", r.step)
        yield _gauge("poise_progress_timestamp_seconds", "When the run last moved.", s.moved)
        yield _gauge(
            "poise_progress_age_seconds", "Since the run last moved.", max(0.0, now - s.moved) if s.moved else 0
        )
        yield _gauge("poise_step_rate_hertz", "Steps per second.", s.rate)
        yield _gauge("poise_elapsed_seconds", "Since the run began.", elapsed)
        yield _gauge("poise_goodput_ratio", "Share of that time that was not lost.", 1.0 if share is None else share)
        yield _counter("poise_lost_seconds", "Time lost, by cause.", "cause", s.lost)
        yield _gauge("poise_survivable", "Whether the next loss of a device is survivable.", r.survivable[0])
        yield _gauge("poise_spares", "Warm spares that are free.", len(r.spares))
        devices = dict.fromkeys((state.value for state in State), 0)
        for state in r.devices.values():
            devices[state.value] += 1
        yield _gauges("poise_devices", "Devices by state.", "state", devices)
        yield _counter("poise_faults", "Faults noticed, by kind.", "kind", s.faults)
        yield _counter("poise_actions", "What was done about them.", "action", s.actions)
        yield _counter("poise_incidents", "Closed incidents, by whose fault they were.", "verdict", s.verdicts)
        yield _gauge("poise_open_incidents", "Incidents that are being mended.", len(s.open))
        yield _counter("poise_swaps", "Slots that moved to a spare.", None, {"": s.swaps})
        yield _counter("poise_dropped_batches", "Batches left out.", None, {"": r.dropped})
        yield _gauge("poise_dropped_in_a_row", "Batches left out in a row, up to now.", streak(s))
        yield _counter("poise_repaired_blocks", "Blocks mended.", None, {"": s.blocks.get("repaired", 0)})
        yield _counter(
            "poise_unrepairable_blocks", "Blocks beyond parity.", None, {"": s.blocks.get("unrepairable", 0)}
        )
        yield _gauge("poise_state_bytes", "Bytes of the kept state.", s.protection.get("state_bytes", 0))
        yield _gauge("poise_spare_bytes", "Bytes of marks, parity and guards.", s.protection.get("spare_bytes", 0))
        at = s.snapshot.get("at")
        yield _gauge("poise_snapshot_age_seconds", "Since the last verified snapshot.", max(0.0, now - at) if at else 0)
        yield _counter("poise_refused_snapshots", "Copies that did not verify.", None, {"": s.refused})
        failing = sum(c["state"] == "failing" for c in s.channels.values())
        yield _gauge("poise_failing_channels", "Channels of the data that hold bad values now.", failing)
        reports = CounterMetricFamily("poise_hardware_reports", "What the hardware said.", labels=("device", "kind"))
        for device, seen in s.hardware.items():
            for kind, n in seen["counts"].items():
                reports.add_metric((device, kind), n)
        yield reports
        yield _gauge("poise_open_pages", "Things that wait for a person.", len(s.pages))
        yield _gauge("poise_open_orders", "Orders that are not carried out yet.", len(r.orders))


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value=float(value))


def _gauges(name: str, help: str, label: str, values: dict[str, int]) -> Metric:
    made = GaugeMetricFamily(name, help, labels=(label,))
    for key, value in values.items():
        made.add_metric((key,), value)
    return made


def _counter(name: str, help: str, label: str | None, values: Mapping[str, float]) -> Metric:
    made = CounterMetricFamily(name, help, labels=(label,) if label else ())
    for key, value in values.items():
        made.add_metric((key,) if label else (), value)
    return made
