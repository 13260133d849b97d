"""`kcl-host status`: who reads what, how far behind, what moves and why. It only reads; any worker may be Java's."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click
import msgspec

from kcl_host.cli.properties_file import takes_properties_file
from kcl_host.cli.run import read_settings
from kcl_host.config.settings import Settings
from kcl_host.decisions.fleet_looks import STATES, FleetSnapshot, LeaseState, Looks, PartFailure, look
from kcl_host.decisions.fleet_report import FleetView, seconds
from kcl_host.decisions.fleet_selection import SORT_KEYS, Selection, SortKey, select
from kcl_host.decisions.fleet_view import view_fleet
from kcl_host.errors import ConfigurationError, KclHostError
from kcl_host.log import escaped

if TYPE_CHECKING:
    from rich.console import Console

    from kcl_host.coordination.fleet_snapshot import FleetReader
    from kcl_host.decisions.fleet_cost import Cost, Prices

SCHEMA: Final = 1
"""Of --json; grows when a field changes its meaning or goes."""
LAG_EVERY_S: Final = 10.0
"""How often a watch asks Kinesis; between, the last answers are shown."""
READ_TIMEOUT_S: Final = 20.0
"""No lease depends on these requests, unlike a worker's: of a large table an answer may take its time."""
SAID_LAG_SHARDS: Final = 500
"""From so many shards on the cost of --lag is said before it is paid."""


def fleet_options(command: Any) -> Any:
    """What `status` and `top` have in common."""
    for option in reversed(
        (
            takes_properties_file,
            click.option("--lag", "ask_lag", is_flag=True, help="Ask Kinesis how far each checkpoint is behind."),
            click.option(
                "--max-lag", type=click.FloatRange(min=0), metavar="S", help="More is a problem. Implies --lag."
            ),
            click.option(
                "--worker", "workers", multiple=True, metavar="TEXT", help="Only workers with TEXT in the id."
            ),
            click.option("--shard", "shards", multiple=True, metavar="TEXT", help="Only shards with TEXT in the key."),
            click.option(
                "--stream", "streams", multiple=True, metavar="TEXT", help="Only streams with TEXT in the name."
            ),
            click.option(
                "--state",
                "states",
                multiple=True,
                type=click.Choice(STATES),
                help="Only leases in this state. May be repeated, as the other filters.",
            ),
            click.option("--all", "show_all", is_flag=True, help="Every lease and worker, however many."),
            click.option("--json", "as_json", is_flag=True, help="All of it as JSON, one object per look."),
        )
    ):
        command = option(command)
    return command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@fleet_options
@click.option("--sort", type=click.Choice(SORT_KEYS), default="key", show_default=True, help="Order of the leases.")
@click.option("--watch", type=click.FloatRange(min=0.2), metavar="S", help="Look again each S seconds, until Ctrl-C.")
@click.option("--observe", type=click.FloatRange(min=0), metavar="S", help="Look twice, S seconds apart, then show.")
@click.option("--cost", "show_cost", is_flag=True, help="Estimate what the fleet costs a day; best with --observe 60.")
@click.option(
    "--price", "given_prices", multiple=True, metavar="NAME=USD", help="A price for --cost; see docs/status.md."
)
def status(
    watch: float | None, observe: float | None, show_cost: bool, given_prices: tuple[str, ...], **options: Any
) -> int:
    """Show the fleet of an application: workers, leases, and what is wrong, from its DynamoDB tables.

    Works whoever the workers are, Java's KCL 3.x too. It reads only: a DescribeTable, up to five GetItem, and scans of
    the lease table and of WorkerMetricStats. What cannot be read is named, and the rest is shown.

    \b
      kcl-host status -p app.properties                   is all well, and if not, why?
      kcl-host status -p app.properties --observe 20      the same, without false alarms: for scripts
      kcl-host status -p app.properties --lag --sort lag  which shards are behind?
      kcl-host status -p app.properties --state no_owner --all
      kcl-host status -p app.properties --json | jq '.findings'

    One look sees rows; only a second one sees that an owner is silent, or for how long something has stood
    (--observe, --watch). Of many leases those worth a look are shown; filters, --sort and --all show others.

    --lag costs two requests per shard, paced at 100 shards a second; each takes one of the five reads a second that
    a shard allows to all its readers. The lag is that of the checkpoint: its reader may be ahead of it.

    \b
    Exit codes: 0 no problem found, 1 at least one (the lines with !!; every kind is in docs/status.md),
    2 wrong configuration or usage, 3 nothing could be read for want of credentials or permissions.
    """
    from kcl_host.cli.cost_table import prices_of

    prices = prices_of(given_prices) if show_cost or given_prices else None
    return run_status(watch=watch, observe=observe, prices=prices, **options)


def run_status(
    *,
    file: Path | None,
    properties_file: Path | None,
    ask_lag: bool,
    max_lag: float | None,
    workers: tuple[str, ...],
    shards: tuple[str, ...],
    streams: tuple[str, ...],
    states: tuple[str, ...],
    show_all: bool,
    as_json: bool,
    sort: str,
    watch: float | None,
    observe: float | None,
    prices: Prices | None = None,
) -> int:
    """With `prices` the cost is estimated too, but on a screen."""
    path = properties_file or file
    if path is None:
        raise ConfigurationError("no properties file given: kcl-host status -p FILE")
    selection = Selection(
        workers=workers,
        shards=shards,
        streams=streams,
        states=cast(tuple[LeaseState, ...], states),
        sort=cast(SortKey, sort),
        all=show_all,
    )
    settings = read_settings(path).settings
    reader = fleet_reader(settings)
    observer = Observer(
        reader, settings, selection, ask_lag=ask_lag or max_lag is not None, max_lag_s=max_lag, say=_say
    )
    if watch is not None:
        return _watch(observer, selection, watch, as_json=as_json, prices=prices)
    view = observer.look()
    if observe:
        time.sleep(observe)
        view = observer.look()
    _print(view, observer.cost(view, prices), selection, console=None if as_json else _console())
    return int(view.is_wrong)


def fleet_reader(settings: Settings) -> FleetReader:
    """Raises ConfigurationError, AccessError as `clients_for` does."""
    from kcl_host.aws.clients import clients_for
    from kcl_host.coordination.fleet_snapshot import PARALLEL, FleetReader
    from kcl_host.coordination.streams import StreamAccess, Streams
    from kcl_host.runtime.clock import SystemClock
    from kcl_host.runtime.services import lease_table_of, metadata_tables_of, stream_of
    from kcl_host.runtime.threads import SystemThreads

    patient = msgspec.structs.replace(settings.lease, request_timeout_s=READ_TIMEOUT_S)
    clients = clients_for(msgspec.structs.replace(settings, lease=patient))
    return FleetReader(
        lease_table_of(clients.dynamodb, settings),
        metadata_tables_of(clients.dynamodb, settings),
        Streams(settings, lambda stream, own: StreamAccess(stream_of(clients.kinesis, stream, own))),
        SystemClock(),
        SystemThreads(PARALLEL),
    )


class Observer:
    """Looks at a fleet again and again, and remembers what it saw."""

    def __init__(
        self,
        reader: FleetReader,
        settings: Settings,
        selection: Selection,
        *,
        ask_lag: bool,
        max_lag_s: float | None,
        say: Any,
    ) -> None:
        self._reader = reader
        self._settings = settings
        self._selection = selection
        self._ask_lag = ask_lag
        self._max_lag_s = max_lag_s
        self._say = say
        self._looks: Looks | None = None
        self._snapshot: FleetSnapshot | None = None
        self._lag_asked_s: float | None = None
        self._lag_failures: tuple[PartFailure, ...] = ()

    def look(self) -> FleetView:
        """Raises the first error when nothing at all could be read."""
        from kcl_host.decisions.fleet_health import diagnose

        snapshot = self._with_lags(self._take())
        self._looks = look(self._looks, snapshot)
        self._snapshot = snapshot
        view = view_fleet(snapshot, self._looks, self._settings)
        return diagnose(view, snapshot, self._settings, max_lag_s=self._max_lag_s)

    def cost(self, view: FleetView, prices: Prices | None) -> Cost | None:
        """None without prices."""
        from kcl_host.decisions.fleet_cost import estimate_cost

        return None if prices is None else estimate_cost(view, self._settings, prices)

    def _take(self) -> FleetSnapshot:
        """In a later look that fails the last picture stays, and the failure is told with it."""
        before = self._snapshot
        try:
            snapshot = self._reader.take()
        except KclHostError as error:
            if before is None:
                raise
            return msgspec.structs.replace(before, failures=(PartFailure(part="leases", error=str(error)),))
        if before is not None and snapshot.has_failed("leases"):
            return msgspec.structs.replace(snapshot, listing=before.listing)
        return snapshot

    def _with_lags(self, snapshot: FleetSnapshot) -> FleetSnapshot:
        """Between two questions the last answers are in `Looks`; only failures and retentions are kept here."""
        if not self._ask_lag:
            return snapshot
        if self._lag_asked_s is None or snapshot.at_s - self._lag_asked_s >= LAG_EVERY_S:
            self._lag_asked_s = snapshot.at_s
            preview = view_fleet(snapshot, look(self._looks, snapshot), self._settings)
            wanted = {lease.lease_key for lease in select(preview, self._selection)}
            leases = [lease for lease in snapshot.listing.leases if lease.lease_key in wanted]
            if len(leases) >= SAID_LAG_SHARDS:
                from kcl_host.coordination.fleet_snapshot import SHARDS_PER_S

                self._say(
                    f"asking Kinesis for the lag of {len(leases):,} shards: {2 * len(leases):,} requests, "
                    f"{seconds(len(leases) / SHARDS_PER_S)} at least; filters make it less"
                )
            lags, lag_failures = self._reader.ask_lags(leases)
            retention_s, retention_failures = self._reader.ask_retentions(leases)
            self._lag_failures = (*lag_failures, *retention_failures)
            snapshot = msgspec.structs.replace(snapshot, lags=lags, retention_s=retention_s)
        elif self._snapshot is not None:
            snapshot = msgspec.structs.replace(snapshot, retention_s=self._snapshot.retention_s)
        return msgspec.structs.replace(snapshot, failures=(*snapshot.failures, *self._lag_failures))


def document(view: FleetView, selection: Selection, cost: Cost | None = None) -> bytes:
    """The JSON of --json on one line: the fields of FleetView, of the leases those that match (docs/status.md)."""
    fields = msgspec.structs.asdict(view)
    fields["leases"] = select(view, selection)
    if cost is not None:
        fields["cost"] = cost
    return msgspec.json.encode({"schema": SCHEMA, "ok": not view.is_wrong, **fields})


def _watch(observer: Observer, selection: Selection, every_s: float, *, as_json: bool, prices: Prices | None) -> int:
    """Until Ctrl-C or TERM; the exit code is that of the last look. Off a terminal each look is below the last."""
    is_screen = sys.stdout.isatty() and not as_json
    for number in (signal.SIGINT, signal.SIGTERM):  # A shell starts what runs in its background deaf to the first.
        signal.signal(number, signal.default_int_handler)
    view = None
    try:
        if not is_screen:
            console = None if as_json else _console()
            while True:
                view = observer.look()
                _print(view, observer.cost(view, prices), selection, console=console, watched=True)
                time.sleep(every_s)
        from rich.live import Live

        from kcl_host.cli.fleet_table import screen

        console = _console()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                view = observer.look()
                live.update(screen(view, selection, console), refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        if view is None:
            raise
        return int(view.is_wrong)


def _print(
    view: FleetView, cost: Cost | None, selection: Selection, *, console: Console | None, watched: bool = False
) -> None:
    """As JSON where there is no console."""
    if console is None:
        text = document(view, selection, cost)
        click.echo((text if watched else msgspec.json.format(text, indent=2)).decode())
        return
    from kcl_host.cli.fleet_table import page

    console.print(page(view, selection, console.width))
    if cost is not None:
        from kcl_host.cli.cost_table import cost_page

        console.print(cost_page(cost))
    if watched:
        console.print()


def _console() -> Console:
    from kcl_host.cli.terminal import console

    return console()


def _say(message: str) -> None:
    click.echo(escaped(message), err=True)
