"""`penstock`, and `python -m penstock`: the command line. It loads in a moment, in which an interrupt just ends it."""

import signal


def main() -> None:
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli import main as run

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
