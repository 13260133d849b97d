"""Entry point of the console script and of `python -m kcl_host`."""

from __future__ import annotations


def main() -> None:
    from kcl_host.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
