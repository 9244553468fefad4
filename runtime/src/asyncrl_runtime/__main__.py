"""`asyncrl`, and `python -m asyncrl_runtime`."""


def main() -> None:
    """Run the command line."""
    from asyncrl_runtime.app.cli import app

    app(prog_name="asyncrl")


if __name__ == "__main__":
    main()
