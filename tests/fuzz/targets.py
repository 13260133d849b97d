"""Every target by its name."""

from __future__ import annotations

from typing import Final

from tests.fuzz import aggregates, child_output, log_lines, properties, record_pages, requests, rows, saved_files

TARGETS: Final = {
    target.name: target
    for target in (
        child_output.TARGET,
        properties.TARGET,
        rows.TARGET,
        record_pages.BODIES,
        record_pages.ANSWERS,
        record_pages.FRAMES,
        aggregates.TARGET,
        requests.TARGET,
        log_lines.TARGET,
        saved_files.TARGET,
    )
}
