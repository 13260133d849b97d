"""`python -m tests.interop.page_pictures [FOLDER]` makes docs/page-light.png and docs/page-dark.png.

Needs what the tests of the page need, and pillow. The page is at three minutes' age, without waiting for them: the
host's clock moves a second with each question.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from pathlib import Path
from typing import Literal

from PIL import Image

from kcl_host.endpoint.answers import Answers
from kcl_host.endpoint.http import Answer, HttpServer, Request
from kcl_host.runtime.clock import SystemClock
from tests.fakes.clock import FakeClock
from tests.fakes.running_host import RunningHost, shard_id
from tests.interop.browser import Browser, start_browser

DOCS = Path(__file__).parents[2] / "docs"
SECONDS = 170
WORDS = (
    "INFO committed 412 rows in 84 ms", "INFO wrote part-00042.parquet (3.2 MB)", "INFO window 14:05 closed",
    "INFO cache hit ratio 0.97", "INFO committed 388 rows in 79 ms", "WARNING slow sink: 1.4 s for 500 rows",
)  # fmt: skip


class Story:
    """What happens at which second."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.host = RunningHost(
            self.clock, shards=14, workers=3, application="orders-enrichment", worker_id="ip-10-0-{}"
        )
        self.host.lag_ms = {n: 0 for n in range(14) if n % 4}
        self.host.lag_ms[9] = 4_000
        self._answers = Answers(self.host.host(), self.clock)
        self._second = 0

    def answer(self, request: Request) -> Answer:
        if request.path == "/status":
            self.clock.advance(1)
            self._second += 1
            self._tell(self._second)
        return self._answers(request)

    def _tell(self, second: int) -> None:
        host, names = self.host, sorted(set(self.host.owner.values()))
        if second % 3 == 0:
            host.says(3 * (second // 3 % 5), WORDS[second // 3 % len(WORDS)])
        if second > 90:
            host.lag_ms[7] = 1_500 * (second - 90)
        match second:
            case 60:
                host.split(2)
            case 95:
                host.move(8, names[0])
            case 118:
                host.fails(
                    "reads are throttled", action="reads_throttled", shard=shard_id(7),
                    error="ProvisionedThroughputExceededException: rate exceeded",
                )  # fmt: skip
            case 131:
                host.move(11, names[1])
            case 149:
                host.child[12] = "BACKOFF"
                host.says(12, "ValueError: amount is not a number: 'n/a'", logging.ERROR)
                host.fails("child failed", shard=shard_id(12), error="the child ended with status 1")
            case 158:
                del host.child[12]
                host.says(12, "INFO opened at 4965…0042")
            case 164:
                host.move(13, names[2])
            case 166:
                host.next_owner[6] = names[2]


def take(browser: Browser, scheme: Literal["light", "dark"], path: Path) -> None:
    story = Story()
    server = HttpServer(story.answer, "127.0.0.1", 0, SystemClock())
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        browser.show(scheme, width=1440, height=1130)
        browser.open(f"http://127.0.0.1:{server.port}/")
        browser.wait_for("host")
        browser.run("clearTimeout(timer); schedule = () => {};")
        for _ in range(SECONDS - 1):
            before = browser.run("const before = document.documentElement.dataset.updates; ask(); return before")
            browser.wait_for(f"document.documentElement.dataset.updates !== '{before}'")
        Image.open(io.BytesIO(browser.picture())).convert("RGB").quantize(256).save(path, optimize=True)
    finally:
        server.stop()
        thread.join()


def main(folder: Path) -> None:
    browser = start_browser()
    try:
        for scheme in ("light", "dark"):
            take(browser, scheme, folder / f"page-{scheme}.png")
    finally:
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
