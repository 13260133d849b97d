"""The page of a running host in headless Chromium: live, with a thousand shards, and with hostile names."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcl_host.decisions.fleet_report import Finding
from kcl_host.endpoint.answers import Answers
from kcl_host.endpoint.http import HttpServer
from kcl_host.local.engines import Engines
from kcl_host.runtime.clock import SystemClock
from tests.fakes.running_host import RunningHost, shard_id
from tests.integration.counting import Counting, Running, stop
from tests.interop.browser import Browser, start_browser

pytestmark = pytest.mark.interop

LIVE = "document.documentElement.dataset.state === 'live'"
UPDATES = "+document.documentElement.dataset.updates"
MARKUP = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>'\"`${window.pwned=1}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = start_browser()
    yield browser
    browser.close()


@contextmanager
def served(host: RunningHost) -> Iterator[str]:
    clock = SystemClock()
    server = HttpServer(Answers(host.host(), clock), "127.0.0.1", 0, clock)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield f"http://127.0.0.1:{server.port}/"
    server.stop()
    thread.join()


def text_of(browser: Browser, selector: str) -> str:
    return str(browser.run("return document.querySelector(arguments[0]).textContent", selector))


def test_a_host_at_work_that_dies_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Engines() as engines:
        engines.create_stream("numbers", 4)
        counting = Counting(engines, tmp_path, workerId="host-1", endpointPort=port)
        engines.put_records("numbers", [(str(number), str(number).encode()) for number in range(60)])
        with Running(counting) as host:
            host.wait_for("endpoint_started")
            browser.open(f"http://127.0.0.1:{port}/")
            browser.wait_for("document.documentElement.dataset.shards === '4'", 30)
            browser.wait_for("host.ready.ready && fleet && fleet.workers.length === 1", 30)
            browser.wait_for("host.consumers.reduce((n, c) => n + c.records, 0) === 60", 30)
            browser.wait_for("$('k-children').textContent === '4'")
            assert text_of(browser, "#worker-id") == "host-1 ★"
            engines.split_shard("numbers", shard_id(0))
            browser.wait_for(
                "[...shards.values()].filter(s => s.parents.length && s.kind === 'reading').length === 2", 30
            )
            assert browser.run("return order.map(s => s.name)")[:3] == ["0", "4", "5"], "children after their parent"
            host.process.kill()
            host.process.wait()
            browser.wait_for("document.documentElement.dataset.state === 'lost'")
            browser.wait_for("!$('lost').classList.contains('hidden') && $('lost-next').textContent")
        with Running(counting) as host:
            browser.wait_for(f"{LIVE} && $('lost').classList.contains('hidden') && host.ready.ready", 30)
            assert stop(host.process) == 0
    assert browser.complaints() == []


def test_a_thousand_shards_on_few_nodes_and_the_same_after_a_day(browser: Browser) -> None:
    host = RunningHost(SystemClock(), shards=1000, workers=24)
    host.split(2)
    for shard in range(1000):
        host.says(shard, "INFO committed")
    with served(host) as url:
        browser.open(url)
        browser.wait_for(f"{LIVE} && shards.size === 1002 && {UPDATES} >= 2")
        assert browser.run("return lay.size") == "S"
        assert browser.run("return document.getElementsByTagName('*').length") < 1500
        after, events, known = browser.run(
            """
            // A day of updates in which every shard changes its owner and its child, and shards come and go.
            const last = JSON.parse(JSON.stringify({ ...host, fleet }));
            for (let i = 1; i <= 300; i++) {
                const now = last.taken_s + i * 60, owner = "w" + i;
                const report = { ...last, taken_s: now, fleet_taken_s: now };
                report.consumers = last.consumers.map(c => ({ ...c, child_pid: c.child_pid + i }));
                const leases = last.fleet.leases.map((lease, n) => (
                    { ...lease, owner, lease_key: n % 7 ? lease.lease_key : `${lease.lease_key}-${i}` }));
                const moves = leases.slice(0, 20).map(lease => (
                    { ago_s: 1, lease_key: lease.lease_key, before: "w" + (i - 1), after: owner }));
                report.fleet = { ...last.fleet, taken_s: now, moves, leases };
                accept(report); if (i % 50 === 0) { show(); draw(); }
            }
            accept({ ...last, taken_s: last.taken_s + 90000 }); show(); draw();
            return [document.getElementsByTagName("*").length, events.length, [shards.size, moved.size]];
            """
        )
    assert after < 1500 and events <= 40 and known[0] == 1002 and known[1] <= 1002
    assert browser.complaints() == []


def test_what_others_write_is_text(browser: Browser) -> None:
    clock = SystemClock()
    host = RunningHost(clock, shards=3, workers=2, worker_id=MARKUP + "{}", application=MARKUP)
    host.says(0, MARKUP, logging.ERROR)
    host.fails(MARKUP, action=MARKUP, shard=MARKUP, error=MARKUP)
    host.findings = (Finding(severity="problem", kind=MARKUP, message=MARKUP, leases=(MARKUP,), workers=(MARKUP,)),)
    host.next_owner[0] = MARKUP
    host.fleet_error = MARKUP
    with served(host) as url:
        browser.open(url)
        browser.wait_for(f"{LIVE} && {UPDATES} >= 1")
        host.move(1, MARKUP)
        browser.wait_for("document.querySelectorAll('#events .event').length")
        browser.run("$('toggle').click(); select(order[0].key)")
        browser.wait_for(f"{UPDATES} >= 4")
        for selector in (
            "#app",
            "#worker-id",
            "#workers",
            "#troubles",
            "#children",
            "#all",
            "#lines",
            "#events",
            "#facts",
        ):
            assert MARKUP in text_of(browser, selector), selector
        assert browser.run("return document.querySelectorAll('img, body script ~ script').length") == 0
        assert browser.run("return typeof window.pwned") == "undefined"
    assert browser.complaints() == []


def test_by_keyboard(browser: Browser) -> None:
    with served(RunningHost(SystemClock(), shards=60, workers=3)) as url:
        browser.open(url)
        browser.wait_for(f"{LIVE} && shards.size === 60")
        browser.run("map.focus()")
        browser.press("\ue014", "\ue014", "\ue015")  # right, right, down
        assert browser.run("return order.findIndex(s => s.key === selected)") == 1 + browser.run("return lay.per")
        name = browser.run("return shards.get(selected).name")
        assert text_of(browser, "#announce").startswith(f"shard {name}, reading")
        browser.press("\ue007")  # enter
        assert browser.run("return document.activeElement.id") == "detail"
        browser.press("\ue00c")  # escape
        assert browser.run("return [selected, document.activeElement.id]") == [None, "map"]
        browser.run("$('toggle').click(); $('filter').value = '59'; $('filter').dispatchEvent(new Event('input'))")
        assert text_of(browser, "#all tr").startswith("59")
        unnamed = browser.run(
            "return [...document.querySelectorAll('button, input, select, canvas[tabindex]')]"
            ".filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).length"
        )
        assert unnamed == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_in_light_and_in_dark(browser: Browser, scheme: str) -> None:
    """WCAG 2: a contrast of 4.5 for text."""
    with served(RunningHost(SystemClock())) as url:
        browser.show(scheme)  # type: ignore[arg-type]
        browser.open(url)
        browser.wait_for(LIVE)
        contrasts = browser.run(
            """
            const css = getComputedStyle(document.documentElement);
            const light = name => {
                const channels = css.getPropertyValue(name).trim().slice(1).match(/../g).map(x => parseInt(x, 16));
                const linear = c => c <= 10 ? c / 255 / 12.92 : ((c / 255 + .055) / 1.055) ** 2.4;
                const [r, g, b] = channels.map(linear);
                return .2126 * r + .7152 * g + .0722 * b;
            };
            const found = {};
            for (const ink of ["--ink", "--muted", "--good", "--warn", "--bad", "--link"])
                for (const ground of ["--bg", "--surface", "--sunken"]) {
                    const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
                    found[ink + " on " + ground] = (a + .05) / (b + .05);
                }
            return found;
            """
        )
        is_dark = browser.run("return darkScheme.matches")
        browser.show()
    assert is_dark is (scheme == "dark")
    assert {pair: ratio for pair, ratio in contrasts.items() if ratio < 4.5} == {}
